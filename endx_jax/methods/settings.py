"""Settings that a run asks of every method."""


class MethodSettings:
    """Base of the settings of a training method, `config.objective`: what a run asks of every method.

    A method whose loss compares the rows of a batch declares `loss_tile` as a field, and one that trains prefixes of
    embeddings `matryoshka_dims`; the values here are those of methods without them.

    Attributes:
      loss_tile: side of the score tiles of streamed losses; 0: dense; -1: automatic.
      matryoshka_dims: widths of the prefixes of embeddings that are trained, and ranked in the report.
      takes_hard_negatives: true if data with hard negatives is trained with them by default.
    """

    loss_tile = 0
    matryoshka_dims = tuple[int, ...]()
    takes_hard_negatives = False

    @property
    def given_model(self) -> str:
        """Name of the model whose embeddings of the training texts are in the batches; empty for none."""
        return ""

    def score_arrays(self, hard_negatives: int) -> int:
        """Returns the number of arrays of scores [B, B] of the dense loss with K hard negatives a question."""
        del hard_negatives
        return 1
