"""Parameter sharings: the five of Dong et al. 2022 (section 3), and heads on a frozen tower."""

import dataclasses
from collections.abc import Mapping

# The groups of a tower's parameters. Tables of positions and types, and the norm on their sum, are the encoder's. Dong
# et al. pool by the mean and so have no parameters of pooling: sde shares them like all others, and the rest keep them
# apart, as they do what they do not name.
GROUPS = ("token_embedder", "token_weights", "encoder", "pooling", "projection", "head")
_BELOW_HEADS = frozenset(GROUPS) - {"head"}


@dataclasses.dataclass(frozen=True)
class Sharing:
    """Groups of parameters that the two towers share, and groups that are not trained.

    Attributes:
      shared: groups that both towers use; each tower has separate parameters for the others.
      frozen: groups that are not trained.
      drawback: drawback found by Dong et al. 2022; empty if none.
    """

    shared: frozenset[str]
    frozen: frozenset[str] = frozenset()
    drawback: str = ""

    @property
    def trains_heads_alone(self) -> bool:
        """True if everything below the heads is frozen."""
        return self.frozen >= _BELOW_HEADS


_APART = (
    "Dong et al. 2022 found towers without a shared projection to embed questions and answers in two separate clouds, "
    "and to retrieve worse for it (SQuAD MRR {mrr} against 78.4 of sde and 77.7 of ade_spl); ade_spl keeps the towers "
    "apart and the clouds together"
)

SHARINGS: Mapping[str, Sharing] = {
    "sde": Sharing(frozenset(GROUPS)),
    "ade": Sharing(frozenset(), drawback=_APART.format(mrr=70.3)),
    "ade_ste": Sharing(frozenset({"token_embedder"}), drawback=_APART.format(mrr=70.9)),
    # Frozen at the same values in both towers, so one array serves both.
    "ade_fte": Sharing(frozenset({"token_embedder"}), frozenset({"token_embedder"}), drawback=_APART.format(mrr=72.2)),
    "ade_spl": Sharing(frozenset({"projection"})),
}
ALL_SHARINGS: Mapping[str, Sharing] = {
    **SHARINGS,
    # Heads on one frozen tower, one a side (RR): all that is below them is computed once.
    "residual": Sharing(_BELOW_HEADS, _BELOW_HEADS),
}
