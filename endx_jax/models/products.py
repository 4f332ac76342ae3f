"""Products of linear layers in bfloat16 with float32 sums, for CPUs: `model.product_dtype`.

CPUs with instructions for bfloat16 products can multiply bfloat16 faster than float32, but emulate all else in
bfloat16, so that `model.dtype=bfloat16` gains nothing there. Only the factors of products are rounded here, forward and
backward.
"""

import contextlib
import contextvars
import functools
import logging
import pathlib
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp

from endx_jax.settings import check_choice

Array = jax.Array
LOG = logging.getLogger("endx_jax")

# Not float16, whose largest number, 65,504, hidden layers exceed, and which CPUs do not multiply faster.
FLOAT32, BFLOAT16, AUTO = PRODUCT_DTYPES = ("float32", "bfloat16", "auto")
# Flags in /proc/cpuinfo of CPUs with instructions for bfloat16 products.
INSTRUCTIONS = {"avx512_bf16", "amx_bf16"}
CPU_INFO = pathlib.Path("/proc/cpuinfo")

_requested: contextvars.ContextVar[str | None] = contextvars.ContextVar("product_dtype", default=None)

_product = functools.partial(jax.lax.dot_general, preferred_element_type=jnp.float32)


def multiplies_bfloat16() -> bool:
    """Returns true if the CPU has instructions for bfloat16 products; false where there is no `/proc/cpuinfo`."""
    lines = CPU_INFO.read_text(errors="replace").splitlines() if CPU_INFO.is_file() else []
    return any(not INSTRUCTIONS.isdisjoint(line.split()) for line in lines if line.startswith("flags"))


def chosen_product_dtype(name: str) -> str:
    """Returns float32 or bfloat16 for one of `PRODUCT_DTYPES`; `auto` chooses by the instructions of this CPU."""
    return name if name != AUTO else BFLOAT16 if multiplies_bfloat16() else FLOAT32


def set_product_dtype(name: str) -> None:
    """Sets the data type of products of models that are loaded from now on, in place of `model.product_dtype`.

    It holds in this thread, or in a `contextvars` context, as does `with product_dtype(name)`.

    Args:
      name: one of `PRODUCT_DTYPES`.
    """
    check_choice("product_dtype", name, PRODUCT_DTYPES)
    _requested.set(name)


@contextlib.contextmanager
def product_dtype(name: str | None) -> Iterator[str | None]:
    """Context of `set_product_dtype(name)`; None keeps what is set. Yields what is then set; None: nothing."""
    token = _requested.set(_requested.get())
    try:
        if name is not None:
            set_product_dtype(name)
        yield _requested.get()
    finally:
        _requested.reset(token)


def product_dtype_on(platform: str, name: str) -> str:
    """Returns the data type of products on a platform: `name`, or what is set, on a CPU; else float32.

    It is chosen here, when a model is built, and recorded in the encoder's config.
    """
    chosen = chosen_product_dtype(_requested.get() or name) if platform == "cpu" else FLOAT32
    if chosen == BFLOAT16 and not multiplies_bfloat16():
        _warn_of_slow_products()
    return chosen


@functools.cache  # once
def _warn_of_slow_products() -> None:
    needed = " or ".join(sorted(INSTRUCTIONS))
    LOG.warning("bfloat16 products will be slow: this CPU has no instructions for them (%s); use float32", needed)


def dot_general_of(factors: str, dtype: jnp.dtype) -> Callable[..., Array] | None:
    """Returns the `dot_general` of linear layers (`nn.Dense`) in `dtype` with these factors; None for JAX's own."""
    return _dot_general if factors == BFLOAT16 and dtype == jnp.float32 else None


def _dot_general(x: Array, kernel: Array, dimensions: object = None, precision: object = None) -> Array:
    del dimensions, precision  # always those of a linear layer
    return bfloat16_product(x, kernel)


@jax.custom_vjp
def bfloat16_product(x: Array, kernel: Array) -> Array:
    """Multiplies x [..., D] by a kernel [D, E], both float32, rounded to bfloat16; sums and result are float32.

    The two products of the gradient also have rounded factors and float32 sums; the rounded x and kernel are kept.
    """
    return _forward(x, kernel)[0]


def _forward(x, kernel):
    x, kernel = x.astype(jnp.bfloat16), kernel.astype(jnp.bfloat16)
    return _product(x, kernel, (((x.ndim - 1,), (0,)), ((), ()))), (x, kernel)


def _backward(residuals, gradient):
    (x, kernel), gradient = residuals, gradient.astype(jnp.bfloat16)
    rows = tuple(range(x.ndim - 1))
    to_x = _product(gradient, kernel, (((x.ndim - 1,), (1,)), ((), ())))
    return to_x, _product(x, gradient, ((rows, rows), ((), ())))


bfloat16_product.defvjp(_forward, _backward)
