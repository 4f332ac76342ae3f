"""Parts of transformer layers: norms, activations, rotary positions and relative-position bias.

Parameters are float32 and computation is in `dtype`; norms and softmaxes are computed in float32.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from endx_jax import json_files
from endx_jax.errors import EndxError
from endx_jax.models.config_keys import HuggingFaceConfig, check_keys, enum_key, float_key, int_key
from endx_jax.models.layout import Layout
from endx_jax.models.sharding_hints import platform
from endx_jax.numerics import at_least_float32

Array = jax.Array


def gelu(x: Array) -> Array:
    """Computes the exact GELU, x Phi(x) (Hendrycks and Gimpel 2016), by erf as in PyTorch.

    `jax.nn.gelu` uses erfc, which keeps relative precision of tiny results, with three times as many passes.
    """
    return x * (0.5 * (1 + jax.lax.erf(x * math.sqrt(0.5))))


gelu_tanh = functools.partial(nn.gelu, approximate=True)

# Activation functions by their names in transformers.
ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "gelu": gelu,
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "relu": nn.relu,
    "silu": nn.silu,
}


def activated(activation: Callable[[Array], Array], up: Array, gate: Array | None = None) -> Array:
    """Computes the hidden units of an MLP: activation(up), or activation(gate) * up (Shazeer 2020).

    They are the largest arrays of a layer, so the gradient of a plain MLP keeps `up` and the result, and computes the
    steps between them again; `TransformerLayer` computes gated units again.
    """
    if gate is None:  # compilers compute the activation again unasked, and fuse it if nothing prevents that
        return jax.checkpoint(activation, prevent_cse=False)(up)
    return activation(gate) * up


class Norm(nn.Module):
    """Normalisation of the last axis, with parameters `scale` and `bias`, float32 inside.

    It is layer normalisation (Ba et al. 2016), or RMS normalisation (Zhang and Sennrich 2019), which does not subtract
    the mean.

    Attributes:
      epsilon: added to the variance, or to the mean square.
      dtype: dtype of the result.
      use_bias: adds a bias.
      centred: subtracts the mean.
      from_one: multiplies by 1 + `scale`, which is 0 at first.
    """

    epsilon: float
    dtype: jnp.dtype
    use_bias: bool = True
    centred: bool = True
    from_one: bool = False

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Maps [..., D] to [..., D]."""
        if self.from_one:
            scale = 1 + self.param("scale", nn.initializers.zeros, x.shape[-1:])
        else:
            scale = self.param("scale", nn.initializers.ones, x.shape[-1:])
        bias = self.param("bias", nn.initializers.zeros, x.shape[-1:]) if self.use_bias else None
        sums = _joint_sums if platform() == "gpu" else _sums
        return _norm(self.epsilon, jnp.dtype(self.dtype), self.centred, sums, x, jnp.asarray(scale), bias)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2, 3))
def _norm(
    epsilon: float, dtype: jnp.dtype, centred: bool, sums: Callable, x: Array, scale: Array, bias: Array | None
) -> Array:
    """Computes `Norm`. For the gradient x is kept in its dtype, and a mean and a rate of each row."""
    return _norm_forward(epsilon, dtype, centred, sums, x, scale, bias)[0]


def _norm_forward(epsilon, dtype, centred, sums, x, scale, bias):
    del sums
    wide = at_least_float32(x)
    mean = jnp.mean(wide, axis=-1, keepdims=True) if centred else None
    # In two passes: E[x^2] - E[x]^2 cancels where the mean is large, and BERT has such channels.
    around = wide if mean is None else wide - mean
    rate = jax.lax.rsqrt(jnp.mean(jnp.square(around), axis=-1, keepdims=True) + epsilon)
    result = around * rate * _as_row(scale, x)
    if bias is not None:
        result = result + _as_row(bias, x)
    return result.astype(dtype), (x, mean, rate, scale, bias)


def _norm_backward(epsilon, dtype, centred, sums, residuals, gradient):
    x, mean, rate, scale, bias = residuals
    wide, gradient = at_least_float32(x), at_least_float32(gradient)
    normalized = (wide if mean is None else wide - mean) * rate
    others = tuple(range(x.ndim - 1))
    parts = [gradient * normalized] if bias is None else [gradient * normalized, gradient]
    to_params = [total.astype(scale.dtype) for total in sums(parts, others)]
    gradient = gradient * _as_row(scale, x)
    to_x = gradient - jnp.mean(gradient, axis=-1, keepdims=True) if centred else gradient
    to_x = to_x - normalized * jnp.mean(gradient * normalized, axis=-1, keepdims=True)
    return (rate * to_x).astype(x.dtype), *to_params, *([None] if bias is None else [])


_norm.defvjp(_norm_forward, _norm_backward)


def _sums(arrays: Sequence[Array], axes: Sequence[int]) -> list[Array]:
    """Sums each array over axes."""
    return [jnp.sum(x, axes) for x in arrays]


def _joint_sums(arrays: Sequence[Array], axes: Sequence[int]) -> list[Array]:
    """Computes `_sums` by two kernels of a GPU, and not two for each array; a CPU would take ten times as long."""
    zeros = [jnp.zeros((), x.dtype) for x in arrays]
    return jax.lax.reduce(arrays, zeros, lambda a, b: [x + y for x, y in zip(a, b, strict=True)], axes)


def _as_row(vector: Array, like: Array) -> Array:
    """Returns a vector [D] with the rank of an array [..., D]."""
    return vector.reshape((1,) * (like.ndim - 1) + vector.shape)


@dataclasses.dataclass(frozen=True)
class Rope(HuggingFaceConfig):
    """Rotary position embeddings (Su et al. 2021) as in `rope_parameters` or `rope_scaling` of a `config.json`.

    Attributes:
      base: base of the wavelengths (`rope_theta`); the n-th is 2 pi base^(2n / Dh).
      kind: `default` (no scaling), `linear` (positions by 1 / `factor`) or `llama3` (`linear` for long wavelengths
        only, Grattafiori et al. 2024); also `ntk` in files (NTK-aware with a fixed factor, kexue.fm/archives/9706),
        which is read as `linear` with another base.
      factor: factor of the scaling.
      longest: wavelengths over `trained` / `longest` are scaled by `llama3` (`low_freq_factor`).
      shortest: wavelengths under `trained` / `shortest` are not, and those between in part (`high_freq_factor`).
      trained: positions before the scaling (`original_max_position_embeddings`).
      part: part of a head that is rotated; only all of it is supported.
    """

    base: float = float_key("rope_theta", least=1, most=1e12)
    kind: str = enum_key("rope_type", "type", choices=("default", "linear", "ntk", "llama3"), default="default")
    factor: float = float_key("factor", default=1.0, least=1.0, most=1e6)
    longest: float = float_key("low_freq_factor", default=1.0, least=1e-3, most=1e6)
    shortest: float = float_key("high_freq_factor", default=4.0, least=1e-3, most=1e6)
    trained: int = int_key("original_max_position_embeddings", default=8192)
    part: float = float_key("partial_rotary_factor", default=1.0, least=1.0, most=1.0)

    @classmethod
    def read(cls, parameters: object, base: object, head_width: int, where: object) -> Self:
        """Converts the rotary parameters of a `config.json`, an object or none; `base` is used if they state none."""
        if head_width % 2:
            raise EndxError(f"{where}: heads are {head_width} wide; rotary position embeddings need an even width")
        stated = json_files.as_object(parameters or {}, f"{where}: the rotary parameters")
        rope = cls.from_hugging_face({"rope_theta": base} | stated, where)
        keys = " ".join(name for field in dataclasses.fields(cls) for name in field.metadata["names"])
        check_keys(stated, where, {}, keys, ignored_by="transformers")
        if rope.kind == "ntk":
            larger, factor = rope.base * rope.factor, rope.factor ** (2 / head_width)
            rope = dataclasses.replace(rope, kind="linear", base=larger, factor=factor)
        if rope.kind == "llama3":
            missing = [name for name in KEYS["llama3"] if name not in stated]
            if missing:
                raise EndxError(f"{where}: rotary parameters of rope_type llama3 need {', '.join(missing)}")
            if rope.shortest <= rope.longest:
                low = f"low_freq_factor {rope.longest:g}"
                raise EndxError(f"{where}: high_freq_factor {rope.shortest:g} must exceed {low}")
        return rope

    def frequencies(self, head_width: int) -> np.ndarray:
        """Returns the angles by which neighbouring positions differ, float64 [Dh / 2]."""
        divisor = self.factor if self.kind == "linear" else 1.0
        frequencies = 1 / (divisor * self.base ** (np.arange(0, head_width, 2, dtype=np.float64) / head_width))
        if self.kind == "llama3":
            turns = self.trained * frequencies / (2 * np.pi)
            unscaled = np.clip((turns - self.longest) / (self.shortest - self.longest), 0, 1)
            frequencies = frequencies * (unscaled + (1 - unscaled) / self.factor)
        return frequencies

    def to_hugging_face(self) -> dict[str, Any]:
        """Returns `rope_parameters` of a `config.json`."""
        keys = ("rope_theta", "rope_type", *KEYS[self.kind])
        return {key: value for key, value in super().to_hugging_face().items() if key in keys}


# Further keys of rotary parameters, by their type.
KEYS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


def rotations(layout: Layout, head_width: int, rope: Rope) -> tuple[Array, Array]:
    """Returns cosines and sines for `rotate`, by positions within a text: float32 token arrays [..., Dh / 2]."""
    angles = jnp.arange(layout.width)[:, None] * jnp.asarray(rope.frequencies(head_width), jnp.float32)[None]
    return layout.by_position(jnp.cos(angles)), layout.by_position(jnp.sin(angles))


def rotate(x: Array, rotation: tuple[Array, Array]) -> Array:
    """Rotates the heads of a token array [..., H, Dh]; the pairs of a head are its entries n and Dh / 2 + n."""
    cosine, sine = (part[..., None, :] for part in rotation)
    first, second = jnp.split(at_least_float32(x), 2, axis=-1)
    return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1).astype(x.dtype)


def relative_position_bias(table: Array, length: int, max_distance: int) -> Array:
    """Returns T5's bias on attention scores by the distance of key and query (Raffel et al. 2020, section 2.1).

    The table is [buckets, H]; the bias [1, H, L, L], by the position of the query and that of the key. Positions from
    `max_distance` on share a bucket.
    """
    position = jnp.arange(length)
    distance = position[None, :] - position[:, None]
    return jnp.moveaxis(table[relative_position_buckets(distance, len(table), max_distance)], -1, 0)[None]


def relative_position_buckets(distance: Array, buckets: int, max_distance: int) -> Array:
    """Returns the buckets, int [...], of distances [...], each a key's position minus a query's.

    Half of the buckets are for keys after the query. In each half, the first half are single distances, the others grow
    logarithmically up to `max_distance`, and all greater distances share the last one.
    """
    distances = np.arange(-max_distance, max_distance + 1)
    half = buckets // 2
    exact = half // 2
    far = np.maximum(np.abs(distances), 1).astype(np.float32)
    growth = np.log(far / exact) / np.float32(np.log(max_distance / exact)) * (half - exact)
    logarithmic = np.minimum(exact + growth.astype(np.int32), half - 1)
    of_distance = np.where(np.abs(distances) < exact, np.abs(distances), logarithmic) + half * (distances > 0)
    return jnp.asarray(of_distance)[jnp.clip(distance, -max_distance, max_distance) + max_distance]
