"""Search after training: the model and fusion that a run chooses, the answers and known questions that it indexes."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from endx_jax.data.batches.ragged import RaggedVectors, concatenate
from endx_jax.data.formats import read_corpus
from endx_jax.data.sets.documents import Document, asked_documents
from endx_jax.data.sets.records import RetrievalSet, known_questions
from endx_jax.data.sets.splits import hash_fraction, limit_questions
from endx_jax.data.settings import DOCUMENTS, DataSettings
from endx_jax.data.sources import pools
from endx_jax.errors import InUse
from endx_jax.experiment.prepared_run import Run
from endx_jax.experiment.workdir import INDEX
from endx_jax.index.index import write_index
from endx_jax.index.index_file import metric_of
from endx_jax.inference.maxsim import pooled
from endx_jax.methods.evaluation import UNTRAINED, UNTRAINED_HYBRID
from endx_jax.metrics.significance import CONFIDENCE, FEWEST, paired_difference
from endx_jax.parallel.agreement import broadcast
from endx_jax.parallel.console import say, showing_progress
from endx_jax.ranking.bm25 import BM25
from endx_jax.ranking.evaluate import ScoreBlock, evaluate_set
from endx_jax.ranking.hybrid import ENOUGH, Hybrid, default_hybrid, fit_fusion, fit_known
from endx_jax.ranking.results import Results
from endx_jax.ranking.search import best_of_groups
from endx_jax.ranking.systems import DenseResult, dense_scores, mean_maxsim, scores_of

# Largest number of validation questions for which a fusion is fitted, and of further answers in their pool; more
# hardly change it.
QUESTIONS, OTHERS = 1000, 2000
# Number of answers that are always indexed, since the measured rate of a small evaluation is mostly compilation.
FEW = 2000
# Largest number of known questions that are encoded to fit their weight.
KNOWN = 20_000
# Least share of held-out questions with an answer that has other known questions, for the row `known` of the results.
LEAST_SHARE = 0.01


class Served(NamedTuple):
    """What search uses after a run.

    Attributes:
      towers: parameters of the dual encoder.
      hybrid: fusion with BM25.
      about: the choice, for `results.json`; its `system` is `trained` or `untrained`.
    """

    towers: dict
    hybrid: Hybrid
    about: dict[str, Any]

    @property
    def untrained(self) -> bool:
        """True if the model before training is served."""
        return self.about["system"] == UNTRAINED

    def __str__(self) -> str:
        used = "the model before training" if self.untrained else "the trained model"
        line = f"search, serve, encode, export and load use {used}"
        if "interval" not in self.about:
            few = self.about["questions"] < FEWEST
            reason = (
                f"{self.about['questions']:,} validation questions are too few" if few else "evaluation.untrained=False"
            )
            return f"{line}, which was not compared with that before training ({reason})"
        before, after, (low, high) = (self.about[name] for name in (UNTRAINED_HYBRID, "hybrid", "interval"))
        shown = "" if low > 0 or high < 0 else ": no difference is shown"
        return (
            f"{line}: on {self.about['questions']:,} validation questions over {self.about['candidates']:,} answers, "
            f"{self.about['measure']} in hybrid search is {before:.3f} before and {after:.3f} after training, a "
            f"difference of {after - before:+.3f}, {CONFIDENCE:.0%} interval {low:+.3f} to {high:+.3f}{shown}"
        )


def choose_served(run: Run, trained: dict, initial: Callable[[], dict] | None) -> Served:
    """Returns the trained model, or that before training if validation questions show that search is better with it.

    Both are fused as is best for validation questions, which are ranked against all answers of the data, up to `OTHERS`
    besides their own. `initial` returns the parameters of the towers before training; None: they are not compared.
    """
    measure = run.settings.evaluation.metric.rpartition("/")[2]
    records = _searched(run) if run.data.validation.questions else run.data.validation
    about: dict[str, Any] = {"system": "trained", "questions": len(records.questions)}
    if len(records.questions) < min(FEWEST, ENOUGH):
        return Served(trained, default_hybrid(cosine=run.settings.model.normalize), about)
    lexical = BM25.of_texts(records.candidates, records.text_language).scaled_block(records.questions)
    fitted = functools.partial(_fitted, run, records, lexical, measure)
    hybrid, after = fitted(trained)
    if len(records.questions) < FEWEST or initial is None:
        return Served(trained, hybrid, about)
    towers = initial()
    default, before = fitted(towers)
    groups = records.groups or ()
    clusters = groups if len(set(groups)) >= FEWEST else ()
    (difference,) = paired_difference(before[:, None], after[:, None], clusters=clusters)
    about |= {"candidates": len(records.candidates), "measure": measure, "interval": [difference.low, difference.high]}
    about |= {UNTRAINED_HYBRID: float(before.mean()), "hybrid": float(after.mean())}
    if difference.high < 0:
        return Served(towers, default, about | {"system": UNTRAINED})
    return Served(trained, hybrid, about)


def _searched(run: Run) -> RetrievalSet:
    """Returns validation questions with a pool of their own answers and others of the data."""
    records = limit_questions(pools(run.data.validation, run.settings.data).primary, QUESTIONS)
    others = sorted(other_answers(run, records.documents), key=lambda document: hash_fraction(document.text))[:OTHERS]
    candidates = (*records.candidates, *(document.text for document in others))
    ids = (*records.candidate_ids, *(document.id for document in others))
    return dataclasses.replace(records, candidates=candidates, candidate_ids=ids)


def _fitted(
    run: Run, records: RetrievalSet, lexical: ScoreBlock, measure: str, towers: dict
) -> tuple[Hybrid, np.ndarray]:
    """Returns the best fusion of a model with BM25 for validation questions, and the measure of each without known."""
    cosine = run.settings.model.normalize
    questions = run.encoder(towers, "question", records.questions)
    scores = mean_maxsim(questions, scores_of(questions, run.encoder(towers, "answer", records.candidates)))
    enough = len(records.questions) >= ENOUGH
    hybrid = fit_fusion(scores, lexical, records, measure, cosine=cosine) if enough else default_hybrid(cosine=cosine)
    values = evaluate_set(hybrid.score_block(scores, lexical), records).values[measure]
    if isinstance(questions, RaggedVectors):  # known questions only help to find what is ranked by tokens
        return hybrid, values
    known = known_questions(records.candidates, _sets(run, "train"), besides=set(records.questions))
    asked = [question for of_text in known for question in of_text]
    if _count_with_known(records, known) < ENOUGH or len(asked) > KNOWN:
        return hybrid, values
    by_question = dense_scores(questions, run.encoder(towers, "question", asked))
    return fit_known(hybrid, scores, *_known_scores(records, known, by_question), records, measure), values


def _count_with_known(records: RetrievalSet, known: Sequence[Sequence[str]]) -> int:
    """Returns the number of questions with a right candidate that has known questions."""
    return sum(any(known[candidate] for candidate in right) for right in records.qrels)


def _known_scores(
    records: RetrievalSet, known: Sequence[Sequence[str]], dense: ScoreBlock
) -> tuple[ScoreBlock, ScoreBlock]:
    """Returns the scorers of candidates by known questions and by BM25; `dense` scores each known question."""
    owners = np.array([candidate for candidate, asked in enumerate(known) for _ in asked])
    texts = [" ".join([text, *asked]) for text, asked in zip(records.candidates, known, strict=True)]
    return (
        lambda start, stop: best_of_groups(np.asarray(dense(start, stop)), owners, len(texts)),
        BM25.of_texts(texts, records.text_language).scaled_block(records.questions),
    )


def _measure_known(run: Run, results: Results, dense: DenseResult, encoded: Mapping[str, np.ndarray]) -> None:
    """Adds the row `known`, hybrid search with train questions as known questions, or logs why it can't."""
    records, hybrid = results.pools.primary, results.hybrid
    known = known_questions(records.candidates, _sets(run, "train"), besides=set(records.questions))
    known = [[question for question in asked if question in encoded] for asked in known]
    vectors = [encoded[question] for asked in known for question in asked]
    count, questions = _count_with_known(records, known), len(records.questions)
    if not hybrid or not count or count < LEAST_SHARE * questions:
        if questions:
            say(
                f"the index also finds answers by their known questions; the results do not measure this, as {count:,} "
                f"of {questions:,} held-out questions have an answer with other known questions"
            )
        return
    by_known, lexical = _known_scores(records, known, dense_scores(dense.questions, np.stack(vectors)))
    scores = hybrid.with_known_questions(dense_scores(dense.questions, dense.candidates), by_known)
    results.add("known", {results.pools.primary_name: evaluate_set(hybrid.score_block(scores, lexical), records)})
    results.notes.append(
        f"known: hybrid search with {len(vectors):,} train questions as known questions of their answers, of weight "
        f"{hybrid.known:g}; {count:,} of {questions:,} questions have such an answer"
    )


def other_answers(run: Run, pool: Sequence[Document]) -> list[Document]:
    """Returns the answers of the run's data that are not in a pool, with ids that are not in it either."""
    texts, names = {document.text for document in pool}, {document.id for document in pool}
    documents: list[Document] = []
    for document in (document for records in _sets(run) for document in records.documents):
        if document.text not in texts:
            while document.id in names:  # another file's
                document = dataclasses.replace(document, id=f"{document.id}+")
            texts.add(document.text)
            names.add(document.id)
            documents.append(document)
    return documents


def _sets(run: Run, *names: str) -> list[RetrievalSet]:
    """Returns the splits, without a mixture's further sets, whose texts may begin with prompts."""
    splits = (getattr(run.data, name) for name in names or ("train", "validation", "test"))
    return [
        records.subset([row for row, sets in enumerate(records.sources) if 0 in sets]) if records.sources else records
        for records in splits
    ]


def with_known(
    run: Run, params: dict, documents: list[Document], results: Results, dense: DenseResult, most: float
) -> tuple[list[Document], np.ndarray | None]:
    """Returns the documents with the data's questions as known questions, and the embeddings of these questions.

    The evaluated questions have the embeddings of `dense`; others are left out if they are more than `most` and `FEW`.
    Data of documents alone has no known questions. Also adds the row `known` to the results, except for a model of late
    interaction: its known questions only help to find documents.
    """
    if run.settings.data.format == DOCUMENTS:  # whose questions are titles and first sentences
        return documents, None
    known = known_questions([document.text for document in documents], _sets(run))
    cosine = run.settings.model.normalize
    encoded = dict(zip(results.pools.primary.questions, pooled(dense.questions, cosine=cosine), strict=True))
    others = list(dict.fromkeys(question for asked in known for question in asked if question not in encoded))
    if not broadcast(lambda: len(others) <= max(most, FEW), "known-indexed"):
        say(f"known questions: only the {len(encoded):,} held-out ones; others would take a tenth of the run's time")
        known = [[question for question in asked if question in encoded] for asked in known]
    elif others:
        encoded |= dict(zip(others, pooled(run.encoder(params, "question", others), cosine=cosine), strict=True))
    if not isinstance(dense.questions, RaggedVectors):
        _measure_known(run, results, dense, encoded)
    return asked_documents(documents, known, encoded)


def searched_answers(
    run: Run, params: dict, pool: RetrievalSet, embeddings: np.ndarray, most: float
) -> tuple[list[Document], np.ndarray, dict[str, str]]:
    """Returns the documents of the run's index, their embeddings, and their source.

    They are the evaluated pool with its `embeddings`, and all other answers of the data unless these are on disk or
    more than `most` and `FEW`: then a line names the command that indexes them.
    """
    data = run.settings.data
    documents = _with_metadata(data, pool.documents)
    others = _with_metadata(data, other_answers(run, documents))
    source = " and ".join(filter(None, (data.path, data.test_path)))
    stored = bool(data.tokens)
    if not stored and broadcast(lambda: len(others) <= max(most, FEW), "others-indexed"):
        if others:
            say(f"encoding {len(others):,} other answers for the index")
            texts = [document.text for document in others]
            added = run.encoder(params, "answer", texts, progress=showing_progress())
            documents, embeddings = [*documents, *others], concatenate([embeddings, added])
        return documents, embeddings, {"part": "all answers of ", "path": source}
    corpus = pathlib.Path(data.path)
    column = f" --text-column={data.answer_column}" if corpus.is_file() and data.answer_column else ""
    unit = f" --pool={data.pool}" if data.pool and not data.format else column
    file = run.workdir / "all-answers.sqlite"
    command = f"endx encode --workdir={run.workdir} --corpus={corpus}{unit} --output={file}"
    reason = "are on disk" if stored else "would take more than a tenth of the run's time to encode"
    advice = f". To search all: {command}; endx search --index={file}" if corpus.exists() else ""
    say(f"the index holds the {len(documents):,} held-out answers: the others {reason}{advice}")
    return documents, embeddings, {"part": "held-out answers of ", "path": source}


def _with_metadata(data: DataSettings, documents: list[Document]) -> list[Document]:
    """Returns the documents with the metadata of their corpus, if the run trains on documents."""
    if data.format != DOCUMENTS:
        return documents
    corpus = read_corpus(data.path, text_column=data.answer_column or None, split=data.split)
    metadata = {document.name: document.metadata for document in corpus}
    return [dataclasses.replace(one, metadata=metadata.get(one.id, {})) for one in documents]


def write_pool(path: pathlib.Path, embeddings: np.ndarray, documents: Sequence[Document], **about: Any) -> None:
    """Writes encoded documents as an index by `write_index`; logs a line if the existing index is in use."""
    try:
        write_index(path, embeddings, documents, **about)
    except InUse as reason:
        say(f"note: the index was not written: {reason}")


def index_writer(
    run: Run, towers: dict, step: int, results: Results, dense: DenseResult, most: float
) -> Callable[[], None]:
    """Encodes what the index holds beside the evaluated texts; returns the function that writes the index.

    Also adds the row `known` to the results. `most` limits the number of answers to encode, and that of questions.
    """
    settings, primary = run.settings, results.pools.primary
    about = {"name": str(run.workdir), "identity": run.encoder.identity(towers), "step": step}
    documents, vectors, corpus = searched_answers(run, towers, primary, dense.candidates, most)
    documents, known = with_known(run, towers, documents, results, dense, most)
    return functools.partial(
        write_pool,
        run.workdir / INDEX,
        vectors,
        documents,
        metric=metric_of(cosine=settings.model.normalize),
        model={**about, "product_dtype": run.model.dual_encoder.answer.product_dtype},
        corpus=corpus,
        known=known,
        language=primary.text_language if primary.questions else settings.data.language,
    )
