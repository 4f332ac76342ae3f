"""Looks into traced functions."""

from collections.abc import Iterator

import numpy as np
from jax.extend.core import jaxprs_in_params


def equations(jaxpr) -> Iterator:
    """All equations of a jaxpr, those inside loops and calls included."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from equations(inner)


def largest_array(jaxpr) -> int:
    """Entries of the largest array that the function makes."""
    return max(int(np.prod(out.aval.shape)) for equation in equations(jaxpr) for out in equation.outvars)
