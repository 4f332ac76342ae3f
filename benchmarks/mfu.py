"""Model FLOP utilization of a training step: `python benchmarks/mfu.py [--models=t5-base ...]`.

Trains towers of published shapes, with random weights and the optimizer of their recipe, on random tokens without
padding. Model FLOPs are those of PaLM, appendix B: the matrix products of the forward pass, and twice as many for the
backward pass; recomputation does not count. They are divided by the rate of a large matrix product measured here in the
same precision, and by the peak of the device's data sheet if known.

With --topology=h200:1 the steps are compiled for a device that is not here; the table has their memory, roofline and
kernels, and the processor time of the compiler. Of a TPU, the roofline is the estimate of its compiler, and no kernels
are counted.

Prints a table and, with --json=FILE, writes it with the machine and the versions.
"""

import argparse
import dataclasses
import time
from collections.abc import Sequence

import common
import jax
import jax.numpy as jnp
import numpy as np

from endx_jax.batch import Batch, Tokens
from endx_jax.encoders.bert import BertConfig
from endx_jax.encoders.modernbert import ModernBertConfig
from endx_jax.encoders.t5 import T5Config
from endx_jax.methods.dual import DualObjective, DualSettings
from endx_jax.models.dual_encoder import DualEncoder
from endx_jax.models.sharding_hints import platform
from endx_jax.models.tower import Projection, TokenEmbedder, Tower
from endx_jax.models.transformer import TransformerEncoder
from endx_jax.models.transformer_config import TransformerConfig
from endx_jax.parallel import MeshSettings, make_mesh
from endx_jax.parallel.sharding import state_shardings
from endx_jax.planning.chips import chip_of
from endx_jax.planning.compiled import compile_traced
from endx_jax.planning.roofline import LAUNCH, LAUNCHES
from endx_jax.planning.topologies import devices_of, topology_named
from endx_jax.training.compilation import abstract_batch
from endx_jax.training.optimizer import OptimizerSettings, make_optimizer, make_schedule
from endx_jax.training.step import TrainState, make_train_step

STEPS = 100
# Peaks of devices that are not among the chips of `endx plan`.
OTHER_PEAKS = {"NVIDIA H100 PCIe": 756e12}


@dataclasses.dataclass(frozen=True)
class Shape:
    """A tower to measure.

    Attributes:
      config: config of the encoder.
      projection: width E after pooling; 0: none.
      optimizer: optimizer of its recipe.
      pairs: pairs per step, whose activations fit on a GPU of 40 GB in bfloat16.
    """

    config: TransformerConfig
    projection: int
    optimizer: str
    pairs: int

    def tower(self, dtype: jnp.dtype) -> Tower:
        """Returns the tower with mean pooling and unit norm."""
        config = dataclasses.replace(self.config, dropout=0.0, attention_dropout=0.0)
        return Tower(
            token_embedder=TokenEmbedder(config.vocab_size, config.width, dtype, config.initializer_range),
            encoder=TransformerEncoder(config, dtype),
            projection=Projection(self.projection) if self.projection else None,
        )


def _t5(width: int, mlp_width: int, layers: int, heads: int, pairs: int) -> Shape:
    sizes = {"width": width, "layers": layers, "heads": heads, "head_width": 64, "mlp_width": mlp_width}
    return Shape(T5Config(vocab_size=32128, **sizes), 768, "adafactor", pairs)


MODERNBERT = ModernBertConfig.from_hugging_face({
    "vocab_size": 50368, "hidden_size": 768, "num_hidden_layers": 22, "num_attention_heads": 12,
    "intermediate_size": 1152, "max_position_embeddings": 8192,
})  # fmt: skip
SHAPES = {
    "minilm": Shape(
        BertConfig(vocab_size=30522, width=384, layers=6, heads=12, mlp_width=1536, positions=512), 0, "adamw", 256
    ),
    "bert-base": Shape(
        BertConfig(vocab_size=30522, width=768, layers=12, heads=12, mlp_width=3072, positions=512), 0, "adamw", 128
    ),
    "modernbert-base": Shape(MODERNBERT, 0, "adamw", 128),
    "t5-small": _t5(512, 1024, 8, 6, 256),
    "t5-base": _t5(768, 2048, 12, 12, 128),
    "t5-large": _t5(1024, 2816, 24, 16, 48),
    "tiny": dataclasses.replace(_t5(32, 64, 1, 2, 8), projection=32),
}


def flops(shape: Shape, pairs: int, lengths: Sequence[int]) -> float:
    """Returns the model FLOPs of one step: three times those of the forward pass."""
    config = shape.config
    inner = config.heads * config.head
    weights = 4 * config.width * inner + (3 if config.gated else 2) * config.width * config.mlp_width
    forward = 0.0
    for length in lengths:
        a_layer = 2 * length * weights + 4 * length**2 * inner
        forward += pairs * (config.layers * a_layer + 2 * config.width * shape.projection)
    return 3 * (forward + 2 * pairs**2 * (shape.projection or config.width))


def peak_flops(device_kind: str) -> float | None:
    """Returns the peak rate of dense bfloat16 products of a device, FLOP/s; None for unknown devices."""
    other = next((peak for kind, peak in OTHER_PEAKS.items() if device_kind.startswith(kind)), None)
    chip = chip_of(device_kind)
    return other or (chip.flops if chip else None)


def random_batch(shape: Shape, pairs: int, lengths: tuple[int, int], seed: int) -> Batch:
    """Draws distinct pairs of random tokens without padding."""
    draw = np.random.default_rng(seed)

    def tokens(length: int) -> Tokens:
        ids = draw.integers(1, shape.config.vocab_size, (pairs, length), np.int32)
        return Tokens(ids=jnp.asarray(ids), mask=jnp.ones((pairs, length), bool))

    row = jnp.arange(pairs, dtype=jnp.int32)
    question, answer = map(tokens, lengths)
    return Batch(question=question, answer=answer, question_id=row, answer_id=row, positive_ids=row[:, None])


def make_step(shape: Shape, dtype: jnp.dtype, seed: int, device: jax.Device | None = None):
    """Returns (state, train_step) of a Siamese dual encoder without dropout; for an absent device, of shapes."""
    tower = shape.tower(dtype)
    objective = DualObjective(DualEncoder(tower, tower), DualSettings())
    settings = OptimizerSettings(name=shape.optimizer)
    init = jax.jit(lambda key: objective.init(key, objective.model.init(key)))
    params = (init if device is None else init.eval_shape)(jax.random.key(seed))
    mesh = make_mesh(MeshSettings(), jax.devices()[:1] if device is None else [device])
    joined = platform(mesh) == "gpu"
    optimizer = make_optimizer(settings, STEPS, params, joined)
    shape_of_state = jax.eval_shape(lambda p: TrainState.create(p, optimizer), params)
    shardings = state_shardings(shape_of_state, mesh)
    if device is None:
        state = jax.jit(lambda p: TrainState.create(p, optimizer), out_shardings=shardings)(params)
    else:
        state = jax.tree.map(lambda x, y: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=y), shape_of_state, shardings)
    schedule = make_schedule(settings, STEPS)
    return state, make_train_step(objective, optimizer, schedule, seed=seed, shardings=shardings, joined=joined)


def measure(name: str, options: argparse.Namespace, measured_peak: float) -> dict:
    """Returns the table row of one shape."""
    shape, dtype = SHAPES[name], jnp.dtype(options.dtype)
    pairs, lengths = options.batch or shape.pairs, (options.question_length, options.answer_length)
    batch = random_batch(shape, pairs, lengths, options.seed)
    state, step = make_step(shape, dtype, options.seed)

    def run() -> None:
        nonlocal state
        state, _ = step(state, batch)
        jax.block_until_ready(state)

    seconds = common.median(common.alternate({name: run}, options.repeats, warmup=2)[name])
    rate = flops(shape, pairs, lengths) / seconds
    datasheet = peak_flops(jax.devices()[0].device_kind) if dtype == jnp.bfloat16 else None
    return {
        "model": name,
        "parameters_m": sum(leaf.size for leaf in jax.tree.leaves(state.params)) / 1e6,
        "batch": pairs,
        "lengths": f"{lengths[0]}+{lengths[1]}",
        "dtype": options.dtype,
        "seconds": seconds,
        "pairs_per_second": pairs / seconds,
        "tokens_per_second": pairs * sum(lengths) / seconds,
        "model_tflops_per_second": rate / 1e12,
        "of_measured_product": rate / measured_peak,
        "of_data_sheet": rate / datasheet if datasheet else "",
    }


def compile_only(name: str, options: argparse.Namespace) -> dict:
    """Returns the table row of one shape, compiled for the first device of a topology."""
    (device, *_), shape = devices_of(topology_named(options.topology)), SHAPES[name]
    pairs, lengths = options.batch or shape.pairs, (options.question_length, options.answer_length)
    state, step = make_step(shape, jnp.dtype(options.dtype), options.seed, device)
    mesh = make_mesh(MeshSettings(), [device])
    batch = abstract_batch(random_batch(shape, pairs, lengths, options.seed), mesh)
    with jax.set_mesh(mesh):
        traced = step.trace(state, batch)
        start = time.process_time()
        program = compile_traced(traced, (state, batch))
        seconds = time.process_time() - start
    return {
        "model": name,
        "batch": pairs,
        "lengths": f"{lengths[0]}+{lengths[1]}",
        "dtype": options.dtype,
        "temporaries_gb": program.temporaries / 1e9,
        "peak_gb": program.peak / 1e9,
        "roofline_ms": 1000 * (program.estimate or sum(program.roofline.values())),
        "kernels": round(program.roofline.get(LAUNCHES, 0) / LAUNCH),
        "compiler_cpu_s": seconds,
    }


def measure_product(size: int, dtype: jnp.dtype, repeats: int) -> float:
    """Returns the FLOP/s of a square matrix product, the maximum of the repeats."""
    left, right = (jax.random.normal(key, (size, size), dtype) for key in jax.random.split(jax.random.key(0)))
    product = jax.jit(jnp.matmul)
    seconds = common.alternate({"product": lambda: jax.block_until_ready(product(left, right))}, repeats)["product"]
    return 2 * size**3 / min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--models", nargs="+", choices=SHAPES, default=["minilm", "bert-base", "t5-small", "t5-base", "t5-large"]
    )
    parser.add_argument("--batch", type=int, default=0, help="pairs per step; 0: as many as fit on a GPU of 40 GB")
    parser.add_argument("--question_length", type=int, default=64)
    parser.add_argument("--answer_length", type=int, default=256)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--product", type=int, default=8192, help="rows and columns of the matrix product")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", default="")
    parser.add_argument("--topology", default="", help="compile for a topology such as h200:1, and run nothing")
    options = parser.parse_args()
    if options.topology:
        results = [compile_only(name, options) for name in options.models]
        print(common.table(results))
        return common.write(options.json, vars(options), results)
    peak = measure_product(options.product, jnp.dtype(options.dtype), max(options.repeats, 10))
    print(f"a product of {options.product} x {options.product} in {options.dtype}: {peak / 1e12:.4g} TFLOP/s")
    results = [measure(name, options, peak) for name in options.models]
    print(common.table(results))
    common.write(options.json, vars(options), results, measured_product_tflops_per_second=peak / 1e12)


if __name__ == "__main__":
    main()
