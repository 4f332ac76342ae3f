"""Loading of embedding models: the model of a run, an export, a Hugging Face or sentence-transformers folder."""

import os
import pathlib
from collections.abc import Mapping

import jax
from jax.sharding import Mesh

from endx_jax import json_files, pretrained
from endx_jax.buckets import NOT_OF_MODEL, local_copy
from endx_jax.data.tokenization import TextOptions, TextProcessor, Tokenizer
from endx_jax.errors import EndxError, nearest
from endx_jax.files import sha256_of
from endx_jax.inference.embedding_model import EmbeddingModel, ModelSource
from endx_jax.inference.encode import TextEncoder
from endx_jax.inference.manifest import (
    MANIFEST,
    MODEL,
    NO_EMBEDDINGS,
    WEIGHTS,
    ModelManifest,
    model_folder,
    read_manifest,
)
from endx_jax.json_files import shown
from endx_jax.models import products
from endx_jax.models.dual_encoder import SIDES, DualEncoder
from endx_jax.models.heads import HEADS, MakeHead
from endx_jax.models.sharding_hints import platform
from endx_jax.parallel.agreement import broadcast
from endx_jax.parallel.environment import keep_programs
from endx_jax.parallel.mesh import MeshSettings, make_mesh
from endx_jax.parallel.sharding import parameter_paths, put, state_shardings
from endx_jax.pretrained import PretrainedEncoder
from endx_jax.pretrained.checkpoint import architecture_of
from endx_jax.pretrained.sentence_transformers import read_usage, scores_pairs
from endx_jax.pretrained.settings import ModelSettings
from endx_jax.pretrained.stored import StoredArray, open_file
from endx_jax.pretrained.towers import build_dual_encoder, encoder_config, finished_towers
from endx_jax.settings import from_mapping

# Maximum lengths in tokens for pretrained encoders that have no limit of their own, and for static token vectors, which
# sentence-transformers does not truncate; the token vectors of longer texts would take gigabytes.
LONGEST, LONGEST_STATIC = 512, 1 << 17

# Seconds of compilation from which on a program is kept, also one that is not ours: those of encoders take longer.
KEPT_FROM = 0.1


def load(
    path_or_name: str | os.PathLike, *, mesh: Mesh | None = None, product_dtype: str | None = None
) -> EmbeddingModel:
    """Loads an embedding model.

    The compiled programs are kept in `~/.cache/endx_jax/xla`, unless JAX has a compilation cache already, or the
    variable `JAX_ENABLE_COMPILATION_CACHE` is `false`.

    Args:
      path_or_name: the workdir of a run whose training has ended, or its `model` folder; or a Hugging Face or
        sentence-transformers folder, such as an export, all of them local or in a bucket (`gs://`, `s3://`); or a model
        name, which `endx_jax.pretrained.locate` looks up among the bundled models and on the Hugging Face Hub.
      mesh: device mesh over which batches are split, and parameters by its axes `fsdp` and `tensor`; None for the
        devices of this process, each with all parameters. Weights are read part by part, and no process holds parts of
        other processes. If the mesh spans several, each of them must encode the same texts and gets all embeddings.
      product_dtype: data type of the factors of linear layers' products on a CPU, as `model.product_dtype`: float32,
        bfloat16 or auto; None for that of the run, or float32, unless a `models.products.product_dtype` is set.

    Raises:
      EndxError: there is no such model, it is incomplete or damaged, or the data type is unknown.

    Examples:
      >>> model = endx_jax.load("all-MiniLM-L6-v2")
      >>> questions = model.encode_query(["How do I send an email?", "How do I reshape an array?"])
      >>> answers = model.encode_document(["smtplib sends e-mail.", "numpy.reshape changes shapes."])
      >>> print(model.similarity(questions, answers).argmax(axis=1))
      [0 1]
    """
    name = str(path_or_name)
    if not isinstance(path_or_name, str | os.PathLike) or not name.strip():
        raise EndxError(f"path_or_name is {shown(path_or_name)}; pass a folder or the name of a model")
    keep_programs(KEPT_FROM)
    mesh = mesh or make_mesh(MeshSettings(), jax.local_devices())
    with products.product_dtype(product_dtype) as factors:
        if factors == products.AUTO and mesh.is_multi_process:  # whose CPUs may differ
            products.set_product_dtype(broadcast(lambda: products.chosen_product_dtype(factors), "product-dtype"))
        return _load(path_or_name, mesh)


def _load(path_or_name: str | os.PathLike, mesh: Mesh) -> EmbeddingModel:
    name = str(path_or_name)
    path = local_copy(name, skip=NOT_OF_MODEL)
    if isinstance(path_or_name, os.PathLike) and not path.exists():
        raise EndxError(f"{name} does not exist; give the workdir of a run, an export, or a folder of a model")
    folder = model_folder(path)
    if folder is None:
        return _load_pretrained(name, mesh)
    workdir = folder.absolute().parent if folder == path else path
    is_run = folder != path or (folder.absolute().name == MODEL and (workdir / "data.json").is_file())
    return _load_trained(name, folder, mesh, workdir=workdir if is_run else None)


def _load_pretrained(name: str, mesh: Mesh) -> EmbeddingModel:
    """Loads a pretrained folder, by a path or name of `pretrained.locate`; equal parameters of the sides are shared."""
    folder = pretrained.locate(name)
    if scores_pairs(folder):
        if contents := json_files.read_optional(folder / "config.json"):
            architecture_of(contents, folder)  # raises for a family that is not supported, not even as a reranker
        raise EndxError(NO_EMBEDDINGS.format(folder))
    sources, usage = pretrained.load_sides(folder), read_usage(folder)
    folders = {side: source.folder for side, source in sources.items()}
    options = {side: TextOptions(_length(source), usage.prompt(side)) for side, source in sources.items()}
    processors = text_processors(sources, folders, options)
    dual_encoder, params = finished_towers(sources, platform(mesh), processors)
    encoder = TextEncoder(dual_encoder, processors, mesh)
    if usage.truncate_dim is not None:
        json_files.as_whole(usage.truncate_dim, f"{name}: 'truncate_dim'", least=1, most=encoder.width(params))
    return EmbeddingModel(
        name,
        encoder,
        put(params, state_shardings(params, mesh)),
        cosine=usage.cosine or (dual_encoder.by_token and dual_encoder.answer.normalize),
        source=ModelSource(sources),
        named_prompts=usage.prompts,
        default_prompt=usage.default_prompt,
        truncate_dim=usage.truncate_dim,
        token_pooling=sources["answer"].head.token_pooling,
    )


def _length(source: PretrainedEncoder) -> int:
    """Returns the maximum length in tokens that the folder and the encoder allow."""
    limits = [limit for limit in (source.head.max_length, source.config.positions) if limit]
    return min(limits, default=LONGEST if source.config.layers else LONGEST_STATIC)


def _load_trained(name: str, folder: pathlib.Path, mesh: Mesh, workdir: pathlib.Path | None) -> EmbeddingModel:
    """Loads the model of a folder that `save_model` wrote, in the workdir of its run or copied from one."""
    manifest, where = read_manifest(folder), f"{folder / MANIFEST}: 'towers'"
    settings = from_mapping(ModelSettings, json_files.as_object(manifest.towers, where), where)
    read = pretrained.load_tokens if settings.encoder else pretrained.load_encoder
    sources = {side: read(str(folder / stated.folder)) for side, stated in manifest.sides.items()}
    for side, source in sources.items():
        length, positions = manifest.sides[side].length, encoder_config(settings, source).positions
        if positions is not None and length > positions:
            raise EndxError(f"{folder / MANIFEST}: {side} has length {length}, its encoder {positions} positions")
    folders = {side: source.folder for side, source in sources.items()}
    processors = text_processors(sources, folders, manifest.sides, saved=True)
    dual_encoder = build_dual_encoder(settings, sources, platform(mesh), _make_head(manifest, folder), processors)
    params = _as_tree(dual_encoder, read_params(folder, manifest), folder)
    return EmbeddingModel(
        name,
        TextEncoder(dual_encoder, processors, mesh),
        put(params, state_shardings(params, mesh)),
        cosine=manifest.cosine,
        source=ModelSource(sources, workdir),
        named_prompts=manifest.prompts,
        default_prompt=manifest.default_prompt,
        teacher=manifest.teacher,
    )


def _make_head(manifest: ModelManifest, folder: pathlib.Path) -> MakeHead | None:
    """Returns the function that makes the towers' heads, from the method in the description; None without a method."""
    if manifest.method is None:
        return None
    where = f"{folder / MANIFEST}: 'method'"
    name = json_files.text_at(manifest.method, "name", where)
    if name not in HEADS:
        raise EndxError(
            f"{where} is {json_files.shown(name)}, and the methods with heads are {', '.join(HEADS)}"
            f"{nearest(name, HEADS)}: call endx_jax.methods.register(METHOD) of your own method first"
        )
    settings = json_files.as_object(manifest.method.get("settings"), f"{where}: 'settings'")
    return HEADS[name](settings, f"{where}: settings")


def read_params(folder: pathlib.Path, manifest: ModelManifest) -> dict[str, StoredArray]:
    """Returns the parameters of a model folder by path; their values are read on use.

    Raises:
      EndxError: the file is missing or damaged.
    """
    file = folder / WEIGHTS
    if not file.is_file() or sha256_of(file) != manifest.weights_sha256:
        raise EndxError(f"{file} is missing, or its sha256 is not the one in {MANIFEST}: copy the model again")
    return open_file(file)


def model_of_run(workdir: pathlib.Path) -> tuple[ModelManifest, dict[str, StoredArray]]:
    """Returns the description of another run's model, and its parameters by path; their values are read on use.

    Raises:
      EndxError: the run has no model, or it is damaged.
    """
    folder = model_folder(workdir)
    if not folder:
        raise EndxError(f"{workdir} holds no run: it has no model of endx_jax in a folder {MODEL!r}")
    manifest = read_manifest(folder)
    return manifest, read_params(folder, manifest)


def _as_tree(dual_encoder: DualEncoder, params: Mapping[str, StoredArray], folder: pathlib.Path) -> dict:
    """Returns parameters by path as the parameter tree of the dual encoder."""
    tree = jax.eval_shape(dual_encoder.init, jax.random.key(0))
    expected = parameter_paths(tree)
    for path in [*expected, *params]:
        shapes = [leaves[path].shape if path in leaves else "none" for leaves in (expected, params)]
        if shapes[0] != shapes[1]:
            raise EndxError(
                f"{folder / WEIGHTS} does not match {MANIFEST}: {path} has the shape {shapes[1]} instead of "
                f"{shapes[0]}; copy the model again"
            )
    return jax.tree.unflatten(jax.tree.structure(tree), [params[path] for path in expected])


def text_processors(
    sources: Mapping[str, PretrainedEncoder],
    tokenizers: Mapping[str, str | pathlib.Path],
    options: Mapping[str, TextOptions],
    *,
    saved: bool = False,
) -> dict[str, TextProcessor]:
    """Returns the text processors of the sides; the keys of all mappings are sides.

    Args:
      sources: pretrained encoders.
      tokenizers: folders of the tokenizers.
      options: prompt, maximum length and other options of the texts.
      saved: the tokenizers are those of a trained model, which end texts with EOS if they did so in training.

    Raises:
      EndxError: a tokenizer is missing, or has ids that the encoder's token table does not have.
    """
    encoders = {tokenizers[side]: source for side, source in sources.items()}
    # Prefixes of late interaction, which are tokens.
    prompts = tuple(dict.fromkeys(options[side].prompt for side in SIDES if options[side].prompt))
    loaded = {
        folder: Tokenizer(
            folder,
            append_eos=source.append_eos and not saved,
            rows=source.config.vocab_size,
            whole=prompts if source.head.tokens else (),
        )
        for folder, source in encoders.items()
    }
    for side, source in sources.items():
        loaded[tokenizers[side]].check_matches(source.config.vocab_size, source.folder)
    return {side: TextProcessor(loaded[tokenizers[side]], **options[side].stated()) for side in SIDES}
