"""Figures of finished runs, drawn by `endx papers figures`: one module per figure."""

from reproduction.figures import (
    curves,
    minimum_questions,
    one_answer,
    overlap,
    precision_recall,
    relative,
    shared_answer,
    similarity,
    size,
)
from reproduction.figures.figure import Figure, make
from reproduction.figures.study import Source, Study

__all__ = ["FIGURES", "Figure", "Source", "Study", "make"]

FIGURES: dict[str, Figure] = {
    "curves": curves.FIGURE,
    "overlap": overlap.FIGURE,
    "similarity": similarity.FIGURE,
    "shared-answer": shared_answer.FIGURE,
    "one-answer": one_answer.FIGURE,
    "size": size.FIGURE,
    "minimum-questions": minimum_questions.FIGURE,
    "precision-recall": precision_recall.FIGURE,
    "relative": relative.FIGURE,
}
