"""Plans of runs: memory, time and communication of a training step, before it runs."""
