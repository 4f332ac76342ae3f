"""Kinds of rows: each measures one row of a table, `(row, options) -> Outcome`."""

import dataclasses
import json
import pathlib
import time
from collections.abc import Callable, Sequence

import numpy as np

from endx_jax import json_files
from endx_jax.data.sets.records import Pools, RetrievalSet
from endx_jax.data.sets.splits import with_many_questions
from endx_jax.data.settings import PARAGRAPHS, DataSettings
from endx_jax.data.sources import data_of, pools, read_splits
from endx_jax.errors import EndxError
from endx_jax.experiment import workdir as workdirs
from endx_jax.experiment.comparison import read_per_question
from endx_jax.experiment.evaluate import evaluate
from endx_jax.experiment.saved_model import load_pair_scorer
from endx_jax.files import write_text
from endx_jax.index.corpus_encoding import encode_corpus
from endx_jax.inference import load
from endx_jax.inference.manifest import embeds
from endx_jax.metrics.significance import FEWEST
from endx_jax.parallel.console import say
from endx_jax.parallel.environment import keep_programs
from endx_jax.ranking.rerank import evaluate_pairs
from endx_jax.ranking.results import read_results, report
from endx_jax.ranking.systems import evaluate_dense
from reproduction.counts import counts_of, of_few_paragraphs
from reproduction.layers import measure_layers
from reproduction.outcome import Outcome, compared
from reproduction.runs import Options, measures_of_results, slug, trained
from reproduction.significance import interval_over_runs
from reproduction.tables import Row

Metrics = dict[str, float]

# The pool of ENDX's Table 6: pairs of the paragraphs with the most questions.
FEW_PARAGRAPHS, FEW_PAIRS = 27, 500
# Questions of an answer from which it belongs to the subset of ENDX's Table 4.
MANY_QUESTIONS = 8


def reproduce(rows: Sequence[Row], options: Options) -> list[Outcome]:
    """Computes rows in order, reusing finished runs, and returns an outcome for each."""
    if options.budget:
        options = dataclasses.replace(options, deadline=time.monotonic() + 60 * options.budget)
    outcomes = []
    for row in rows:
        outcomes.append(outcome_of(row, options))
        if outcomes[-1].why:
            say(f"{row.name}: {outcomes[-1].why}")
    for outcome, other in compared(outcomes):
        outcome.facts["interval"] = interval(outcome, other)
    return outcomes


def outcome_of(row: Row, options: Options) -> Outcome:
    """Computes a row; without data or weights the outcome has no values and says why."""
    if row.quoted and not (options.budget and row.short):
        return Outcome(row)
    try:
        return KINDS[row.kind](row, options)
    except EndxError as reason:
        return Outcome(row, why=str(reason))


def bm25(row: Row, options: Options) -> Outcome:
    """Ranks the row's pool by stemmed BM25."""
    pool = _pool(options.place_of(row.data), row.pool)
    return Outcome(row, (_values(report(Pools(all=pool), {})[0].evaluations["all"]["bm25"].metrics, row),))


def pretrained(row: Row, options: Options) -> Outcome:
    """Ranks the row's pool by a pretrained model without training."""
    pool = _pool(options.place_of(row.data), row.pool)
    model = load(options.weights.get(row.model, row.model))
    return Outcome(row, (_values(evaluate_dense(model.comparable, Pools(all=pool)).evaluations["all"].metrics, row),))


def _pool(place: str, name: str) -> RetrievalSet:
    """Returns the test set of data of SQuAD's format with one of its pools."""
    settings = DataSettings(path=place, pool=name, validation_fraction=0.0)
    return pools(read_splits(settings).test, settings)[name]


def counts(row: Row, options: Options) -> Outcome:
    """Counts the row's train and test data, or the split that the row names."""
    pool = row.pool or "answers"
    sources = data_of(DataSettings(path=options.place_of(row.data), pool=pool))
    found = {split: counts_of(one.path, pool) for split, one in zip(("train", "test"), sources, strict=True) if one}
    if pool == PARAGRAPHS:
        named = {"questions": found[row.split]["questions"], "paragraphs": found[row.split]["answers"]}
    else:
        named = {f"{split}_{name}": count for split, part in found.items() for name, count in part.items()}
    if missing := [name for name in row.measures if name not in named]:
        raise EndxError(f"the data have no {', '.join(missing)}")
    return Outcome(row, (tuple(float(named[name]) for name in row.measures),))


def layers(row: Row, options: Options) -> Outcome:
    """Measures one layer of a model; the measures of all layers are kept for other rows."""
    short = row.short if options.budget else {}
    name, system = short.get("model", row.model), short.get("system", row.system)
    model = options.weights.get(name, name)
    folder = options.output / "layers" / slug(model)
    systems = measure_layers(model, options.place_of(row.data), folder)["systems"]
    values = _values(systems[system][row.part]["metrics"], row)
    return Outcome(row, (values,), differs=short.get("differs", ""), runs=(f"{folder}#{system}",))


def few(row: Row, options: Options) -> Outcome:
    """Trains the row's system and ranks the 500 pairs of ENDX's Table 6, few enough for a pair classifier."""

    def measure(workdir: pathlib.Path) -> Metrics:
        settings = workdirs.read_config(workdir)
        records = read_splits(DataSettings(path=settings.data.path, pool="answers")).test
        pool = of_few_paragraphs(records, FEW_PARAGRAPHS, FEW_PAIRS)
        if not embeds(workdir):
            return evaluate_pairs(load_pair_scorer(workdir)(pool.questions, pool.candidates), None, pool, top=0).metrics
        return evaluate_dense(load(workdir).comparable, Pools(few=pool)).evaluations["few"].metrics

    def read(workdir: pathlib.Path, row: Row) -> tuple[float, ...]:
        file = workdir / "few.json"
        if not file.exists():
            write_text(file, json.dumps(measure(workdir), indent=1) + "\n")
        return _values(json_files.read_json_file(file), row)

    return trained(row, options, read)


def evaluated(row: Row, options: Options) -> Outcome:
    """Trains the row's system and ranks the test set of the row's data, which the run itself does not use."""

    def read(workdir: pathlib.Path, row: Row) -> tuple[float, ...]:
        folder = results_folder(row, workdir)
        if not (folder / workdirs.RESULTS).exists():
            place = options.place_of(row.data)
            whole = Pools(answers=_pool(place, "answers"))
            sets = Pools(whole | with_many_questions(whole.primary, (MANY_QUESTIONS,)))
            results, _ = report(sets, {row.system: load(workdir).comparable}, dataset=place, split="test")
            results.write(folder / workdirs.RESULTS, folder)
        return measures_of_results(folder, row)

    return trained(row, options, read)


def collection(row: Row, options: Options) -> Outcome:
    """Trains the row's system, encodes a collection such as Wikipedia's passages, and looks for answers (OpenNQ)."""
    corpus, asked = options.place_of(row.collection), options.place_of(row.questions)

    def read(workdir: pathlib.Path, row: Row) -> tuple[float, ...]:
        index, output = workdir / "collection", workdir / workdirs.EVALUATION / "collection"
        if not (output / workdirs.RESULTS).exists():
            keep_programs()
            encode_corpus(workdir, corpus, index, language=workdirs.read_config(workdir).data.language)
            evaluate(data=asked, workdir=workdir, index=index, output=output)
        return _values(read_results(output / workdirs.RESULTS)[0]["metrics"], row)

    return trained(row, options, read)


KINDS: dict[str, Callable[[Row, Options], Outcome]] = {
    "train": trained,
    "few": few,
    "evaluated": evaluated,
    "collection": collection,
    "bm25": bm25,
    "pretrained": pretrained,
    "counts": counts,
    "layers": layers,
}


def results_folder(row: Row, workdir: pathlib.Path) -> pathlib.Path:
    """Returns the folder in a run's workdir, or the workdir, that holds the results of a row."""
    return workdir / workdirs.EVALUATION / slug(row.data) if row.kind == "evaluated" else workdir


def interval(outcome: Outcome, other: Outcome) -> dict[str, tuple[float, float]]:
    """Computes 95 % intervals of a row's gain over another, for other seeds and questions: see `interval_over_runs`.

    Questions are resampled by article, or by answer where there are few articles (`SystemResults.clusters`).

    Returns:
      (low, high) by measure, in per cent; empty if the rows have other seeds, or fewer than `FEWEST` such clusters.
    """
    if outcome.seeds != other.seeds:
        return {}
    found = [
        [read_per_question(results_folder(each.row, pathlib.Path(run)), each.row.system, each.row.pool) for run in runs]
        for each, runs in ((other, other.runs), (outcome, outcome.runs))
    ]
    first = found[0][0]
    if len(set(first.clusters)) < FEWEST:
        return {}
    before, after = (np.stack([one.values for one in runs]) for runs in found)
    ends = dict(zip(first.metrics, 100 * interval_over_runs(after - before, clusters=first.clusters).T, strict=True))
    return {measure: tuple(ends[measure].tolist()) for measure in outcome.row.measures if measure in ends}


def _values(metrics: Metrics, row: Row) -> tuple[float, ...]:
    """Returns the row's measures in per cent."""
    return tuple(100 * metrics[name] for name in row.measures)
