"""Kinds of rows: each measures one row of a table, `(row, options, budget) -> Outcome`.

A row whose data or weights are missing gives an outcome without values that says why.
"""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable

import numpy as np

from endx_jax import json_files
from endx_jax.data.corpus import read_corpus
from endx_jax.data.records import Pools, RetrievalSet
from endx_jax.data.relevance import read_answered
from endx_jax.data.settings import PARAGRAPHS, DataSettings
from endx_jax.data.splits import of_few_paragraphs, with_many_questions
from endx_jax.errors import EndxError
from endx_jax.experiment import workdir as workdirs
from endx_jax.experiment.comparison import compare, read_per_question
from endx_jax.experiment.data import counts_of, paths_of, pools, read_splits
from endx_jax.experiment.manifest import manifest
from endx_jax.experiment.model import load_pairs
from endx_jax.files import write_text
from endx_jax.inference import EmbeddingModel, load
from endx_jax.inference.encode import Output
from endx_jax.inference.saved import embeds
from endx_jax.parallel.console import say
from endx_jax.retrieval.corpus_encoding import Claims, begin, encode_shards, encoding_of, survey
from endx_jax.retrieval.evaluate import evaluate_set as ranked
from endx_jax.retrieval.index import Index
from endx_jax.retrieval.index_evaluation import evaluate_answered
from endx_jax.retrieval.index_model import IndexModel
from endx_jax.retrieval.rerank import evaluate_pairs
from endx_jax.retrieval.results import Results
from endx_jax.retrieval.systems import bm25_scores, evaluate_dense
from reproduction.layer_report import Report, read_sets
from reproduction.layers import pooled_layers
from reproduction.outcome import Outcome
from reproduction.runs import Budget, Options, measures_of_results, slug, trained
from reproduction.tables import Row

Metrics = dict[str, float]

# Questions of an answer from which it belongs to the subset of ENDX's Table 4.
FEWEST = 8
# Documents a shard of rows over a whole collection.
SHARD = 32768


def bm25(row: Row, options: Options, budget: Budget) -> Outcome:
    """Ranks the row's pool by stemmed BM25."""
    return _ranked(row, options, lambda pool: ranked(bm25_scores(Pools(all=pool))["all"], pool).metrics)


def pretrained(row: Row, options: Options, budget: Budget) -> Outcome:
    """Ranks the row's pool by a pretrained model without training."""

    def rank(pool: RetrievalSet) -> Metrics:
        model = load(options.model(row.model))
        return evaluate_dense(model.comparable, Pools(all=pool)).evaluations["all"].metrics

    return _ranked(row, options, rank)


def _ranked(row: Row, options: Options, rank: Callable[[RetrievalSet], Metrics]) -> Outcome:
    """Ranks the row's pool once for each place of the data."""
    folder = options.output / row.table / slug(row.row)
    file = folder / "measures.json"
    try:
        place = options.place_of(row.data)
        if not file.exists() or json_files.read(file).get("data") != place:
            records = read_splits(DataSettings(path=place, pool=row.pool, validation_fraction=0.0)).test
            pool = pools(records, DataSettings(pool=row.pool))[row.pool]
            contents = {"data": place, "manifest": manifest(0, {"sha256": ""}), "metrics": rank(pool)}
            write_text(file, json.dumps(contents, indent=1) + "\n")
    except EndxError as reason:
        return Outcome(row, why=str(reason))
    return Outcome(row, (_values(json_files.read(file)["metrics"], row),), runs=(str(folder),))


def counts(row: Row, options: Options, budget: Budget) -> Outcome:
    """Counts the row's train and test data, or the split that the row names."""
    pool = row.pool or "answers"
    try:
        paths = paths_of(DataSettings(path=options.place_of(row.data), pool=pool))
        found = {split: counts_of(path, pool) for split, path in zip(("train", "test"), paths, strict=True) if path}
    except EndxError as reason:
        return Outcome(row, why=str(reason))
    if pool == PARAGRAPHS:
        named = {"questions": found[row.split]["questions"], "paragraphs": found[row.split]["answers"]}
    else:
        named = {f"{split}_{name}": count for split, part in found.items() for name, count in part.items()}
    if missing := [name for name in row.measures if name not in named]:
        return Outcome(row, why=f"the data have no {', '.join(missing)}")
    return Outcome(row, (tuple(float(named[name]) for name in row.measures),))


def layers(row: Row, options: Options, budget: Budget) -> Outcome:
    """Measures one layer of a model; the report of all layers is kept for other rows."""
    short = row.short if options.budget else {}
    model, system = options.model(short.get("model", row.model)), short.get("system", row.system)
    folder = options.output / "layers" / slug(model)
    file = folder / "layers.json"
    try:
        data = options.place_of(row.data)
        if not file.exists():
            settings = DataSettings(path=data, pool=PARAGRAPHS, validation_fraction=0.1)
            sets = read_sets(settings)
            Report(model, *pooled_layers(model, sets, cache=settings.cache)).write(folder)
        systems = {entry["system"]: entry["metrics"][row.part] for entry in json_files.read(file)["systems"]}
    except EndxError as reason:
        return Outcome(row, why=str(reason))
    return Outcome(
        row, (_values(systems[system], row),), differs=short.get("differs", ""), runs=(f"{folder}#{system}",)
    )


def few(row: Row, options: Options, budget: Budget) -> Outcome:
    """Trains the row's system and ranks the 500 pairs of ENDX's Table 6, few enough for a pair classifier."""

    def measure(workdir: pathlib.Path) -> Metrics:
        settings = workdirs.read_config(workdir)
        pool = of_few_paragraphs(read_splits(DataSettings(path=settings.data.path, pool="answers")).test, 27, 500)
        if not embeds(workdir):
            return evaluate_pairs(load_pairs(workdir)(pool.questions, pool.candidates), None, pool, top=0).metrics
        return evaluate_dense(load(workdir).comparable, Pools(few=pool)).evaluations["few"].metrics

    return trained(row, options, budget, read=functools.partial(_kept, "few.json", measure))


def evaluated(row: Row, options: Options, budget: Budget) -> Outcome:
    """Trains the row's system and ranks the test set of the row's data, which the run itself does not use."""

    def read(workdir: pathlib.Path, row: Row) -> tuple[float, ...]:
        folder = results_folder(row, workdir)
        if not (folder / workdirs.RESULTS).exists():
            place = options.place_of(row.data)
            settings = DataSettings(path=place, pool="answers", validation_fraction=0.0)
            whole = Pools(answers=pools(read_splits(settings).test, settings)["answers"])
            results = Results(place, "test", Pools(whole | with_many_questions(whole.primary, (FEWEST,))))
            results.add_dense(row.system, evaluate_dense(load(workdir).comparable, results.pools))
            results.write(folder / workdirs.RESULTS, folder)
        return measures_of_results(folder, row)

    return trained(row, options, budget, read=read)


def results_folder(row: Row, workdir: pathlib.Path) -> pathlib.Path:
    """Returns the folder in a run's workdir, or the workdir, that holds the results of a row."""
    return workdir / workdirs.EVALUATION / slug(row.data) if KINDS[row.kind] is evaluated else workdir


def over_questions(outcome: Outcome, other: Outcome) -> dict[str, tuple[float, float]]:
    """Computes 95 % intervals of a row's gain over another on the same questions, by a paired bootstrap.

    Each question's value is its mean over the seeds, so that the interval covers the choice of questions only.

    Returns:
      (low, high) by measure, in per cent; empty if a run has no metrics of single questions.
    """
    means = []
    for each in (other, outcome):
        folders = [results_folder(each.row, pathlib.Path(run)) for run in each.runs]
        if not folders or not all((folder / workdirs.RESULTS).is_file() for folder in folders):
            return {}
        found = [read_per_question(folder, each.row.system, each.row.pool) for folder in folders]
        means.append(dataclasses.replace(found[0], values=np.mean([one.values for one in found], axis=0)))
    rows = {row["measure"]: (100 * row["low"], 100 * row["high"]) for row in compare(*means).rows()}
    return {measure: rows[measure] for measure in outcome.row.measures if measure in rows}


def collection(row: Row, options: Options, budget: Budget) -> Outcome:
    """Trains the row's system, encodes a collection such as Wikipedia's passages, and looks for answers (OpenNQ)."""

    def measure(workdir: pathlib.Path) -> Metrics:
        asked = read_answered(options.place_of(row.questions))
        folder = workdir / "collection"
        encode_collection(load(workdir), options.place_of(row.collection), folder)
        index = Index(folder)
        embeddings = IndexModel(index, workdir).encode_query([question.text for question in asked])
        return evaluate_answered(index.snapshot, embeddings, asked).metrics

    return trained(row, options, budget, read=functools.partial(_kept, "collection.json", measure))


def encode_collection(model: EmbeddingModel, corpus: str, folder: pathlib.Path) -> None:
    """Encodes a collection as `endx encode` does; resumes where that was interrupted."""
    read = functools.partial(read_corpus, corpus)
    found = survey(read())
    encoding = encoding_of(model, corpus, found, precision="float32", shard_size=SHARD)
    say(f"encoding the {found.documents:,} documents of {corpus}")
    encode = functools.partial(model.encoder, model.params, "answer", output=Output(model.width, model.cosine))
    with Claims(folder) as claims:
        if begin(folder, claims, encoding):
            for _ in encode_shards(folder, claims, encoding, read, encode):
                pass


def _kept(name: str, measure: Callable[[pathlib.Path], Metrics], workdir: pathlib.Path, row: Row) -> tuple[float, ...]:
    """Returns the row's measures from a file of the workdir, which is written at the first call."""
    file = workdir / name
    if not file.exists():
        write_text(file, json.dumps(measure(workdir), indent=1) + "\n")
    return _values(json_files.read(file), row)


def _values(metrics: Metrics, row: Row) -> tuple[float, ...]:
    """Returns the row's measures in per cent."""
    return tuple(100 * metrics[name] for name in row.measures)


KINDS: dict[str, Callable[[Row, Options, Budget], Outcome]] = {
    "train": trained,
    "few": few,
    "evaluated": evaluated,
    "collection": collection,
    "bm25": bm25,
    "pretrained": pretrained,
    "counts": counts,
    "layers": layers,
}
