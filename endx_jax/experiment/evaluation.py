"""Parts of `evaluate.evaluate`: its data, the ranking of a data set with all systems, and that of an index."""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from endx_jax.data.formats import Data
from endx_jax.data.formats.answer_strings import ANSWERS, read_answered
from endx_jax.data.sets.documents import asked_documents
from endx_jax.data.sets.records import Pools, known_questions
from endx_jax.data.sets.splits import with_many_questions
from endx_jax.data.settings import DataSettings
from endx_jax.data.sources import pools, read_splits
from endx_jax.experiment.run_index import write_pool
from endx_jax.experiment.workdir import DATA, INDEX, RESULTS, check_writable, read_config, read_json
from endx_jax.index.index_evaluation import (
    JudgementRows,
    evaluate_answered,
    evaluate_judged,
    find_rows,
    judgements_by_text,
)
from endx_jax.index.index_file import metric_of
from endx_jax.index.index_model import open_index, stored_hybrid
from endx_jax.index.snapshot import Snapshot
from endx_jax.inference import EmbeddingModel
from endx_jax.inference.maxsim import pooled
from endx_jax.parallel import agreement
from endx_jax.parallel.console import say
from endx_jax.parallel.environment import keep_programs
from endx_jax.ranking import trec
from endx_jax.ranking.evaluate import Evaluation
from endx_jax.ranking.rerank import PairScorerFactory, evaluate_pairs
from endx_jax.ranking.results import (
    COLUMNS,
    OWN_ID,
    Results,
    SuiteResults,
    entry_of,
    format_table,
    report,
    write_results,
)
from endx_jax.ranking.systems import scores_of
from endx_jax.settings import require
from endx_jax.uploads import uploading

# Best documents kept per question of an index.
DEPTH = 100

SYSTEM = "index"  # name of the index in its results

FolderOrName = str | os.PathLike


class IndexResults(NamedTuple):
    """Evaluation of the documents of an index, and their judgements, if they are not judged by answer strings."""

    evaluation: Evaluation
    judged: JudgementRows | None

    def __repr__(self) -> str:
        metrics = self.evaluation.metrics
        table = format_table({SYSTEM: metrics}, COLUMNS if self.judged else tuple(metrics))
        alike = sum(map(bool, self.judged.excluded)) if self.judged else 0
        return f"{table}\n{alike:,} {OWN_ID}" if alike else table


def write_suite(home: pathlib.Path, results: SuiteResults) -> None:
    """Writes the results of a suite, whose sets are written already."""
    with uploading(home) as folder:
        results.write(folder / RESULTS)


def read_settings(workdir: FolderOrName | None, pool: str, reading: Mapping[str, Any] | None) -> DataSettings:
    """Returns the settings of a run's data, or the defaults without one, with `pool` and `reading` where given.

    `reading` is None for the run's own test split, else the settings by which other data is read.
    """
    settings = read_config(epath.Path(workdir)).data if workdir else DataSettings()
    if pool:
        settings = dataclasses.replace(settings, pool=pool)
    return settings if reading is None else dataclasses.replace(settings, format="", **reading)


def read_pools(
    data: Data | None, settings: DataSettings, min_questions: Sequence[int] = (), workdir: FolderOrName | None = None
) -> Pools:
    """Returns the primary pool and subsets of a data set, or without one of the run's test split.

    A line warns if the test split differs from the one that the run in `workdir` began with.
    """
    records = data.records() if data else read_splits(settings).test
    if workdir:
        begun = read_json(workdir, DATA).get("evaluated", {})
        if begun.get("test set", records.ranked_sha256) != records.ranked_sha256:
            say("warning: the run began with other data, and may have been trained on some of these questions")
    sets = pools(records, settings, data)
    return Pools({sets.primary_name: sets.primary} | with_many_questions(sets.primary, min_questions))


def rank_set(
    dataset: str,
    split: str,
    pools: Pools,
    *,
    model: EmbeddingModel,
    system: str,
    reranker: tuple[PairScorerFactory, FolderOrName, int] | None,
    reverse: bool,
    home: pathlib.Path | None,
) -> Results:
    """Ranks one data set with all systems; writes and returns the results. `reranker` has scorer, name and depth."""
    records = pools.primary
    agreement.check_equal(lambda: {f"set {dataset}": records.ranked_sha256})
    say(f"evaluating {len(records.questions):,} questions against {len(records.candidates):,} candidates of {dataset}")
    hybrid = stored_hybrid(model.name, cosine=model.cosine, language=records.text_language)
    systems = {system: model.ranked}
    results, (dense,) = report(pools, systems, reverse=reverse, dataset=dataset, split=split, hybrid=hybrid)
    if reranker:
        load_scores, name, top = reranker
        score = load_scores(records.questions, records.candidates)
        first = scores_of(dense.questions, dense.candidates)
        results.add("reranked", {pools.primary_name: evaluate_pairs(score, first, records, top=top)})
        ranked = f"the top {top} of {system}" if top else "all candidates"
        results.notes.append(f"reranked: {ranked}, re-ranked by {name}")
    if not home:
        return results
    questions = pooled(dense.questions, cosine=model.cosine)
    description, encoded = model.description, dict(zip(records.questions, questions, strict=True))
    documents, known = asked_documents(records.documents, known_questions(records.candidates, [records]), encoded)

    def write() -> None:
        with uploading(home) as folder:
            write_pool(
                folder / INDEX,
                dense.candidates,
                documents,
                metric=metric_of(cosine=model.cosine),
                model=description,
                corpus={"path": dataset},
                known=known,
                language=records.text_language,
            )
            results.write(folder / RESULTS, folder)

    agreement.on_primary(write, "results-written")
    return results


def evaluate_index(
    path: FolderOrName,
    model: EmbeddingModel | FolderOrName | None,
    data: Data,
    settings: DataSettings,
    home: pathlib.Path | None,
) -> IndexResults:
    """Ranks all documents of an index for questions whose right documents or answer strings are given."""
    data, index = data.with_options(split=data.split), open_index(path, model)
    if home:
        check_writable(home, "output")
    snapshot, judged = index.snapshot, None
    require(len(snapshot) > 0, f"{index.path} has no documents")
    if data.format is ANSWERS:
        answered = read_answered(data.path)
        ids, texts = [question.id for question in answered], [question.question for question in answered]
        rank = functools.partial(evaluate_answered, snapshot, answered)
    else:
        if data.format.judgements:
            questions = data.judgements()
        else:
            records = read_pools(data, settings).primary
            questions = judgements_by_text(snapshot, records) if records.numbered else records.judgements
        ids, texts, judged = [*questions.ids], [*questions.texts], find_rows(snapshot, questions)
        rank = functools.partial(evaluate_judged, snapshot, judged, depth=DEPTH)
    by_text = ", without their known questions" if snapshot.known else ""
    say(f"evaluating {len(texts):,} questions against {len(snapshot):,} documents of {index.path}{by_text}")
    keep_programs()
    index.encoder.model.check_one_vector("the evaluation of an index")
    results = IndexResults(rank(index.encoder.encode_query(texts)), judged)
    if home:
        about = {"dataset": data.path, "split": data.split, "index": str(index.path), "model": snapshot.info.model}
        with uploading(home) as folder:
            _write_index_results(folder, about, snapshot, ids, results)
    return results


def _write_index_results(
    folder: pathlib.Path,
    about: Mapping[str, object],
    snapshot: Snapshot,
    question_ids: Sequence[str],
    results: IndexResults,
) -> None:
    """Writes the run, metrics of each question and mean metrics, and the judgements; `about` is in `results.json`."""
    evaluation, judged = results
    ranked = evaluation.top_ids[evaluation.top_scores > -np.inf]
    rows = np.unique(np.concatenate([ranked, *map(np.asarray, judged.right if judged else ())]))
    names = snapshot.ids_of(rows.tolist())
    trec.write_system(folder, SYSTEM, question_ids, names, evaluation)
    if judged:
        trec.write_qrels(folder / trec.QRELS, question_ids, names, judged.right, judged.gains)
    entry = entry_of({**about, "direction": "question_to_answer"}, "index", SYSTEM, evaluation)
    write_results(folder / RESULTS, {SYSTEM: evaluation.metrics}, [entry])
