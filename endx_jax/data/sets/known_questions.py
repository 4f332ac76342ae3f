"""Known questions: questions of the data that a document answers, by which a search finds it too."""

import dataclasses
from collections.abc import Mapping, Sequence, Set

import numpy as np

from endx_jax.data.sets.documents import Document
from endx_jax.data.sets.records import RetrievalSet


def known_questions(
    texts: Sequence[str], sets: Sequence[RetrievalSet], *, besides: Set[str] = frozenset()
) -> list[list[str]]:
    """Returns the questions in the sets that each text answers, without those in `besides`."""
    questions_of: dict[str, dict[str, None]] = {text: {} for text in texts}
    for records in sets:
        for question, right in zip(records.questions, records.qrels, strict=True):
            for text in (records.candidates[candidate] for candidate in right):
                if text in questions_of and question not in besides:
                    questions_of[text][question] = None
    return [list(questions_of[text]) for text in texts]


def asked_documents(
    documents: Sequence[Document], questions: Sequence[Sequence[str]], embeddings: Mapping[str, np.ndarray]
) -> tuple[list[Document], np.ndarray | None]:
    """Returns the documents with their known questions, and the embeddings of these in order; None without any."""
    asking = [dataclasses.replace(old, questions=tuple(asked)) for old, asked in zip(documents, questions, strict=True)]
    vectors = [embeddings[question] for asked in questions for question in asked]
    return asking, np.stack(vectors) if vectors else None
