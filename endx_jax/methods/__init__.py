"""Training methods: one folder per method with its settings, objective, modules, batches and evaluator."""

from endx_jax.methods.method import METHODS, Method, find_method, register
from endx_jax.methods.settings import MethodSettings

__all__ = ["METHODS", "Method", "MethodSettings", "find_method", "register"]
