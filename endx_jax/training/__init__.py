"""State, optimizer, step, loop, checkpoints and metric log, for every method."""
