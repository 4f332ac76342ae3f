"""Data sets: questions, candidates and which are right, and where they come from."""
