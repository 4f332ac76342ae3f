"""Whether a teacher has anything to teach: how well its own embeddings of held-out pairs find each other."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from endx_jax.data.batches import BatchStream, Pairs
from endx_jax.losses.contrastive import in_batch_softmax
from endx_jax.objectives import EndxObjective
from endx_jax.parallel.sharding import local_rows, to_global
from endx_jax.retrieval.dense import dense_scores
from endx_jax.retrieval.evaluate import evaluate


def evaluate_teacher(
    objective: EndxObjective, params: dict, pairs: Pairs, mesh: Mesh, *, batch_size: int, most: int = 2000
) -> dict[str, float]:
    """Ranks each pair's answer among those of all pairs by their cross-embeddings.

    Each answer is embedded beside its own question, as in training, so this is no retrieval system: a teacher may know
    from the pair what a student cannot know. It bounds what the alignment can ask for.

    Args:
      objective: with its teacher.
      params: of the objective.
      pairs: held out from training.
      mesh: over which each batch is split.
      batch_size: pairs embedded together; as many as divide over the mesh.
      most: pairs that are looked at, the first ones.

    Returns:
      `pairs`, `loss` (in-batch softmax over all those pairs, at temperature 1), and `mrr`, `recall@1`, `recall@5` of
      finding any pair with a right answer; empty where fewer pairs are held out than stand in a batch.
    """
    pairs = pairs.first(most)
    if len(pairs) < batch_size:
        return {}
    stream = BatchStream(pairs, seed=0, global_batch_size=batch_size, rows=local_rows(mesh, batch_size))
    embed = jax.jit(objective.embed_as_teacher, out_shardings=NamedSharding(mesh, PartitionSpec()))
    steps = range(-(-len(pairs) // batch_size))
    batches = (to_global(stream[step], mesh, batch_size) for step in steps)
    embedded = jax.device_get([embed(params, batch) for batch in batches])
    # The last batch reaches into the next epoch, where pairs come a second time.
    question, answer = (
        np.concatenate([getattr(part, side) for part in embedded])[: len(pairs)] for side in ("question", "answer")
    )
    rows = np.concatenate([stream.example_ids(step) for step in steps])[: len(pairs)]
    question_id, answer_id = pairs.index[rows].T
    qrels = [np.flatnonzero(np.isin(answer_id, pairs.positives[q])).tolist() for q in question_id]
    found = evaluate(dense_scores(question, answer), qrels, candidates=len(pairs), depth=1)
    metrics = {name: found.metrics[name] for name in ("mrr", "recall@1", "recall@5")}
    loss = in_batch_softmax(jnp.asarray(question), jnp.asarray(answer), question_id=question_id, answer_id=answer_id)
    return {"pairs": len(pairs), "loss": float(loss), **metrics}
