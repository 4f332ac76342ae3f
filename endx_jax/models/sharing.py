"""The five parameter sharings of Dong et al. 2022 (section 3)."""

import dataclasses
from collections.abc import Mapping

# The groups of a tower's parameters. Tables of positions and types, and the norm on their sum, are the encoder's. Dong
# et al. pool by the mean and so have no parameters of pooling: sde shares them like all others, and the rest keep them
# apart, as they do what they do not name. The head that a method adds to a tower is that tower's own.
GROUPS = ("token_embedder", "token_weights", "encoder", "pooling", "projection")


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
