"""Held-out pairs of a run: the teacher beside the student of ENDX, and the decoders of a VAE."""

import json
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import reproduction.shuffled  # noqa: F401 (registers its method)
from endx_jax.batch import Batch
from endx_jax.data.batches.collator import BatchStream, Pairs
from endx_jax.data.sources import read_splits
from endx_jax.errors import EndxError
from endx_jax.experiment.saved_model import best_params, read_model
from endx_jax.files import write_text
from endx_jax.losses import gaussian_kl, in_batch_softmax
from endx_jax.methods.endx import EndxObjective
from endx_jax.methods.vae import VaeObjective
from endx_jax.methods.vae.decoders import SOURCES
from endx_jax.models.dropout import example_keys
from endx_jax.models.dual_encoder import SIDES
from endx_jax.parallel import MeshSettings, make_mesh
from endx_jax.ranking.evaluate import evaluate_scores
from endx_jax.ranking.systems import dense_scores

FILE = "held_out_pairs.json"
MOST = 2000  # number of held-out pairs; the first ones are used
MEASURES = {"teacher": ("mrr", "hit@1", "hit@5"), "decoders": ("nll", "nll_shuffled", "words", "kl")}

Measured = dict[str, dict[str, float]]


def measure(workdir: pathlib.Path) -> str:
    """Measures the best checkpoint of a run of `endx` or `vae`; writes `held_out_pairs.json` and returns lines.

    Raises:
      EndxError: the run has another method or no teacher, or fewer pairs are held out than `evaluation.batch_size`.
    """
    model = read_model(workdir)
    objective, settings = model.objective, model.settings
    if isinstance(objective, EndxObjective) and not objective.settings.teacher_model:
        compute: Callable[..., Measured] = compare_teacher
    elif isinstance(objective, VaeObjective):
        compute = check_decoders
    else:
        raise EndxError(f"{workdir} holds a run without a cross-encoder as teacher and without decoders; name another")
    splits, size = read_splits(settings.data), settings.evaluation.batch_size
    held_out = splits.validation if splits.validation.questions else splits.test
    pairs = held_out.tokenize(model.processors).first(MOST)
    if len(pairs) < size:
        raise EndxError(f"{workdir} holds out {len(pairs)} pairs, fewer than evaluation.batch_size={size}")
    params, _ = best_params(workdir, model, make_mesh(MeshSettings(), jax.local_devices()[:1]))
    found = compute(objective, params, pairs, size)
    write_text(workdir / FILE, json.dumps(found, indent=1) + "\n")
    return "\n".join(
        f"{name}: {', '.join(f'{measure} {value:,.5g}' for measure, value in values.items())}"
        for name, values in found.items()
    )


def compare_teacher(objective: EndxObjective, params: dict, pairs: Pairs, batch_size: int) -> Measured:
    """Ranks the answers of pairs by the teacher's embeddings and by the student's.

    The teacher embeds each answer together with its own question, as in training, so it has information that a
    retrieval system does not have.

    Returns:
      For `teacher` and `student`: `pairs`, the number of pairs; `loss`, the in-batch softmax over all pairs at its own
      temperature; and `mrr`, `hit@1` and `hit@5` of the first right answer.
    """

    def embed(batch: Batch, number: jax.Array):
        del number
        dual_encoder, teacher = params["dual_encoder"], objective.embed_as_teacher(params, batch)
        return {
            "teacher": {side: getattr(teacher, side) for side in SIDES},
            "student": {side: objective.model.encode(dual_encoder, side, getattr(batch, side)) for side in SIDES},
        }

    # The last batch extends into the next epoch, whose pairs are repetitions.
    rows, embeddings = jax.tree.map(
        lambda *parts: np.concatenate(parts)[: len(pairs)],
        *_computed(embed, pairs, batch_size, -(-len(pairs) // batch_size)),
    )
    question_id, answer_id = pairs.index[rows].T
    qrels = [np.flatnonzero(np.isin(answer_id, pairs.positives[q])).tolist() for q in question_id]
    student = objective.dual.learned(params)["temperature"]
    temperatures = {"teacher": objective.teacher_temperature(student), "student": student}
    found = {}
    for name, of in embeddings.items():
        question, answer = (of[side] for side in SIDES)
        ranked = evaluate_scores(dense_scores(question, answer), qrels, candidates=len(pairs), depth=1)
        ids = {"question_id": question_id, "answer_id": answer_id}
        loss, _ = in_batch_softmax(jnp.asarray(question), jnp.asarray(answer), temperature=temperatures[name], **ids)
        measures = {measure: ranked.metrics[measure] for measure in MEASURES["teacher"]}
        found[name] = {"pairs": len(pairs), "loss": float(loss), **measures}
    return found


def check_decoders(objective: VaeObjective, params: dict, pairs: Pairs, batch_size: int) -> Measured:
    """Compares the likelihood of texts with their own and with other pairs' latent vectors, in whole batches.

    Equal likelihoods mean that the decoder ignores its latent vector, as with a collapsed posterior.

    Returns:
      For each side whose texts are decoded: `pairs`, the number of pairs; `nll` in nats per text, given a sample of the
      posterior selected by `objective.decodes`; `nll_shuffled`, given the sample of the previous pair in the batch;
      `words` per text; and `kl` of the posteriors in nats per text. Samples are the same in each call.
    """

    def sums(batch: Batch, number: jax.Array) -> dict:
        keys = example_keys(jax.random.key(0, impl="threefry2x32"), number, batch_size)
        posteriors = objective.posteriors(params, batch, keys)
        decoders, of_decoders = objective.decoders, objective.decoders.parameters(params)
        latents = {side: posteriors[side].latent for side in SIDES}
        shuffled = jax.tree.map(lambda latent: jnp.roll(latent, 1, axis=0), latents)
        found = {}
        for side in SIDES:
            source = posteriors[SOURCES[objective.settings.decodes][side]]
            found[side] = {
                "nll": decoders.nll(of_decoders, side, latents, batch),
                "nll_shuffled": decoders.nll(of_decoders, side, shuffled, batch),
                "words": jnp.sum(getattr(batch, side).mask[:, 1:]),
                "kl": jnp.sum(gaussian_kl(source.mean, source.log_deviation)),
            }
        return found

    batches = len(pairs) // batch_size
    parts = [found for _, found in _computed(sums, pairs, batch_size, batches)]
    count = batches * batch_size
    totals = jax.tree.map(lambda *of_batches: float(np.sum(of_batches)) / count, *parts)
    return {side: {"pairs": count, **{name: totals[side][name] for name in MEASURES["decoders"]}} for side in SIDES}


def _computed(
    compute: Callable[[Batch, jax.Array], Any], pairs: Pairs, batch_size: int, batches: int
) -> list[tuple[np.ndarray, Any]]:
    """Returns the rows of the pairs of each batch, in the order of training with seed 0, and what is computed of it."""
    stream, compute = BatchStream(pairs, seed=0, global_batch_size=batch_size), jax.jit(compute)
    return [(stream.example_ids(n), jax.device_get(compute(stream[n], np.int32(n)))) for n in range(batches)]
