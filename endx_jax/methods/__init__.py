"""Training methods: one folder per method with its settings, objective, modules, batches and evaluator."""

from endx_jax.methods.method import METHODS, Method, MethodSettings, find_method, register

__all__ = ["METHODS", "Method", "MethodSettings", "find_method", "register"]
