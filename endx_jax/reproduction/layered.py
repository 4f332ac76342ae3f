"""Rows of single layers: what a layer's pooled vectors retrieve (RR, Tables 2 to 8), as `endx layers` reports it."""

import json
import pathlib
from collections.abc import Mapping

from endx_jax.data.records import RetrievalSet
from endx_jax.data.settings import PARAGRAPHS, DataSettings
from endx_jax.data.tokenization import Preparation, Tokenizer
from endx_jax.errors import EndxError
from endx_jax.experiment.layer_files import pool_file
from endx_jax.experiment.layer_report import Report, read_sets
from endx_jax.experiment.layers import pool_model
from endx_jax.export.towers import Towers
from endx_jax.loading import load
from endx_jax.loading.folder import LONGEST
from endx_jax.models.dual_encoder import SIDES
from endx_jax.pretrained import load_tokens
from endx_jax.pretrained.finished import token_table_towers
from endx_jax.pretrained.token_vectors import is_token_vectors
from endx_jax.reproduction.outcome import Outcome
from endx_jax.reproduction.plan import Options, slug
from endx_jax.reproduction.table import Row
from endx_jax.retrieval.layers import PooledLayers
from endx_jax.retrieval.vector_cache import VectorCache

# Held-out questions by which mixtures are chosen, and the parts that their weights are cut into.
CHOSEN_BY, PARTS = 2000, 4


def measure(row: Row, options: Options) -> Outcome:
    """The measures of a row's layer; all layers of a model are reported at once and kept for other rows."""
    short = row.short if options.budget else {}
    model, system = options.model(short.get("model", row.model)), short.get("system", row.system)
    folder = options.output / "layers" / slug(model)
    try:
        found = _report(model, folder, options.place_of(row.data))
    except EndxError as reason:
        return Outcome(row, why=str(reason))
    systems = {entry["system"]: entry["metrics"][row.part] for entry in found["systems"]}
    values = tuple(100 * systems[system][name] for name in row.measures)
    return Outcome(row, (values,), differs=short.get("differs", ""), runs=(f"{folder}#{system}",))


def _report(model: str, folder: pathlib.Path, data: str) -> dict:
    """The contents of `layers.json`, made where it is not there."""
    file = folder / "layers.json"
    if not file.exists():
        settings = DataSettings(path=data, pool=PARAGRAPHS, validation_fraction=0.1)
        sets = read_sets(settings, most=CHOSEN_BY)
        Report(model, *pooled_layers(model, sets, cache=settings.cache), parts=PARTS).write(folder)
    return json.loads(file.read_text(encoding="utf-8"))


def pooled_layers(
    model: str, sets: Mapping[str, RetrievalSet], *, cache: str, length: int | None = None, token_table: bool = False
) -> tuple[tuple[str, ...], dict[str, PooledLayers]]:
    """The layers' names, and every text of the sets pooled in each of them.

    Args:
      model: a pretrained folder or name, a file of word vectors, the workdir of a run, or a file of token vectors.
      sets: by name.
      cache: folder for the pooled vectors; empty: none.
      length: tokens a text is cut to; None for the model's.
      token_table: whether to take the token table alone.
    """
    file = pathlib.Path(model).expanduser()
    if is_token_vectors(file):
        return pool_file(file, sets)
    towers, params, preparations = (_token_table if token_table else _whole)(model)
    return pool_model(towers, params, preparations, sets, VectorCache(cache) if cache else None, length=length)


def _whole(name: str):
    """Towers, parameters and preparations of a model."""
    towers = Towers.of(load(name))
    return towers.dual_encoder, towers.params, towers.preparations


def _token_table(name: str):
    """The same of a pretrained model's token table alone."""
    tokens = load_tokens(name)
    return *token_table_towers(tokens), dict.fromkeys(SIDES, Preparation(Tokenizer(tokens.folder), LONGEST))
