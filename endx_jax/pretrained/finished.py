"""Towers made from pretrained folders alone, without new parameters."""

from collections.abc import Mapping

from endx_jax.errors import EndxError
from endx_jax.models.dual_encoder import SIDES, DualEncoder
from endx_jax.models.sharing import Sharing
from endx_jax.pretrained.checkpoint import PretrainedEncoder
from endx_jax.pretrained.settings import NO_ENCODER, ModelSettings
from endx_jax.pretrained.token_tables import PretrainedTokens
from endx_jax.pretrained.towers import build_tower, fill_in


def finished_towers(sources: Mapping[str, PretrainedEncoder], platform: str | None = None) -> tuple[DualEncoder, dict]:
    """Builds the dual encoder described by both sides; returns it and its parameters as float32 NumPy arrays.

    An encoder with its token table, or a projection, is shared if both sides have the same folder for it. `platform` is
    as in `build_dual_encoder`.

    Raises:
      EndxError: weights are missing or do not fit, or the towers' embeddings differ in width.
    """
    question, answer = (sources[side] for side in SIDES)
    shared = set()
    if question.folder == answer.folder:
        shared |= {"token_embedder", "encoder"}
    if question.head.projection is not None and question.head.projection == answer.head.projection:
        shared.add("projection")
    settings = {s: fill_in(ModelSettings(normalize=sources[s].head.normalize), sources[s]) for s in SIDES}
    widths = [settings[s].projection or sources[s].config.width for s in SIDES]
    if len(set(widths)) > 1:
        raise EndxError(
            f"questions by {question.folder} have embeddings of {widths[0]} dimensions and answers by {answer.folder} "
            f"of {widths[1]}: they can't be compared"
        )
    towers = {side: build_tower(settings[side], sources[side], platform) for side in SIDES}
    dual_encoder = DualEncoder(**towers, sharing=Sharing(frozenset(shared)))
    params = question.params()
    same = (question.folder, question.head.projection) == (answer.folder, answer.head.projection)
    return dual_encoder, dual_encoder.join({"question": params, "answer": params if same else answer.params()})


def token_table_towers(tokens: PretrainedTokens) -> tuple[DualEncoder, dict]:
    """Builds towers of only the token table of a pretrained model; returns them and their parameters."""
    tower = build_tower(fill_in(ModelSettings(encoder=NO_ENCODER), tokens), tokens)
    return DualEncoder(tower, tower), {"shared": tokens.params()}
