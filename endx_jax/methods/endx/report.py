"""Comparison of teacher and student on held-out pairs."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from endx_jax.data.batches import Pairs
from endx_jax.losses.contrastive import in_batch_softmax
from endx_jax.methods.endx.objective import EndxObjective
from endx_jax.methods.evaluation import compute_held_out
from endx_jax.models.dual_encoder import SIDES
from endx_jax.parallel.sharding import rounded_up
from endx_jax.retrieval.evaluate import evaluate
from endx_jax.retrieval.results import Section
from endx_jax.retrieval.systems import dense_scores

MEASURES = ("mrr", "hit@1", "hit@5")


def compare_teacher(
    objective: EndxObjective, params: dict, pairs: Pairs, mesh: Mesh, *, batch_size: int, most: int = 2000
) -> Section | None:
    """Ranks the answers of held-out pairs by the teacher's embeddings and by the student's.

    The teacher embeds each answer together with its own question, as in training, so it has information that a
    retrieval system does not have. A teacher that ranks held-out pairs no better than the student cannot improve it.

    Args:
      objective: the ENDX objective.
      params: parameters of the objective.
      pairs: pairs held out from training.
      mesh: mesh over which each batch is split.
      batch_size: pairs embedded together, rounded up to a multiple of the devices that share them.
      most: maximum number of pairs; the first ones are used.

    Returns:
      The section `held_out_pairs` with entries `teacher` and `student`: `pairs`, the number of pairs; `loss`, the
      in-batch softmax over all pairs at its own temperature; and `mrr`, `hit@1` and `hit@5` of the first right answer.
      None if there are fewer pairs than `batch_size`, or `teacher_model` gives the teacher's embeddings.
    """
    if objective.settings.teacher_model:
        return None
    pairs, batch_size = pairs.first(most), rounded_up(batch_size, mesh)
    if len(pairs) < batch_size:
        return None

    def embed(params, batch, number):
        del number
        dual_encoder, teacher = params["dual_encoder"], objective.embed_as_teacher(params, batch)
        return {
            "teacher": {side: getattr(teacher, side) for side in SIDES},
            "student": {side: objective.model.encode(dual_encoder, side, getattr(batch, side)) for side in SIDES},
        }

    batches = -(-len(pairs) // batch_size)
    # The last batch extends into the next epoch, whose pairs are repetitions.
    rows, embeddings = jax.tree.map(
        lambda *parts: np.concatenate(parts)[: len(pairs)],
        *compute_held_out(embed, params, pairs, mesh, batch_size, batches),
    )
    question_id, answer_id = pairs.index[rows].T
    qrels = [np.flatnonzero(np.isin(answer_id, pairs.positives[q])).tolist() for q in question_id]
    student = objective.dual.learned(params)["temperature"]
    temperatures = {"teacher": objective.teacher_temperature(student), "student": student}

    def measure(temperature, question, answer):
        ranked = evaluate(dense_scores(question, answer), qrels, candidates=len(pairs), depth=1)
        embedded = jnp.asarray(question), jnp.asarray(answer)
        loss, _ = in_batch_softmax(*embedded, temperature=temperature, question_id=question_id, answer_id=answer_id)
        return {"pairs": len(pairs), "loss": float(loss), **{name: ranked.metrics[name] for name in MEASURES}}

    measured = {name: measure(temperatures[name], *(of[side] for side in SIDES)) for name, of in embeddings.items()}
    lines = [
        f"{name}: {values['pairs']:,} held-out pairs ranked with MRR {values['mrr']:.3f}, hit@1 {values['hit@1']:.3f} "
        f"and loss {values['loss']:.3f}"
        for name, values in measured.items()
    ]
    return Section("held_out_pairs", measured, lines)
