"""StableHLO export with `jax.export`: one program for CPU, CUDA and TPU, any batch size and any length.

Weights are arguments, stored in a safetensors file, so towers of one architecture share a program. Their names are the
parameters' paths, `shared/...`, `question/...` and `answer/...`. Matrix products are in full float32 on every device.
`encode.py` does not need endx_jax.
"""

import contextlib
import dataclasses
import importlib.util
import pathlib
import shutil
from collections.abc import Callable, Iterator

import flax.traverse_util
import jax
import jax.numpy as jnp

from endx_jax.batch import Tokens
from endx_jax.errors import EndxError
from endx_jax.export.towers import write_json, write_tensors, write_tokenizer
from endx_jax.files import sha256_of
from endx_jax.inference import EmbeddingModel
from endx_jax.inference.manifest import MANIFEST, STABLEHLO, ModelManifest, SideManifest
from endx_jax.models.dual_encoder import SIDES
from endx_jax.models.static import NoEncoder
from endx_jax.models.tower import Tower
from endx_jax.pretrained.weights import SINGLE_FILE, paths
from endx_jax.settings import require

PLATFORMS = ("cpu", "cuda", "tpu")
EXAMPLE = pathlib.Path(__file__).parent / "scripts" / "encode_with_jax.py"


def write_stablehlo(folder: pathlib.Path, model: EmbeddingModel) -> None:
    """Writes a model of `export.towers.plain` into `folder`."""
    require(not model.by_token, f"{model.name} has an embedding for each token: use --format=sentence-transformers")
    towers, processors = model.encoder.model, model.encoder.processors
    weights_sha256 = write_tensors(folder / SINGLE_FILE, paths(model.params))
    unknown = {side: processors[side].tokenizer.unknown_id for side in SIDES}
    one_program = towers.question == towers.answer and unknown["question"] == unknown["answer"]
    one_tokenizer = processors["question"].tokenizer.same_ids(processors["answer"].tokenizer)
    sides = {}
    for side in SIDES:
        program = folder / ("tower.stablehlo" if one_program else f"tower_{side}.stablehlo")
        if not program.exists():
            params = towers.tower_params(model.params, side)
            program.write_bytes(serialized(towers.tower(side), params, unknown[side]))
        sides[side] = SideManifest(
            folder="tokenizer" if one_tokenizer else f"tokenizer_{side}",
            **processors[side].stated(),
            program=program.name,
            sha256=sha256_of(program),
        )
        tokenizer = folder / sides[side].folder
        write_tokenizer(tokenizer, model, side, processors[side].length)
        if not (tokenizer / "tokenizer.json").is_file():
            raise EndxError(
                f"the {side}s' tokenizer is written in Python and has no tokenizer.json, which "
                f"--format={STABLEHLO} needs: use --format=sentence-transformers"
            )
    about = ModelManifest(
        STABLEHLO,
        model.name,
        model.width,
        towers.question.normalize,
        model.cosine,
        sides,
        identity=model.identity,
        teacher=model.teacher,
        weights_sha256=weights_sha256,
    )
    write_json(folder / MANIFEST, dataclasses.asdict(about))
    shutil.copyfile(EXAMPLE, folder / "encode.py")


def serialized(tower: Tower, params: dict, unknown_id: int | None) -> bytearray:
    """Exports a tower as `(params by name, ids int32 [b, l], mask bool [b, l]) -> float32 [b, E]`.

    Args:
      tower: a tower in float32.
      params: its parameters, by group.
      unknown_id: id that replaces ids outside the token table, as `Tokenizer.unknown_id`; None: they give NaN.
    """
    if importlib.util.find_spec("flatbuffers") is None:  # an optional dependency of jax.export
        raise EndxError(f"--format={STABLEHLO} needs another package: pip install flatbuffers")
    from jax import export

    positions = None if isinstance(tower.encoder, NoEncoder) else tower.encoder.config.positions
    bounds = ("b >= 1", "l >= 1", *(() if positions is None else (f"l <= {positions}",)))
    shape = export.symbolic_shape("b, l", constraints=bounds)
    like = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in paths(params).items()}
    ids, mask = (jax.ShapeDtypeStruct(shape, dtype) for dtype in (jnp.int32, jnp.bool_))
    # By default, accelerators round the float32 factors of matrix products.
    with jax.default_matmul_precision("highest"), _without_source_locations():
        return export.export(jax.jit(_program(tower, unknown_id)), platforms=PLATFORMS)(like, ids, mask).serialize()


@contextlib.contextmanager
def _without_source_locations() -> Iterator[None]:
    """Keeps local source paths out of programs."""
    name = "jax_traceback_in_locations_limit"
    before = getattr(jax.config, name)
    jax.config.update(name, 0)
    try:
        yield
    finally:
        jax.config.update(name, before)


def _program(tower: Tower, unknown_id: int | None) -> Callable:
    def encode(params, ids, mask):
        if unknown_id is not None:
            ids = jnp.where(ids < tower.token_embedder.vocab_size, ids, unknown_id)
        variables = {"params": flax.traverse_util.unflatten_dict(params, sep="/")}
        return tower.apply(variables, Tokens(ids, mask))

    return encode
