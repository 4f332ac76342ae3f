"""Search after training: the fusion with BM25 that a run fits, and the answers that it indexes."""

import pathlib

import numpy as np

from endx_jax.data.documents import Document
from endx_jax.data.records import RetrievalSet
from endx_jax.data.splits import limit_questions
from endx_jax.experiment.data import pools
from endx_jax.experiment.prepare import Run
from endx_jax.parallel.console import say, showing_progress
from endx_jax.parallel.distributed import all_processes
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


def other_answers(run: Run, pool: RetrievalSet) -> list[Document]:
    """Returns the answers of the run's data that are not in a pool, with ids that are not in it either."""
    texts, names = set(pool.candidates), set(pool.candidate_ids)
    documents: list[Document] = []
    for records in (run.data.train, run.data.validation, run.data.test):
        if not isinstance(records, RetrievalSet):
            continue
        if records.sources:  # texts of a mixture's further sets may begin with prompts
            records = records.subset([row for row, sets in enumerate(records.sources) if 0 in sets])
        for name, text in zip(records.candidate_ids, records.candidates, strict=True):
            if text not in texts:
                while name in names:  # another file's
                    name += "+"
                texts.add(text)
                names.add(name)
                documents.append(Document(name, text))
    return documents


def searched_answers(
    run: Run, params: dict, pool: RetrievalSet, embeddings: np.ndarray, most: float
) -> tuple[list[Document], np.ndarray, dict[str, str]]:
    """Returns the documents of the run's index, their embeddings, and their source.

    They are the evaluated pool with its `embeddings`, and all other answers of the data unless these are on disk or
    more than `most` and `FEW`: then a line names the command that indexes them.
    """
    data, others = run.model.settings.data, other_answers(run, pool)
    source = " and ".join(filter(None, (data.path, data.test_path)))
    stored = not isinstance(run.data.train, RetrievalSet)
    if not stored and all_processes(len(others) <= max(most, FEW)):
        say(f"encoding {len(others):,} other answers for the index")
        texts = [document.text for document in others]
        added = run.encoder(params, "answer", texts, progress=showing_progress())
        about = {"part": "all answers of ", "path": source}
        return [*pool.documents, *others], np.concatenate([embeddings, added]), about
    corpus = pathlib.Path(data.path)
    column = f" --text-column={data.answer_column}" if corpus.is_file() else ""
    unit, file = f" --pool={data.pool}" if data.pool else column, run.workdir / "all-answers.sqlite"
    command = f"endx encode --workdir={run.workdir} --corpus={corpus}{unit} --output={file}"
    reason = "are on disk" if stored else "would take more than a tenth of the run's time to encode"
    advice = f". To search all: {command}; endx search --index={file}" if corpus.exists() else ""
    say(f"the index holds the {len(pool.candidates):,} held-out answers: the others {reason}{advice}")
    return pool.documents, embeddings, {"part": "held-out answers of ", "path": source}
