"""The index of a run: the answers and known questions that search finds after training."""

import dataclasses
import functools
import pathlib
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from endx_jax.data.batches.ragged import RaggedVectors, concatenate
from endx_jax.data.formats import read_corpus
from endx_jax.data.sets.documents import Document, asked_documents
from endx_jax.data.sets.records import RetrievalSet, known_questions
from endx_jax.data.settings import DOCUMENTS, DataSettings
from endx_jax.errors import InUse
from endx_jax.experiment.prepared_run import Run
from endx_jax.experiment.served import Served, count_with_known, known_scorers, other_answers, sets_of
from endx_jax.experiment.workdir import INDEX
from endx_jax.hub import local_path
from endx_jax.index.index import write_index
from endx_jax.index.index_file import metric_of
from endx_jax.inference.maxsim import pooled
from endx_jax.models.dual_encoder import SIDES
from endx_jax.parallel.console import say, showing_progress
from endx_jax.ranking.evaluate import evaluate_set
from endx_jax.ranking.hybrid import Hybrid
from endx_jax.ranking.results import Results
from endx_jax.ranking.systems import DenseResult, dense_scores

# Number of answers that are always indexed, and of all answers the largest share of training's work for their encoding.
# A training step computes about three times as much of a text as its encoding.
FEW, SHARE, STEP = 2000, 0.1, 3
# Least share of held-out questions with an answer that has other known questions, for the row `known` of the results.
LEAST_SHARE = 0.01


def _measure_known(
    run: Run, hybrid: Hybrid, results: Results, dense: DenseResult, encoded: Mapping[str, np.ndarray]
) -> None:
    """Adds the row `known`, hybrid search with train questions as known questions, or logs why it can't."""
    records = results.pools.primary
    known = known_questions(records.candidates, sets_of(run, "train"), besides=set(records.questions))
    known = [[question for question in asked if question in encoded] for asked in known]
    vectors = [encoded[question] for asked in known for question in asked]
    count, questions = count_with_known(records, known), len(records.questions)
    if not count or count < LEAST_SHARE * questions:
        if questions:
            say(
                f"the index also finds answers by their known questions; the results do not measure this, as {count:,} "
                f"of {questions:,} held-out questions have an answer with other known questions"
            )
        return
    by_known, lexical = known_scorers(records, known)(dense_scores(dense.questions, np.stack(vectors)))
    scores = hybrid.with_known_questions(dense_scores(dense.questions, dense.candidates), by_known)
    results.add("known", {results.pools.primary_name: evaluate_set(hybrid.score_block(scores, lexical), records)})
    results.notes.append(
        f"known: hybrid search with {len(vectors):,} train questions as known questions of their answers, of weight "
        f"{hybrid.known:g}; {count:,} of {questions:,} questions have such an answer"
    )


def _most(run: Run) -> float:
    """Returns the largest number of further answers, or of known questions, that a run encodes for its index."""
    return max(FEW, SHARE * STEP * len(SIDES) * run.plan.steps * run.plan.global_batch_size)


def with_known(
    run: Run, served: Served, documents: list[Document], results: Results, dense: DenseResult
) -> tuple[list[Document], np.ndarray | None]:
    """Returns the documents with the data's questions as known questions, and the embeddings of these questions.

    The evaluated questions have the embeddings of `dense`; others are left out if they are more than `_most`.
    Data of documents alone has no known questions. Also adds the row `known` to the results, except for a model of late
    interaction: its known questions only help to find documents.
    """
    if run.settings.data.format == DOCUMENTS:  # whose questions are titles and first sentences
        return documents, None
    known = known_questions([document.text for document in documents], sets_of(run))
    cosine = run.settings.model.normalize
    encoded = dict(zip(results.pools.primary.questions, pooled(dense.questions, cosine=cosine), strict=True))
    others = list(dict.fromkeys(question for asked in known for question in asked if question not in encoded))
    if len(others) > _most(run):
        say(f"known questions: only the {len(encoded):,} held-out ones; others would take a tenth of training's time")
        known = [[question for question in asked if question in encoded] for asked in known]
    elif others:
        encoded |= dict(zip(others, pooled(run.encoder(served.towers, "question", others), cosine=cosine), strict=True))
    if not isinstance(dense.questions, RaggedVectors):
        _measure_known(run, served.hybrid, results, dense, encoded)
    return asked_documents(documents, known, encoded)


def searched_answers(
    run: Run, params: dict, pool: RetrievalSet, embeddings: np.ndarray
) -> tuple[list[Document], np.ndarray, dict[str, str]]:
    """Returns the documents of the run's index, their embeddings, and their source.

    They are the evaluated pool with its `embeddings`, and all other answers of the data unless these are on disk or
    more than `_most`: then a line names the command that indexes them.
    """
    data = run.settings.data
    documents = _with_metadata(data, pool.documents)
    others = _with_metadata(data, other_answers(run, documents))
    source = " and ".join(filter(None, (data.path, data.test_path)))
    stored = bool(data.tokens)
    if not stored and len(others) <= _most(run):
        if others:
            say(f"encoding {len(others):,} other answers for the index")
            texts = [document.text for document in others]
            added = run.encoder(params, "answer", texts, progress=showing_progress())
            documents, embeddings = [*documents, *others], concatenate([embeddings, added])
        return documents, embeddings, {"part": "all answers of ", "path": source}
    file, remote = f"{run.workdir}/all-answers.sqlite", "://" in data.path  # which is not asked again
    corpus = pathlib.Path(data.path if remote else local_path(data.path))
    unit = [f"--pool={data.pool}"] if data.pool and not data.format else []
    encode = shlex.join([f"--workdir={run.workdir}", *data.corpus_flags, *unit, f"--output={file}"])
    reason = "are on disk" if stored else "would take more than a tenth of training's time to encode"
    search = shlex.quote(f"--index={file}")
    advice = f". To search all: endx encode {encode}; endx search {search}" if remote or corpus.exists() else ""
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


def index_writer(run: Run, served: Served, step: int, results: Results, dense: DenseResult) -> Callable[[], None]:
    """Encodes what the index holds beside the evaluated texts; returns the function that writes the index.

    Also adds the row `known` to the results.
    """
    settings, primary = run.settings, results.pools.primary
    about = {"name": str(run.workdir), "identity": run.encoder.identity(served.towers), "step": step}
    documents, vectors, corpus = searched_answers(run, served.towers, primary, dense.candidates)
    documents, known = with_known(run, served, documents, results, dense)
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
