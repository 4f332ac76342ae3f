"""Batches: token tables, the rows of each step, and the arrays that are made of them."""
