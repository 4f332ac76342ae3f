"""State, optimizer, step, loop, checkpoints and their log: the same for every method."""
