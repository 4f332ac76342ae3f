"""Evaluator of the pair classifier: re-ranks the top answers of BM25."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np
import tqdm
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from endx_jax.data.batches.token_tables import TokenTable
from endx_jax.data.sets.records import Pools, RetrievalSet
from endx_jax.data.sets.splits import limit_questions
from endx_jax.data.tokenization import TextProcessor
from endx_jax.errors import EndxError, counted
from endx_jax.inference.encode import TextEncoder
from endx_jax.inference.text_batches import Shapes, batches, compute_batches
from endx_jax.methods.pair.batches import join_texts
from endx_jax.methods.pair.classifier import PairClassifier
from endx_jax.methods.pair.objective import PairObjective, PairSettings
from endx_jax.models.dual_encoder import SIDES
from endx_jax.parallel.console import showing_progress
from endx_jax.parallel.sharding import put, state_shardings
from endx_jax.ranking.bm25 import BM25
from endx_jax.ranking.evaluate import Evaluation, EvaluationSettings
from endx_jax.ranking.rerank import PairScorer, PairScorerFactory, evaluate_pairs, finite_scores
from endx_jax.ranking.results import Results


class ClassifierScorer:
    """Scorer of pairs; it keeps the compiled programs, so create one and pass it the parameters.

    Attributes:
      classifier: the pair classifier.
      processors: text processors of each side, `question` and `answer`.
      between: ids between the two texts of a pair: see `join_texts`.
    """

    def __init__(
        self,
        classifier: PairClassifier,
        processors: Mapping[str, TextProcessor],
        mesh: Mesh,
        batch_size: int = 64,
        between: Sequence[int] = (),
        limit: int = 0,
    ):
        """Sets what does not change between calls.

        Args:
          classifier: the architecture.
          processors: text processors of each side.
          mesh: over which each batch is split.
          batch_size: pairs of the maximum length that are scored together; of shorter ones as many as have the same
            number of padded tokens, and on a CPU fewer, as in `TextEncoder`.
          between: ids between the two texts of a pair: see `join_texts`.
          limit: maximum length of a pair, to which longer ones are cut: see `join_texts`. 0: that of the processors.

        Raises:
          EndxError: a question and an answer of maximum length exceed the positions of the encoder.
        """
        self.classifier, self.processors, self.between, self._mesh = classifier, processors, tuple(between), mesh
        self._cut, limit = limit, limit or sum(processors[side].length for side in SIDES) - 1 + len(between)
        positions = classifier.model.question.encoder.config.positions
        if positions is not None and limit > positions:
            raise EndxError(
                f"data.question_length and data.answer_length make pairs of up to {limit} tokens, more than the "
                f"{positions} positions of the encoder: lower one of them"
            )
        self._shapes = Shapes.of(mesh, limit, batch_size)

        def score(params: dict, pairs):
            return classifier.score(params["dual_encoder"], params["pair"], pairs)

        self._score = jax.jit(score, out_shardings=NamedSharding(mesh, PartitionSpec()))

    def __call__(
        self, params: dict, questions: Sequence[str], answers: Sequence[str], *, progress: bool = False
    ) -> PairScorer:
        """Returns a function that scores pairs of these texts, and tokenizes the texts of the pairs in each call.

        Args:
          params: the objective's: `dual_encoder` and `pair`.
          questions: Q texts.
          answers: N texts.
          progress: shows a progress bar.

        Returns:
          A function from int [n, 2], rows of questions and of answers, to scores, float32 [n], the same on every
          process. Its attribute `cut` is the number of pairs so far whose answers were cut.
        """

        def score(pairs: np.ndarray) -> np.ndarray:
            (asked, question), (answered, answer) = (np.unique(rows, return_inverse=True) for rows in pairs.T)
            joined = self.tokenized([questions[n] for n in asked.tolist()], [answers[n] for n in answered.tolist()])
            places = np.stack([question, answer], axis=1)

            def tokenize(rows: Sequence[int]) -> TokenTable:
                table = joined(places[list(rows)])
                score.cut += table.cut  # type: ignore[attr-defined]
                return table

            prepared = batches(tokenize, range(len(pairs)), self._shapes)
            bar = tqdm.tqdm(total=len(pairs), desc="scoring pairs", unit="pair", disable=not progress, leave=False)
            scores = compute_batches(prepared, functools.partial(self._score, params), self._mesh, bar)
            return np.empty(0, np.float32) if scores is None else finite_scores(scores, pairs)

        score.cut = 0  # type: ignore[attr-defined]
        return score

    def with_params(self, params: dict) -> PairScorerFactory:
        """Returns the scorer with parameters, which are placed on its devices."""
        return functools.partial(self, put(params, state_shardings(params, self._mesh)), progress=showing_progress())

    def tokenized(self, questions: Sequence[str], answers: Sequence[str]) -> Callable[[np.ndarray], TokenTable]:
        """Returns a function from int [n, 2], rows of questions and of answers, to the joined texts."""
        first, second = (self.processors[side](texts) for side, texts in zip(SIDES, (questions, answers), strict=True))
        return lambda pairs: join_texts(first, second, pairs, self.between, self._cut)


@dataclasses.dataclass(frozen=True)
class PairEvaluator:
    """Re-ranks the top answers of BM25 for a sample of questions, as scoring all pairs of a pool takes too long.

    Attributes:
      scorer: scorer of question-answer pairs.
      settings: settings of the method, with the number of questions and of answers per question.
    """

    scorer: ClassifierScorer
    settings: PairSettings

    @functools.cached_property
    def _index(self) -> Callable[[Sequence[str], str], BM25]:
        """`BM25.of_texts`, which counts the words of a pool once, though it is ranked at every validation."""
        return functools.cache(BM25.of_texts)

    def select(self, records: RetrievalSet) -> RetrievalSet:
        """Returns the set with `objective.questions` questions and the whole pool."""
        return limit_questions(records, self.settings.questions)

    def evaluate(self, params: dict, pools: Pools) -> Mapping[str, Evaluation]:
        """Re-ranks BM25's top answers in each pool."""
        return {name: self._rank(params, records) for name, records in pools.items()}

    def report(self, results: Results, trained: dict, untrained: Callable[[], dict] | None) -> None:
        """Adds the re-ranked answers to the results as the system `trained`."""
        del untrained  # the scores of a new head are random
        results.add("trained", self.evaluate(trained, results.pools))
        top = self.settings.top
        results.notes.append(
            f"trained: the pair classifier ranks {f'the top {top} of bm25' if top else 'all candidates'} for "
            f"{counted(len(results.pools.primary.questions), 'question')} (objective.top, objective.questions)"
        )

    def _rank(self, params: dict, records: RetrievalSet) -> Evaluation:
        score = self.scorer(params, records.questions, records.candidates, progress=showing_progress())
        first = self._index(records.candidates, records.text_language).score_block(records.questions)
        return evaluate_pairs(score, first, records, top=self.settings.top)


def evaluate_by_pairs(
    objective: PairObjective, encoder: TextEncoder, mesh: Mesh, settings: EvaluationSettings
) -> PairEvaluator:
    """Returns the evaluator of a run.

    Raises:
      EndxError: pairs may exceed the encoder's positions, or `evaluation.reverse` is set.
    """
    if settings.reverse:
        raise EndxError("evaluation.reverse needs a method with embeddings; objective.name=pair has none: unset it")
    scorer = pair_scorer(objective, encoder.processors, mesh, settings.batch_size)
    return PairEvaluator(scorer, objective.settings)


def pair_scorer(
    objective: PairObjective, processors: Mapping[str, TextProcessor], mesh: Mesh, batch_size: int
) -> ClassifierScorer:
    """Returns the `ClassifierScorer` of an objective."""
    return ClassifierScorer(objective.classifier, processors, mesh, batch_size)
