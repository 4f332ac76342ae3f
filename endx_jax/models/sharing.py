"""The five parameter sharings of Dong et al. 2022 (section 3)."""

import dataclasses
from collections.abc import Mapping

# Parameter groups of a tower. Position and type embeddings and their norm belong to the encoder. Dong et al. use mean
# pooling and do not mention parameters of pooling: sde shares them, and the other sharings do not. Each tower has its
# own copy of a head that a method adds.
GROUPS = ("token_embedder", "token_weights", "encoder", "pooling", "projection")


@dataclasses.dataclass(frozen=True)
class Sharing:
    """Groups of parameters that the two towers share, and groups that are not trained.

    Attributes:
      shared: groups that both towers use; each tower has its own copy of the other groups.
      frozen: groups that are not trained.
      drawback: disadvantage reported by Dong et al. 2022; empty if none.
    """

    shared: frozenset[str]
    frozen: frozenset[str] = frozenset()
    drawback: str = ""


_APART = (
    "in Dong et al. 2022, towers without a shared projection embed questions and answers in separate regions and "
    "retrieve worse (SQuAD MRR {mrr}, against 78.4 for sde and 77.7 for ade_spl); ade_spl has separate towers and a "
    "shared projection"
)

SHARINGS: Mapping[str, Sharing] = {
    "sde": Sharing(frozenset(GROUPS)),
    "ade": Sharing(frozenset(), drawback=_APART.format(mrr=70.3)),
    "ade_ste": Sharing(frozenset({"token_embedder"}), drawback=_APART.format(mrr=70.9)),
    # Both towers freeze the same values, so they share one array.
    "ade_fte": Sharing(frozenset({"token_embedder"}), frozenset({"token_embedder"}), drawback=_APART.format(mrr=72.2)),
    "ade_spl": Sharing(frozenset({"projection"})),
}
