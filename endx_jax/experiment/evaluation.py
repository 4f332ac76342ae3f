"""Evaluation of a model on a data set or a suite (`endx_jax.evaluate`), and of the documents of an index."""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from endx_jax.buckets import uploading
from endx_jax.data.formats import beir
from endx_jax.data.formats.answer_strings import ANSWERS, QuestionWithAnswers, read_answered
from endx_jax.data.formats.format import ReadOptions
from endx_jax.data.formats.registry import open_data
from endx_jax.data.sets.records import Judgements, Pools, asked_documents, known_questions
from endx_jax.data.sets.splits import with_many_questions
from endx_jax.data.settings import DataSettings
from endx_jax.data.sources import pools
from endx_jax.errors import EndxError
from endx_jax.experiment.data import ensure_prepared, find_source, read_splits
from endx_jax.experiment.run_index import write_pool
from endx_jax.experiment.saved_model import load_pair_scorer
from endx_jax.experiment.workdir import INDEX, RESULTS, check_writable, read_config
from endx_jax.hub import local_path
from endx_jax.index.index_evaluation import JudgementRows, evaluate_answered, evaluate_judged, find_rows
from endx_jax.index.index_file import metric_of
from endx_jax.index.index_model import open_index, stored_hybrid
from endx_jax.index.snapshot import Snapshot
from endx_jax.inference import EmbeddingModel, load
from endx_jax.inference.maxsim import pooled
from endx_jax.parallel import agreement
from endx_jax.parallel.console import say
from endx_jax.parallel.environment import keep_programs
from endx_jax.parallel.mesh import MeshSettings, make_mesh
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


def evaluate(
    model: EmbeddingModel | FolderOrName | None = None,
    data: FolderOrName | None = None,
    *,
    workdir: FolderOrName | None = None,
    index: FolderOrName | None = None,
    output: FolderOrName | None = None,
    pool: str = "",
    split: str | None = None,
    rerank: FolderOrName | None = None,
    top: int = 20,
    min_questions: Sequence[int] = (8,),
    reverse: bool = False,
    **reading: Any,
) -> Results | SuiteResults | IndexResults | None:
    r"""Ranks a data set, or each set of a suite, with a model, with BM25, and with both fused.

    Several processes divide the encoding; the first one writes the output.

    Args:
      model: pretrained folder or name; in Python also a model.
      data: file or folder of any supported format, or suite of BEIR folders [the test split of `workdir`].
      workdir: workdir of a run, whose best checkpoint is used, in place of `model`; its settings say how data is read.
      index: index whose documents are ranked, by the model that encoded it; needs `data` that name right documents by
        id or contain answer strings.
      output: output folder for metrics, TREC runs and an index of the pool [evaluation/NAME-POOL in WORKDIR; in Python
        none].
      pool: retrieval unit of reading-comprehension data, as `data.pool` [the run's; with `model` whole paragraphs,
        equal questions merged].
      split: split of a BEIR, MS MARCO or save_to_disk folder [test, or the only one of a BEIR folder].
      rerank: workdir of a pair classifier or of late interaction, or folder or name of a CrossEncoder or
        MultiVectorEncoder, that re-ranks the best candidates.
      top: number of candidates that `rerank` re-ranks; 0: all.
      min_questions: report questions whose answer is right for at least so many questions separately as well [8].
      reverse: rank the questions for each answer as well (RR).
      **reading: `question_column`, `answer_column`, `skip_invalid` and `language`, as the settings of `data`.

    Returns:
      The results; their `repr` is the tables. None for an index on all processes but the first.

    Raises:
      EndxError: the model, the index or the data can't be read, a right document is not in the index, or the output
        can't be written.

    Examples:
      >>> import pathlib
      >>> rows = ["question,answer", "When do you open?,We open at nine.", "Where is the zoo?,In the park."]
      >>> pairs = pathlib.Path("pairs.csv")
      >>> _ = pairs.write_text("\n".join(rows))
      >>> results = endx_jax.evaluate("all-MiniLM-L6-v2", pairs)
      evaluating 2 questions against 2 candidates of pairs.csv
      >>> results.evaluations["all"]["all-MiniLM-L6-v2"].metrics["mrr"]
      1.0
    """
    require(bool(workdir or model or index), "nothing to evaluate: set workdir=RUN or model=NAME")
    require(not (workdir and model), "set workdir=RUN or model=NAME, not both")
    require(top >= 0, f"top={top}: give a number of answers, or 0 for all")
    require(min(min_questions, default=1) > 0, "min_questions takes whole numbers of questions, above 0")
    data = os.fspath(data or "")
    home = epath.Path(output) if output else None
    if index:
        require(bool(data), "index needs data with questions and their right documents or answers")
        require(not (rerank or reverse), "rerank and reverse can't be used with index")
        name, found = model.name if isinstance(model, EmbeddingModel) else model, list[IndexResults]()

        def rank_index() -> None:
            found.append(_evaluate_index(index, data, name or workdir, workdir, home, pool, split, reading))

        agreement.on_primary(rank_index, "index-evaluated")
        return found[0] if found else None
    ensure_prepared([data])
    path = local_path(data)
    sets = beir.suite_of(path, split) if path else {}
    agreement.check_equal(lambda: {"list of sets": ", ".join(sets)})
    for folder, part in sets.values():  # so that a damaged set is found before the others are encoded
        open_data(folder).judgements(ReadOptions(split=part, skip_invalid=reading.get("skip_invalid", False)))
    splits = {part for _, part in sets.values()} or {split or beir.default_split(path)}
    split = splits.pop() if len(splits) == 1 else "of its name"
    read = functools.partial(_read, workdir, pool, min_questions, reading)
    dataset, ranked = (data, None) if sets else read(data, split)
    if home:
        check_writable(home, "output")
    reranker = (load_pair_scorer(rerank), rerank, top) if rerank else None
    if not isinstance(model, EmbeddingModel):
        model = load(workdir or model or "", mesh=make_mesh(MeshSettings()))
    agreement.check_parameters(model.params)
    system = "trained" if workdir else pathlib.Path(model.name).name
    rank = functools.partial(_rank, model=model, system=system, reranker=reranker, reverse=reverse)
    if ranked:
        return rank(dataset, split if data else "test", ranked, home=home)
    results = SuiteResults(dataset, split)
    for name, (folder, part) in sets.items():
        results.add(name, rank(folder, part, read(folder, part)[1], home=home and home / name))
    if home:
        agreement.on_primary(lambda: _write_suite(home, results), "suite-written")
    return results


def _write_suite(home: pathlib.Path, results: SuiteResults) -> None:
    with uploading(home) as folder:
        results.write(folder / RESULTS)


def _read(
    workdir: FolderOrName | None,
    pool: str,
    min_questions: Sequence[int],
    reading: Mapping[str, Any],
    data: str | None,
    split: str | None,
) -> tuple[str, Pools]:
    """Returns the name of the data set (`data`, or the run's test split), and its primary pool and subsets."""
    if not (data or workdir):
        raise EndxError("model needs data=FILE, as a pretrained model has no test split")
    settings = read_config(epath.Path(workdir)).data if workdir else DataSettings()
    if pool:
        settings = dataclasses.replace(settings, pool=pool)
    if data:
        settings = dataclasses.replace(settings, format="", **reading)
        source = find_source(data, settings, split, strict=bool(pool))
        dataset, records, unit = data, source.read(settings), source.pool
    else:
        dataset, records, unit = settings.test_path or settings.path, read_splits(settings).test, settings.pool
    sets = pools(records, settings, unit)
    return dataset, Pools({sets.primary_name: sets.primary} | with_many_questions(sets.primary, min_questions))


def _rank(
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
    agreement.check_equal(lambda: {f"set {dataset}": records.sha256})
    say(f"evaluating {len(records.questions):,} questions against {len(records.candidates):,} candidates of {dataset}")
    hybrid = stored_hybrid(model.name, cosine=model.cosine, language=records.text_language)
    about = {"dataset": dataset, "split": split, "hybrid": hybrid}
    results, (dense,) = report(pools, {system: model.ranked}, reverse=reverse, **about)
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


def _evaluate_index(
    path: FolderOrName,
    data: str,
    model: FolderOrName | None,
    workdir: FolderOrName | None,
    home: pathlib.Path | None,
    pool: str,
    split: str | None,
    reading: Mapping[str, Any],
) -> IndexResults:
    """Ranks all documents of an index for questions whose right documents or answer strings are given."""
    data = local_path(data)
    found = open_data(data) if os.path.exists(data) else None  # otherwise a prepared set
    split = split or beir.default_split(data)
    questions: Judgements | list[QuestionWithAnswers]
    if found and found.format is ANSWERS:
        questions = read_answered(data)
    elif found and found.format.judgements:
        questions = found.judgements(ReadOptions(split=split))
    else:
        _, read = _read(workdir, pool, (), reading, data, split)
        questions = Judgements.from_records(read.primary)
    index = open_index(path, model)
    if home:
        check_writable(home, "output")
    snapshot = index.snapshot
    require(len(snapshot) > 0, f"{index.path} has no documents")
    judged = None
    if isinstance(questions, Judgements):
        ids, texts, judged = list(questions.ids), list(questions.texts), find_rows(snapshot, questions)
        rank = functools.partial(evaluate_judged, snapshot, judged, depth=DEPTH)
    else:
        ids, texts = [question.id for question in questions], [question.text for question in questions]
        rank = functools.partial(evaluate_answered, snapshot, questions)
    by_text = ", without their known questions" if snapshot.known else ""
    say(f"evaluating {len(texts):,} questions against {len(snapshot):,} documents of {index.path}{by_text}")
    keep_programs()
    index.encoder.model.check_one_vector("the evaluation of an index")
    results = IndexResults(rank(index.encoder.encode_query(texts)), judged)
    if home:
        about = {"dataset": data, "split": split, "index": str(index.path), "model": index.snapshot.info.model}
        _write_index_results(home, about, snapshot, ids, results)
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
