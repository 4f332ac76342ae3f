"""Optimizers, learning-rate schedules, and learning-rate multipliers by parameter path."""

import dataclasses
import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from endx_jax.errors import EndxError
from endx_jax.parallel.sharding import map_paths
from endx_jax.settings import check_patterns, key

SCHEDULES = ("linear", "cosine", "constant")
OPTIMIZERS = ("adamw", "sgd", "adafactor")

# Settings of Adafactor in google-research/t5x_retrieval, and so of Dong et al. 2022.
DECAY_RATE = 0.8  # second moments decay by 1 - t^-0.8 at step t = 1, 2, ...
SQUARED_GRADIENT_EPSILON = 1e-30
MIN_FACTORED_WIDTH = 128  # matrices with a narrower side keep the second moment of each entry
CLIPPING_THRESHOLD = 1.0  # largest root mean square of an update, before it is scaled
MIN_PARAMETER_SCALE = 1e-3


@dataclasses.dataclass(frozen=True)
class OptimizerSettings:
    """Settings of the optimizer, `config.optimizer`."""

    name: str = key("adamw", "Optimizer.", choices=OPTIMIZERS)
    learning_rate: float = key(
        2e-5,
        "Peak learning rate (ENDX: 2e-5 for BERT). With Adafactor it is relative to the RMS of a parameter (Dong et "
        "al.: 1e-3 for T5).",
        least=0,
    )
    schedule: str = key(
        "linear", "Learning-rate schedule after warm-up; linear and cosine end at 0.", choices=SCHEDULES
    )
    warmup_steps: int = key(
        0, "Steps of the linear rise from 0 to the peak. -1: a tenth of all, at most 100.", least=-1
    )
    weight_decay: float = key(
        0.01, "Decoupled weight decay of AdamW and Adafactor, for kernels and embedding tables only."
    )
    clip_norm: float = key(1.0, "Maximum global norm of the gradient. 0: no clipping.")
    beta1: float = key(0.9, "Decay of AdamW's first moment.")
    beta2: float = key(0.999, "Decay of AdamW's second moment.")
    multipliers: tuple[tuple[str, float], ...] = key(
        ((".*", 1.0),),
        "Learning-rate factors, as (pattern, factor) pairs; each parameter path must match exactly one pattern.",
    )
    frozen: tuple[str, ...] = key((), "Patterns of parameter paths that are not trained, such as `token_embedder/`.")

    def __post_init__(self):
        check_patterns("optimizer.frozen", self.frozen)
        check_patterns("optimizer.multipliers", (pattern for pattern, _ in self.multipliers))

    def fitted(self, steps: int) -> "OptimizerSettings":
        """Returns settings with a warm-up that is shorter than the run: a tenth of it if it is too long or -1."""
        if 0 <= self.warmup_steps < steps:
            return self
        return dataclasses.replace(self, warmup_steps=min(steps // 10, max(self.warmup_steps, 100)))


def make_schedule(settings: OptimizerSettings, steps: int) -> Callable[[jax.Array], jax.Array]:
    """Returns the learning-rate schedule of a run of `steps` steps."""
    warmup = settings.warmup_steps
    if warmup >= steps > 0:
        raise EndxError(f"optimizer.warmup_steps is {warmup}, but the run has {steps} steps; set it below that")
    if settings.schedule == "linear":
        decay = optax.linear_schedule(settings.learning_rate, 0.0, steps - warmup)
    elif settings.schedule == "cosine":
        decay = optax.cosine_decay_schedule(settings.learning_rate, steps - warmup)
    else:
        decay = optax.constant_schedule(settings.learning_rate)
    if not warmup:
        return decay
    # At step t of w warm-up steps the rate is (t + 1) / (w + 1) of the peak, so the first update has a rate above zero.
    rise = optax.linear_schedule(settings.learning_rate / (warmup + 1), settings.learning_rate, warmup)
    return optax.join_schedules([rise, decay], [warmup])


def joined_norm(tree) -> jax.Array:
    """Returns the norm of all entries of a tree as `optax.tree.norm`, by a few kernels instead of one or two a leaf.

    The leaves are joined to one array, so none may be split over devices.
    """
    return optax.tree.norm(jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)]))


def make_optimizer(
    settings: OptimizerSettings, steps: int, params, joined: bool = False
) -> optax.GradientTransformation:
    """Makes the optax transformation: clipping, optimizer, weight decay, schedule and multipliers.

    Args:
      settings: settings of the optimizer.
      steps: length of the schedule in steps.
      params: tree of the trained parameters or their shapes; each path matches one pattern of the multipliers.
      joined: clips by `joined_norm`, for GPUs; no parameter is split over devices.
    """
    factors = _match_multipliers(settings.multipliers, params)
    schedule = make_schedule(settings, steps)
    parts = []
    if settings.clip_norm > 0:
        parts.append(_clip_joined(settings.clip_norm) if joined else optax.clip_by_global_norm(settings.clip_norm))
    if settings.name == "adamw":
        parts.append(optax.scale_by_adam(settings.beta1, settings.beta2))
    elif settings.name == "adafactor":
        parts += _adafactor()
    if settings.name != "sgd":
        parts.append(optax.add_decayed_weights(settings.weight_decay, mask=_decays))
    parts.append(optax.scale_by_learning_rate(schedule))
    parts.append(optax.stateless(lambda updates, _: jax.tree.map(lambda u, f: u * f, updates, factors)))
    return optax.chain(*parts)


def _clip_joined(most: float) -> optax.GradientTransformation:
    """Returns `optax.clip_by_global_norm` with the norm of `joined_norm`.

    XLA for GPUs updates parameters of equal size in one kernel if their updates read the same array, which a scalar is
    not. So all read both norms from one, and the barrier keeps XLA from passing them as scalars.
    """

    def clip(gradients, _):
        norms = jax.lax.optimization_barrier(jnp.stack([joined_norm(gradients), most]))
        return jax.tree.map(lambda g: jax.lax.select(norms[0] < norms[1], g, g / norms[0] * norms[1]), gradients)

    return optax.stateless(clip)


def _adafactor() -> list[optax.GradientTransformation]:
    """Returns Adafactor (Shazeer & Stern 2018) without learning rate, sign, momentum and weight decay."""
    return [
        optax.scale_by_factored_rms(
            decay_rate=DECAY_RATE, min_dim_size_to_factor=MIN_FACTORED_WIDTH, epsilon=SQUARED_GRADIENT_EPSILON
        ),
        optax.clip_by_block_rms(CLIPPING_THRESHOLD),
        optax.scale_by_param_block_rms(MIN_PARAMETER_SCALE),
    ]


def _decays(params):
    """Marks matrices and tables, which have weight decay, by name, since some biases are two-dimensional too."""
    return map_paths(lambda path, _: path.endswith(("kernel", "embedding")), params)


def _match_multipliers(multipliers, params):
    """Returns the learning-rate factor of each parameter, as a tree like `params`."""

    def factor_of(path: str, _) -> float:
        matches = [(pattern, factor) for pattern, factor in multipliers if re.search(pattern, path)]
        if len(matches) != 1:
            patterns = "none" if not matches else " and ".join(repr(pattern) for pattern, _ in matches)
            raise EndxError(f"optimizer.multipliers must match every parameter exactly once; {path} matches {patterns}")
        return float(matches[0][1])

    return map_paths(factor_of, params)
