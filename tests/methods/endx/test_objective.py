"""ENDX's objective against the losses it is made of, and who learns from whom."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import drawn, largest, mesh_of, pairs_batch, without_metrics
from tiny_vae import VOCABULARY, WIDTH, Encoder

from endx_jax import losses
from endx_jax.losses import Guide, geometry_alignment
from endx_jax.methods.endx import EndxObjective, EndxSettings
from endx_jax.models import DualEncoder, MultiHopAttention, Projection, TokenEmbedder, Tower
from endx_jax.models.dropout import example_keys, fold
from endx_jax.models.sharing import SHARINGS
from endx_jax.parallel.execution import Execution
from endx_jax.parallel.sharding import parameter_paths
from endx_jax.training.step import TrainState, merge_frozen, split_frozen

embedding_regression = without_metrics(losses.embedding_regression)
in_batch_softmax = without_metrics(losses.in_batch_softmax)

B = 8
RNG, STEP = jax.random.key(2, impl="threefry2x32"), jnp.int32(0)
SETTINGS = EndxSettings(cross_heads=2, ramp_epochs=0.0, weights=(("a|q", 1.0),))


def model(sharing="sde", dtype=jnp.float32, dropout=0.0, **changes):
    embedder, projection = TokenEmbedder(VOCABULARY, WIDTH, dtype), Projection(WIDTH)
    one = Tower(embedder, Encoder(dropout), projection=projection, normalize=False, **changes)
    return DualEncoder(one, one, SHARINGS[sharing])


def build(settings=SETTINGS, **options):
    """An objective and parameters for it, drawn by NumPy."""
    objective = EndxObjective(model(**options), settings)
    return objective, drawn(jax.eval_shape(lambda: initial(objective)), scale=0.5)


def initial(objective):
    return objective.init(jax.random.key(1), objective.model.init(jax.random.key(0)))


BATCH = pairs_batch([0, 1, 2, 3, 4, 5, 6, 0])


def with_parts(objective, params, expect, batch=BATCH):
    """The loss and its metrics, and what `expect` makes of the embeddings and the ids of the batch, in one program."""
    ids = {"answer_id": batch.answer_id, "question_id": batch.question_id}

    @jax.jit
    def compute(params):
        embedded = objective.embed(params, (batch, example_keys(RNG, STEP, B)))
        return objective(params, batch, RNG, STEP), expect(embedded, ids)

    return compute(params)


def pair(part):
    return part.question, part.answer


SPACE = tuple(jnp.asarray(np.random.default_rng(n).normal(size=(B, 3)), jnp.float32) for n in range(2))


WEIGHTS = {"a|q": 0.5, "q|q": 3.0, "a|a": 2.0}  # q|a is left out


@functools.cache
def of_equation_13(given: bool) -> tuple:
    """An objective, its parameters, and what `with_parts` returns of them."""
    weighed = {"weights": tuple(WEIGHTS.items()), "alignment_temperatures": (1.5, 0.5)}
    settings = dataclasses.replace(SETTINGS, temperature=2.0, teacher_model="a model" * given, **weighed)
    objective, params = build(settings, dropout=0.2)
    rows = dataclasses.replace(BATCH, extra={"guide": Guide(*SPACE)}) if given else BATCH

    def expect(embedded, ids):
        spaces = pair(embedded.student), SPACE if given else pair(embedded.teacher)
        retrieval = [in_batch_softmax(*space, temperature=2.0, **ids) for space in spaces]
        return geometry_alignment(*spaces, weights=WEIGHTS, temperature=(1.5, 0.5)), retrieval

    return objective, params, with_parts(objective, params, expect, rows)


@pytest.mark.parametrize("given", [False, True])
def test_the_loss_is_equation_13_of_its_parts(given):
    """A given model's embeddings take the place of the cross-encoder's, and the model does not learn."""
    _, params, computed = of_equation_13(given)
    assert ("teacher" in params) != given
    (loss, metrics), ((aligned, terms), (dual_loss, cross_loss)) = computed
    np.testing.assert_allclose(loss, (dual_loss + (0 if given else cross_loss)) / 4 + aligned / 2, rtol=1e-5)
    np.testing.assert_allclose(metrics["dual_loss"], dual_loss, rtol=1e-5)
    np.testing.assert_allclose(metrics["cross_loss"], cross_loss, rtol=1e-5)
    for term, value in terms.items():
        np.testing.assert_allclose(metrics[f"alignment/{term}"], value, rtol=1e-5)
        np.testing.assert_allclose(metrics[f"weighted_alignment/{term}"], 0.5 * WEIGHTS[term] * value, rtol=1e-5)
    assert "alignment/q|a" not in metrics
    np.testing.assert_allclose(metrics["masked_fraction"], 2 / (B * (B - 1)))


def test_regression_is_the_other_alignment():
    objective, params = build(dataclasses.replace(SETTINGS, alignment="regression"))
    expect = lambda embedded, ids: embedding_regression(pair(embedded.student), pair(embedded.teacher))  # noqa: E731
    (_, metrics), expected = with_parts(objective, params, expect)
    np.testing.assert_allclose(metrics["alignment/regression"], expected, rtol=1e-5)
    assert not [name for name in metrics if "|" in name]


def test_the_teacher_has_a_norm_and_a_temperature_of_its_own_and_entropies_are_logged():
    settings = dataclasses.replace(
        SETTINGS, temperature=0.5, teacher_temperature=2.0, teacher_normalize=False, alignment_temperatures=(0.5, 0.25)
    )
    objective, params = build(settings)
    unit = dataclasses.replace(objective.model.question, normalize=True)
    objective = dataclasses.replace(objective, model=dataclasses.replace(objective.model, question=unit, answer=unit))
    normalized = dataclasses.replace(objective, settings=dataclasses.replace(settings, teacher_normalize=True))
    assert normalized.cross_encoder.normalize
    assert not objective.cross_encoder.normalize

    def expect(embedded, ids):
        found = {}
        for name, part, own, aligned in (("dual", embedded.student, 0.5, 0.5), ("cross", embedded.teacher, 2.0, 0.25)):
            p = jax.nn.softmax(part.question @ part.answer.T / aligned, axis=1)
            found[f"{name}_loss"] = in_batch_softmax(*pair(part), temperature=own, **ids)
            found[f"{name}_entropy"] = -jnp.sum(p * jnp.log(p), axis=1).mean()
        return embedded, found

    (_, metrics), (embedded, expected) = with_parts(objective, params, expect)
    np.testing.assert_allclose(np.linalg.norm(embedded.student.question, axis=1), 1, rtol=1e-5)
    assert np.ptp(np.linalg.norm(embedded.teacher.answer, axis=1)) > 1e-3
    for name, value in expected.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-4 if "entropy" in name else 1e-5)


@pytest.mark.slow
def test_the_gradient_is_a_finite_difference_along_a_direction():
    """In float64, along a random direction of all parameters, with the alignment's gradient in both spaces."""
    weighed = {"weights": EndxSettings().weights, "alignment_temperatures": (0.5, 0.25), "ramp_start": 1}
    settings = dataclasses.replace(SETTINGS, stop_gradient=False, teacher_temperature=2.0, **weighed)
    with jax.enable_x64(True):
        objective, params = build(settings, dtype=jnp.float64)
        params = jax.tree.map(lambda x: x.astype(jnp.float64), params)
        compute = jax.jit(jax.value_and_grad(lambda params: objective(params, BATCH, RNG, jnp.int32(3))[0]))
        draw = np.random.default_rng(0)
        way = jax.tree.map(lambda x: jnp.asarray(draw.normal(size=x.shape)), params)
        ahead, behind = (compute(jax.tree.map(lambda x, w, e=e: x + e * w, params, way))[0] for e in (1e-5, -1e-5))
        gradient = compute(params)[1]
        along = sum(jnp.vdot(g, w) for g, w in zip(jax.tree.leaves(gradient), jax.tree.leaves(way), strict=True))
        assert largest(gradient["teacher"]) > 1e-3
        np.testing.assert_allclose((ahead - behind) / 2e-5, along, rtol=1e-3)  # attention is in float32


def test_a_frozen_teacher_has_no_gradient_no_optimizer_state_and_no_dropout():
    objective, params = build(dataclasses.replace(SETTINGS, teacher_from="a", teacher_frozen=True), dropout=0.2)
    trained, fixed = split_frozen(params, objective.frozen)
    assert set(parameter_paths(fixed)) == {f"teacher/{path}" for path in parameter_paths(params["teacher"])}

    def moments(frozen):
        state = TrainState.create(params, optax.adam(1e-3), frozen)
        return [path for path in parameter_paths(state.opt_state) if "teacher/" in path]

    assert moments(())
    assert not moments(objective.frozen)

    @jax.jit
    def compute(trained):
        params = merge_frozen(trained, fixed)
        embedded = objective.embed(params, (BATCH, example_keys(RNG, STEP, B)))
        gradients = jax.grad(lambda trained: objective(merge_frozen(trained, fixed), BATCH, RNG, STEP)[0])(trained)
        return gradients, embedded.teacher, objective.embed_as_teacher(params, BATCH)

    gradients, teacher, without = compute(trained)
    assert largest(gradients) > 1e-4
    chex.assert_trees_all_close(teacher, without, atol=1e-6)


def test_the_weights_rise_linearly_over_the_ramp():
    weighed = {"a|q": 0.5, "q|q": 1e4}
    ramps = ({"ramp_steps": 10}, {"ramp_epochs": 5.0}, {"ramp_steps": 10, "ramp_start": 5})
    settings = [dataclasses.replace(SETTINGS, **ramp, weights=tuple(weighed.items())) for ramp in ramps]
    params = build(settings[0])[1]

    @jax.jit
    def alignments(step):  # what else the objectives compute is not compiled
        made = [EndxObjective(model(), own).for_run(Execution(), steps_per_epoch=2.0) for own in settings]
        metrics = [own(params, BATCH, RNG, step + own.settings.ramp_start)[1] for own in made]
        return [{name: value for name, value in found.items() if "alignment/" in name} for found in metrics]

    for step, risen in ((-1, 0.0), (0, 0.1), (4, 0.5), (9, 1.0), (1000, 1.0)):
        for metrics in alignments(jnp.int32(step)):
            for term, weight in weighed.items():
                expected = 0.5 * weight * risen * metrics[f"alignment/{term}"]  # 0.5 is the weight of the alignment
                np.testing.assert_allclose(metrics[f"weighted_alignment/{term}"], expected, rtol=1e-5)


# Parts of the loss (see `of_equation_13`), and whether student and teacher learn from each.
PARTS = ("dual_loss", "cross_loss", "alignment/a|q")


@pytest.mark.parametrize(
    ("shares", "stops", "learn"),
    [
        ("nothing", True, [(True, False), (False, True), (True, False)]),
        ("encoder", False, [(True, False), (True, True), (True, True)]),
    ],
)
def test_parameters_that_learn_from_each_loss(shares, stops, learn):
    objective, params = build(dataclasses.replace(SETTINGS, stop_gradient=stops, teacher_shares=shares))

    @jax.jit
    @jax.jacrev
    def differentiate(params):
        _, metrics = objective(params, BATCH, RNG, STEP)
        return [metrics[name] for name in PARTS]

    for gradients, expected in zip(differentiate(params), learn, strict=True):
        assert tuple(largest(gradients[name]) > 1e-4 for name in ("dual_encoder", "teacher")) == expected
        chex.assert_tree_all_finite(gradients)


@pytest.mark.parametrize("sharing", ["sde", "ade_spl"])
@pytest.mark.parametrize(
    ("shares", "own"), [("nothing", {"token_embedder", "encoder"}), ("token_embedder", {"encoder"}), ("encoder", set())]
)
def test_the_teacher_has_for_itself_what_it_does_not_share(sharing, shares, own):
    pooled = model(sharing, pooling=MultiHopAttention(hops=3, width=4))
    objective = EndxObjective(pooled, dataclasses.replace(SETTINGS, teacher_shares=shares))
    shapes = jax.eval_shape(lambda: initial(objective))
    encoders = shapes["teacher"]["encoders"]
    places = {"sde": {"shared"}, "ade_spl": {"question", "answer"}}[sharing]  # ade_spl shares the projection alone
    assert {place: set(groups) for place, groups in encoders.items()} == (dict.fromkeys(places, own) if own else {})
    assert set(shapes["teacher"]["cross_encoder"]) == {"attention", "refinement", "pooling"}


def test_a_teacher_starts_from_its_own_copy_of_the_student_s_encoder():
    dual_encoder = jax.tree.map(jnp.asarray, build()[1]["dual_encoder"])
    copied = EndxObjective(model(), SETTINGS).init(jax.random.key(1), dual_encoder)["teacher"]["encoders"]
    chex.assert_trees_all_equal(copied["shared"]["encoder"], dual_encoder["shared"]["encoder"])
    first, copy = (jax.tree.leaves(tree)[0] for tree in (dual_encoder, copied))
    assert first.unsafe_buffer_pointer() != copy.unsafe_buffer_pointer(), "donating both would use one buffer twice"


def test_a_shared_encoder_sees_one_dropout_mask():
    objective, params = build(dataclasses.replace(SETTINGS, teacher_shares="encoder"), dropout=0.2)

    @jax.jit
    def both():
        keys = example_keys(RNG, STEP, B)
        encode = functools.partial(objective.model.encodings, params["dual_encoder"])
        question = encode("question", BATCH.question, fold(keys, 0))
        answer = encode("answer", BATCH.answer, fold(keys, 1))
        variables = {"params": params["teacher"]["cross_encoder"]}
        masks = BATCH.question.mask, BATCH.answer.mask
        expected = objective.cross_encoder.apply(variables, question, masks[0], answer, masks[1])
        return expected, objective.embed_as_teacher(params, BATCH, keys)

    expected, teacher = both()
    chex.assert_trees_all_close((teacher.question, teacher.answer), expected, atol=1e-6)


def test_cutting_the_work_up_changes_nothing():
    objective, params, (expected, _) = of_equation_13(False)
    mesh = mesh_of(2)  # four rows a device, in two chunks
    cut = objective.for_run(Execution(mesh, tower_chunk=3, loss_tile=3), steps_per_epoch=1.0)
    found = jax.jit(cut)(params, BATCH, RNG, STEP)
    chex.assert_trees_all_close(found, expected, rtol=5e-5)
