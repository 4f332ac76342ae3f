"""Low-rank adapters of linear layers (LoRA, Hu et al. 2021, arXiv 2106.09685), and the linear layer that applies them.

An adapter is two matrices beside the layer's `kernel` in the parameter tree: `lora_a` [in, r] and `lora_b` [r, out].
`Linear` adds x A B to its result if its parameters have them. The sum W + s A B is made only by `merged`: in training
its gradient would be as large as the base, and dropout applies to the adapter's input alone.
"""

import dataclasses
import math
import re
from collections.abc import Mapping

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp

from endx_jax.models.config_keys import MOST_SIZE
from endx_jax.models.dropout import dropout
from endx_jax.settings import check_patterns, key, require

Array = jax.Array

A, B, KERNEL = "lora_a", "lora_b", "kernel"
DTYPES = ("float32", "bfloat16")
# Base of the adapters by path: all parameters of token tables and encoders but the adapters.
BASE = rf"(^|/)(token_embedder|encoder)/(?!.*{A[:-1]}[ab]$)"
# Linear layers of the blocks of `models.transformer`.
_LINEAR = re.compile(r"(^|/)encoder/layers_\d+/(attention/(query|key|value|output)|mlp_(up|gate|down))/kernel$")


@dataclasses.dataclass(frozen=True)
class LoraSettings:
    """Settings of adapters, `config.model.lora`."""

    rank: int = key(
        0,
        "Rank of the adapters, such as 16; the other parameters of the encoder are frozen. 0: none.",
        least=0,
        most=MOST_SIZE,
    )
    alpha: float = key(32.0, "Numerator of the factor of the adapters, alpha / rank.")
    rank_stabilized: bool = key(False, "Makes the factor alpha / sqrt(rank) (rsLoRA, Kalajdzievski 2023).")
    dropout: float = key(0.0, "Dropout rate of the adapters' input, in [0, 1).", least=0, below=1)
    targets: str = key(
        "",
        "Pattern of the paths of linear layers with an adapter, such as `attention/` or `layers_2[0-9]/`. Empty: all "
        "linear layers of the blocks.",
    )
    adapter: str = key("", "Folder in PEFT's format with the initial adapters, of this `rank`. Empty: new ones.")
    base_dtype: str = key("float32", "Data type of the frozen matrices in memory.", choices=DTYPES)

    def __post_init__(self):
        check_patterns("model.lora.targets", [self.targets])

    @property
    def factor(self) -> float:
        """Factor s of the adapters' results."""
        return self.alpha / (math.sqrt(self.rank) if self.rank_stabilized else self.rank)


NONE = LoraSettings()


class Linear(nn.Dense):
    """Linear layer of `nn.Dense`, which adds s (x A) B if its parameters have an adapter."""

    lora: LoraSettings = NONE

    def __call__(self, x: Array, token_keys: Array | None = None) -> Array:
        """Maps [..., D] to [..., features]; dropout of the adapter's input is on if `token_keys` [...] are given."""
        result = super().__call__(x)
        if not self.has_variable("params", A):
            return result
        a, b = (jnp.asarray(self.get_variable("params", name), result.dtype) for name in (A, B))
        product = self.dot_general or jnp.matmul
        dropped = dropout(x.astype(result.dtype), token_keys, self.lora.dropout)
        return result + product(product(dropped, a), b) * self.lora.factor


def is_adapter(path: str) -> bool:
    """Returns true for the path of a matrix of an adapter."""
    return path.endswith((f"/{A}", f"/{B}"))


def is_linear(path: str) -> bool:
    """Returns true for the path of a kernel that may have an adapter."""
    return _LINEAR.search(path) is not None


def with_adapters(params: Mapping, settings: LoraSettings, draw_key: Array) -> dict:
    """Adds new adapters to the parameters of towers, and casts the matrices of the base to `settings.base_dtype`.

    A is uniform in +-1 / sqrt(in), as in PEFT, and B is zero, so that the towers embed as before. The parameters may be
    `pretrained.stored.StoredArray`. The settings have a rank above 0, and `targets` that match a linear layer.
    """
    leaves = flax.traverse_util.flatten_dict(params, sep="/")
    modules = sorted(path.removesuffix(f"/{KERNEL}") for path in leaves if is_linear(path))
    chosen = [module for module in modules if re.search(settings.targets, module)]
    such = f", such as {modules[-1]}" if modules else ": a new encoder, or none, is trained without model.lora"
    require(bool(chosen), f"model.lora.targets is {settings.targets!r}, which matches none of the linear layers{such}")
    for path, leaf in leaves.items():
        if re.search(BASE, path) and len(leaf.shape) > 1:
            leaves[path] = leaf.astype(settings.base_dtype)
    for number, module in enumerate(chosen):
        rows, columns = leaves[f"{module}/{KERNEL}"].shape
        draw, bound = jax.random.fold_in(draw_key, number), 1 / math.sqrt(rows)
        leaves[f"{module}/{A}"] = jax.random.uniform(draw, (rows, settings.rank), minval=-bound, maxval=bound)
        leaves[f"{module}/{B}"] = jnp.zeros((settings.rank, columns))
    return flax.traverse_util.unflatten_dict(leaves, sep="/")


def merged(params: Mapping, settings: LoraSettings) -> dict:
    """Returns parameters without adapters, float32: each kernel W with an adapter becomes W + s A B."""
    leaves = flax.traverse_util.flatten_dict(params, sep="/")
    result = {path: leaf.astype(jnp.float32) for path, leaf in leaves.items() if not is_adapter(path)}
    for path in result:
        module = path.removesuffix(KERNEL)
        if path.endswith(f"/{KERNEL}") and module + A in leaves:
            product = jnp.matmul(leaves[module + A], leaves[module + B], precision=jax.lax.Precision.HIGHEST)
            result[path] += settings.factor * product
    return flax.traverse_util.unflatten_dict(result, sep="/")
