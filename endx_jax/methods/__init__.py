"""Training methods, one folder each: settings, objective, modules, batches, evaluator, report and recipes."""

from endx_jax.methods.method import METHODS, Method, find_method, register

__all__ = ["METHODS", "Method", "find_method", "register"]
