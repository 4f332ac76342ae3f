"""What search uses after a run: the trained model or that before training, and the fusion with BM25."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from endx_jax.data.sets.documents import Document
from endx_jax.data.sets.records import RetrievalSet, known_questions
from endx_jax.data.sets.splits import hash_fraction, limit_questions
from endx_jax.data.sources import pools
from endx_jax.experiment.prepared_run import Run
from endx_jax.methods.evaluation import UNTRAINED, UNTRAINED_HYBRID
from endx_jax.metrics.significance import CONFIDENCE, FEWEST, paired_difference
from endx_jax.parallel.console import say, showing_progress
from endx_jax.ranking.bm25 import BM25
from endx_jax.ranking.evaluate import ScoreBlock, evaluate_set
from endx_jax.ranking.hybrid import ENOUGH, Hybrid, default_hybrid, fit_fusion, fit_known
from endx_jax.ranking.search import best_of_groups
from endx_jax.ranking.systems import dense_scores, mean_maxsim, scores_of

# Largest number of validation questions for which a fusion is fitted, and of further answers in their pool; more
# hardly change it.
QUESTIONS, OTHERS = 1000, 2000
# Largest number of known questions that are encoded to fit their weight.
KNOWN = 20_000


class Served(NamedTuple):
    """What search uses after a run.

    Attributes:
      towers: parameters of the dual encoder.
      hybrid: fusion with BM25.
      trained: fusion of the trained model with BM25, for the report, whichever is used.
      about: the choice, for `results.json`; its `system` is `trained` or `untrained`.
    """

    towers: dict
    hybrid: Hybrid
    trained: Hybrid
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

    Validation questions choose the fusion of each (`fit_fusion`, `fit_known`). They are ranked against all answers of
    the data, up to `OTHERS` besides their own. `initial` returns the parameters of the towers before training; None:
    the two models are not compared.
    """
    measure, cosine = run.settings.evaluation.metric.rpartition("/")[2], run.settings.model.normalize
    records = _searched(run) if run.data.validation.questions else run.data.validation
    about: dict[str, Any] = {"system": "trained", "questions": len(records.questions)}
    if len(records.questions) < FEWEST:
        default = default_hybrid(cosine=cosine)
        return Served(trained, default, default, about)
    done = "comparing the model before and after training" if initial else "fitting the weight of BM25"
    say(f"{done} on {len(records.questions):,} validation questions over {len(records.candidates):,} answers")
    encode = functools.partial(run.encoder, progress=showing_progress())
    lexical = BM25.of_texts(records.candidates, records.text_language).scaled_block(records.questions)
    known = known_questions(records.candidates, sets_of(run, "train"), besides=set(records.questions))
    # Known questions only help to find what is ranked by tokens.
    ranked = count_with_known(records, known) >= ENOUGH and not run.model.dual_encoder.by_token
    by_known = known_scorers(records, known) if ranked and sum(map(len, known)) <= KNOWN else None

    def fitted(towers: dict) -> tuple[Hybrid, np.ndarray]:
        """Returns the chosen fusion with BM25, and the measure of each question by it without known questions."""
        questions = encode(towers, "question", records.questions)
        scores = mean_maxsim(questions, scores_of(questions, encode(towers, "answer", records.candidates)))
        hybrid = fit_fusion(scores, lexical, records, measure, cosine=cosine)
        values = evaluate_set(hybrid.score_block(scores, lexical), records).values[measure]
        if by_known is None:
            return hybrid, values
        asked = encode(towers, "question", [question for of_text in known for question in of_text])
        return fit_known(hybrid, scores, *by_known(dense_scores(questions, asked)), records, measure), values

    hybrid, after = fitted(trained)
    if initial is None:
        return Served(trained, hybrid, hybrid, about)
    towers = initial()
    untrained, before = fitted(towers)
    groups = records.groups or ()
    clusters = groups if len(set(groups)) >= FEWEST else ()
    (difference,) = paired_difference(before[:, None], after[:, None], clusters=clusters)
    about |= {"candidates": len(records.candidates), "measure": measure, "interval": [difference.low, difference.high]}
    about |= {UNTRAINED_HYBRID: float(before.mean()), "hybrid": float(after.mean())}
    if difference.high < 0:
        return Served(towers, untrained, hybrid, about | {"system": UNTRAINED})
    return Served(trained, hybrid, hybrid, about)


def _searched(run: Run) -> RetrievalSet:
    """Returns validation questions with a pool of their own answers and others of the data."""
    records = limit_questions(pools(run.data.validation, run.settings.data).primary, QUESTIONS)
    others = sorted(other_answers(run, records.documents), key=lambda document: hash_fraction(document.text))[:OTHERS]
    candidates = (*records.candidates, *(document.text for document in others))
    ids = (*records.candidate_ids, *(document.id for document in others))
    return dataclasses.replace(records, candidates=candidates, candidate_ids=ids)


def count_with_known(records: RetrievalSet, known: Sequence[Sequence[str]]) -> int:
    """Returns the number of questions with a right candidate that has known questions."""
    return sum(any(known[candidate] for candidate in right) for right in records.qrels)


def known_scorers(
    records: RetrievalSet, known: Sequence[Sequence[str]]
) -> Callable[[ScoreBlock], tuple[ScoreBlock, ScoreBlock]]:
    """Returns a function from the scorer of known questions to those of candidates, by these and by BM25."""
    owners = np.array([candidate for candidate, asked in enumerate(known) for _ in asked])
    texts = [" ".join([text, *asked]) for text, asked in zip(records.candidates, known, strict=True)]
    lexical = BM25.of_texts(texts, records.text_language).scaled_block(records.questions)

    def scorers(dense: ScoreBlock) -> tuple[ScoreBlock, ScoreBlock]:
        return lambda start, stop: best_of_groups(np.asarray(dense(start, stop)), owners, len(texts)), lexical

    return scorers


def other_answers(run: Run, pool: Sequence[Document]) -> list[Document]:
    """Returns the answers of the run's data that are not in a pool, with ids that are not in it either."""
    texts, names = {document.text for document in pool}, {document.id for document in pool}
    documents: list[Document] = []
    for document in (document for records in sets_of(run) for document in records.documents):
        if document.text not in texts:
            while document.id in names:  # another file's
                document = dataclasses.replace(document, id=f"{document.id}+")
            texts.add(document.text)
            names.add(document.id)
            documents.append(document)
    return documents


def sets_of(run: Run, *names: str) -> list[RetrievalSet]:
    """Returns the splits, without a mixture's further sets, whose texts may begin with prompts."""
    splits = (getattr(run.data, name) for name in names or ("train", "validation", "test"))
    return [records.own or records for records in splits]
