"""Training state, optimizer, step, loop, checkpoints and logs, shared by all methods."""
