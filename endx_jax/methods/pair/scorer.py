"""Batched scoring of question-answer pairs by a pair classifier, sorted by length."""

from collections.abc import Mapping, Sequence

import jax
import numpy as np
import tqdm
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from endx_jax.data.tokenization import TextProcessor
from endx_jax.errors import EndxError
from endx_jax.inference.encode import IN_FLIGHT
from endx_jax.inference.text_batches import Shapes, batches, late
from endx_jax.methods.pair.batches import join
from endx_jax.methods.pair.classifier import PairClassifier
from endx_jax.models.dual_encoder import SIDES
from endx_jax.parallel.sharding import to_global
from endx_jax.retrieval.rerank import ScorePairs


class PairScorer:
    """Scorer of pairs; it keeps the compiled programs, so create one and pass it the parameters.

    Attributes:
      classifier: the pair classifier.
      processors: text processors of each side, `question` and `answer`.
    """

    def __init__(
        self, classifier: PairClassifier, processors: Mapping[str, TextProcessor], mesh: Mesh, batch_size: int = 64
    ):
        """Sets what does not change between calls.

        Args:
          classifier: the architecture.
          processors: text processors of each side.
          mesh: over which each batch is split.
          batch_size: pairs of the maximum length that are scored together; of shorter ones as many as have the same
            number of padded tokens, and on a CPU fewer, as in `TextEncoder`.

        Raises:
          EndxError: a question and an answer of maximum length exceed the positions of the encoder.
        """
        self.classifier, self.processors, self._mesh = classifier, processors, mesh
        limit = sum(processors[side].length for side in SIDES) - 1
        positions = classifier.model.question.encoder.config.positions
        if limit > positions:
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
    ) -> ScorePairs:
        """Returns a function that scores pairs of these texts, which are tokenized once.

        Args:
          params: the objective's: `dual_encoder` and `pair`.
          questions: Q texts.
          answers: N texts.
          progress: shows a progress bar.

        Returns:
          A function from int [n, 2], rows of questions and of answers, to scores, float32 [n], the same on every
          process.
        """
        first, second = (self.processors[side](texts) for side, texts in zip(SIDES, (questions, answers), strict=True))

        def score(pairs: np.ndarray) -> np.ndarray:
            prepared = batches(lambda rows: join(first, second, pairs[list(rows)]), range(len(pairs)), self._shapes)
            scored = (
                (places, self._score(params, to_global(tokens, self._mesh, shape[0])))
                for places, shape, tokens in prepared
            )
            scores = np.empty(len(pairs), np.float32)
            bar = tqdm.tqdm(total=len(pairs), desc="scoring pairs", unit="pair", disable=not progress, leave=False)
            with bar:
                for places, found in late(scored, IN_FLIGHT):
                    scores[places] = np.asarray(found)[: len(places)]
                    bar.update(len(places))
            return scores

        return score
