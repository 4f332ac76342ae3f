"""Search after training: the fusion with BM25 that a run fits, and the answers that it indexes."""

import dataclasses
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np

from endx_jax.data.documents import Document
from endx_jax.data.records import RetrievalSet
from endx_jax.data.settings import DOCUMENTS
from endx_jax.data.splits import limit_questions
from endx_jax.experiment.data import pools, read_documents
from endx_jax.experiment.prepare import Run
from endx_jax.parallel.agreement import decided
from endx_jax.parallel.console import say, showing_progress
from endx_jax.retrieval.hybrid import ENOUGH, WEIGHT, Hybrid, fit
from endx_jax.retrieval.systems import dense_scores

# Largest number of validation questions for which a fusion is fitted; more hardly change it.
QUESTIONS = 1000
# Number of answers that are always indexed, since the measured rate of a small evaluation is mostly compilation.
FEW = 2000


def fit_hybrid(run: Run, params: dict) -> Hybrid:
    """Returns the best fusion with BM25 for the run's validation questions, given the parameters of its towers."""
    settings, cosine = run.model.settings, run.model.settings.model.normalize
    if len(run.data.validation.questions) < ENOUGH:
        return Hybrid(WEIGHT if cosine else None)
    records = limit_questions(pools(run.data.validation, settings.data).primary, QUESTIONS)
    questions = run.encoder(params, "question", records.questions)
    scores = dense_scores(questions, run.encoder(params, "answer", records.candidates))
    return fit(scores, records, settings.evaluation.metric.rpartition("/")[2], cosine=cosine)


def other_answers(run: Run, pool: Sequence[Document]) -> list[Document]:
    """Returns the answers of the run's data that are not in a pool, with ids that are not in it either."""
    texts, names = {document.text for document in pool}, {document.id for document in pool}
    documents: list[Document] = []
    for document in _answers(run):
        if document.text not in texts:
            while document.id in names:  # another file's
                document = dataclasses.replace(document, id=f"{document.id}+")
            texts.add(document.text)
            names.add(document.id)
            documents.append(document)
    return documents


def _answers(run: Run) -> Iterator[Document]:
    """Yields the answers of the run's data; whole passages of documents, of which training removes sentences."""
    if run.model.settings.data.format == DOCUMENTS:
        yield from read_documents(run.model.settings.data)
        return
    for records in (run.data.train, run.data.validation, run.data.test):
        if not isinstance(records, RetrievalSet):
            continue
        if records.sources:  # texts of a mixture's further sets may begin with prompts
            records = records.subset([row for row, sets in enumerate(records.sources) if 0 in sets])
        yield from records.documents


def searched_answers(
    run: Run, params: dict, pool: RetrievalSet, embeddings: np.ndarray, most: float
) -> tuple[list[Document], np.ndarray, dict[str, str]]:
    """Returns the documents of the run's index, their embeddings, and their source.

    They are the evaluated pool with its `embeddings`, and all other answers of the data unless these are on disk or
    more than `most` and `FEW`: then a line names the command that indexes them.
    """
    data, documents = run.model.settings.data, pool.documents
    if data.format == DOCUMENTS and not data.test_path:  # the pool's passages lack sentences
        held_out = set(pool.candidate_ids)
        documents = [document for document in read_documents(data) if document.id in held_out]
        embeddings = run.encoder(params, "answer", [document.text for document in documents])
    others = other_answers(run, documents)
    source = " and ".join(filter(None, (data.path, data.test_path)))
    stored = not isinstance(run.data.train, RetrievalSet)
    if not stored and decided(lambda: len(others) <= max(most, FEW), "others-indexed"):
        if others:
            say(f"encoding {len(others):,} other answers for the index")
            texts = [document.text for document in others]
            added = run.encoder(params, "answer", texts, progress=showing_progress())
            documents, embeddings = [*documents, *others], np.concatenate([embeddings, added])
        return documents, embeddings, {"part": "all answers of ", "path": source}
    corpus = pathlib.Path(data.path)
    name = data.text_column if data.format == DOCUMENTS else data.answer_column
    column = f" --text-column={name}" if corpus.is_file() else ""
    unit, file = f" --pool={data.pool}" if data.pool and not data.format else column, run.workdir / "all-answers.sqlite"
    command = f"endx encode --workdir={run.workdir} --corpus={corpus}{unit} --output={file}"
    reason = "are on disk" if stored else "would take more than a tenth of the run's time to encode"
    advice = f". To search all: {command}; endx search --index={file}" if corpus.exists() else ""
    say(f"the index holds the {len(documents):,} held-out answers: the others {reason}{advice}")
    return documents, embeddings, {"part": "held-out answers of ", "path": source}
