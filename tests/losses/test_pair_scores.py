"""Prefixes, ceilings, guides, terms of one side, frequencies and MaxSim in the losses over a batch, against a twin."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import split_over
from jax.sharding import PartitionSpec

from endx_jax.batch import TokenVectors
from endx_jax.losses import Ceiling, Guide, Options, Prefixes, in_batch_sigmoid, in_batch_softmax
from endx_jax.planning.compiled import traced_flops

B, E, K, G, TILE = 16, 6, 2, 3, 5  # 16 pairs: two a device, and three tiles of which the last is smaller
AXES = ("data", "fsdp")

# Options of each case; `guide`, `log_q` and `tokens` stand for drawn arrays.
CASES = {
    "prefixes of any norm": {"prefixes": Prefixes((1, 4), normalize=False), "ceiling": Ceiling(1.0, 1.5)},
    "other direction": {"direction": "answer_to_question", "prefixes": Prefixes((2, 6)), "ceiling": Ceiling(1.0, 0.3)},
    "no option": {"direction": "mean"},
    "joint": {"direction": "joint", "same_side": ("questions", "answers"), "log_q": True},
    "all": {
        "prefixes": Prefixes((2, 6), (1.0, 2.0)),
        "same_side": ("questions",),
        "ceiling": Ceiling(0.9, 0.3),
        "guide": True,
        "guide_ceiling": Ceiling(1.0, 0.2),
        "log_q": True,
    },
    "tokens in one direction": {"tokens": True, "direction": "answer_to_question"},
}
CASES["tokens"] = {name: value for name, value in CASES["all"].items() if name != "prefixes"} | {"tokens": True}
CASES["tokens"] |= {"direction": "joint", "same_side": ("questions", "answers")}
SIGMOID = {name: CASES["all"][name] for name in ("prefixes", "same_side", "ceiling", "guide", "guide_ceiling")}
LOSSES: dict = {
    **{name: (in_batch_softmax, case) for name, case in CASES.items()},
    "sigmoid": (in_batch_sigmoid, SIGMOID),
}


LENGTHS = {"question": (B, 4), "answer": (B, 5), "hard_negatives": (B, K, 3)}
SLOW = ("sigmoid", "prefixes of any norm", "tokens", "tokens in one direction")  # two of them are fast in tiles


def drawn(tokens: bool = False) -> tuple[dict, dict]:
    """Arguments with a gradient, and others. Hard negatives that are missing, and pairs that do not count, are NaN.

    With `tokens`, two tokens of each answer are equal, and one question and one answer have none that counts.
    """
    draw = np.random.default_rng(0)
    ids = {
        "question_id": draw.integers(-1, 12, B),
        "answer_id": draw.integers(-1, 12, B),
        "positive_ids": draw.integers(-1, 20, (B, 2)),
        "hard_negative_ids": draw.integers(-1, 12, (B, K)),
    }
    rest = {name: value.astype(np.int32) for name, value in ids.items()} | {"where": np.arange(B) % 7 != 3}
    rest["guide"] = Guide(*(draw.normal(size=size) for size in ((B, G), (B, G), (B, K, G))))
    rest["log_q"] = draw.normal(size=B)
    moving = {name: draw.normal(size=(B, E)) for name in ("question", "answer")}
    moving["hard_negatives"] = draw.normal(size=(B, K, E))
    if tokens:
        moving = {name: draw.normal(size=(*shape, E)) for name, shape in LENGTHS.items()}
        moving["answer"][:, 1] = moving["answer"][:, 0]
        rest["tokens"] = {name: draw.random(shape) < 0.8 for name, shape in LENGTHS.items()}
        rest["tokens"]["question"][1], rest["tokens"]["answer"][4] = False, False
        moving["question"] /= 2
    for hard in (moving["hard_negatives"], rest["guide"].hard_negatives):
        hard[rest["hard_negative_ids"] < 0] = np.nan
    for array in (*moving.values(), *rest["guide"], rest["log_q"]):
        array[~rest["where"]] = np.nan
    return moving | {"temperature": np.float64(0.5)}, rest


def masks(rest: dict) -> dict:
    """Wrong pairs of each term, by loops over ids; bool [row, column]."""
    question, answer, positives = rest["question_id"], rest["answer_id"], rest["positive_ids"]
    where, hard = rest["where"], rest["hard_negative_ids"].reshape(-1)

    def wrong(i, j):
        equal = question[i] == question[j] >= 0 or answer[i] == answer[j] >= 0
        return where[i] and where[j] and i != j and not equal and not (answer[j] >= 0 and answer[j] in positives[i])

    def wrong_hard(i, j):
        known = hard[j] == answer[i] or hard[j] in positives[i]
        return where[i] and where[j // K] and hard[j] >= 0 and not known

    every = np.array([[wrong(i, j) for j in range(B)] for i in range(B)])
    of_hard = np.array([[wrong_hard(i, j) for j in range(B * K)] for i in range(B)])
    one_side = every & every.T
    return {"a|q": every, "h|q": of_hard, "q|a": every.T, "q|q": one_side, "a|a": one_side}


def twin(loss, moving, rest, *, prefixes, ceiling, guide_ceiling, same_side=(), direction="question_to_answer"):
    """The loss with whole matrices, one prefix and term after another, differentiated by JAX."""
    where, wrong = jnp.asarray(rest["where"]), masks(rest)

    def sides(question, answer, hard, width=None):
        present = rest["hard_negative_ids"] >= 0
        hard = jnp.where(present.reshape(B, K, *[1] * (hard.ndim - 2)), hard, 0)
        found = [jnp.where(where.reshape(-1, *[1] * (x.ndim - 1)), x, 0) for x in (question, answer, hard)]
        found = [x[..., : width or x.shape[-1]] for x in found]
        if width and prefixes.normalize:
            found = [x / jnp.linalg.norm(jnp.where(x == 0, 1e-9, x), axis=-1, keepdims=True) for x in found]
        q, a, h = found
        return {"q": q, "a": a, "h": h.reshape(B * K, *h.shape[2:])}

    def terms_of(texts):
        if texts["q"].ndim == 2:
            return {term: texts[term[2]] @ texts[term[0]].T for term in wrong}
        question, answer, hard = rest["tokens"].values()
        counted = {"q": question, "a": answer, "h": hard.reshape(B * K, -1)}

        def scores(of, among):
            return jax.vmap(jax.vmap(naive_maxsim, (None, None, 0, 0)), (0, 0, None, None))(
                texts[of], counted[of], texts[among], counted[among]
            )

        return {term: scores("q", "a").T if term == "q|a" else scores(term[2], term[0]) for term in wrong}

    guide = terms_of(sides(*rest["guide"])) if rest["guide"] else None
    log_q = jnp.zeros(B) if rest["log_q"] is None else jnp.where(where, rest["log_q"], 0)
    # Candidates of `q|a` are pairs with the row's own answer where the right candidate is an answer.
    of_candidates = {"a|q": log_q[None], "a|a": log_q[None], "q|a": log_q[:, None], "h|q": 0, "q|q": 0}
    losses = []
    for width in prefixes.widths:
        scores = terms_of(sides(moving["question"], moving["answer"], moving["hard_negatives"], width))
        right = jnp.diagonal(scores["a|q"])
        kept = {}
        for term, mask in wrong.items():
            kept[term] = jnp.asarray(mask)
            if ceiling:
                kept[term] &= scores[term] <= limit(ceiling, right)[:, None]
            if guide:
                kept[term] &= guide[term] <= limit(guide_ceiling, jnp.diagonal(guide["a|q"]))[:, None]
        both = [{"questions": "q|q", "answers": "a|a"}[side] for side in same_side]
        if loss is in_batch_sigmoid:
            logits = {term: scores[term] / moving["temperature"] + moving["bias"] for term in ["a|q", "h|q", *both]}
            total = jnp.sum(jnp.where(where, jax.nn.softplus(-jnp.diagonal(logits["a|q"])), 0))
            for term, x in logits.items():
                total += jnp.sum(jnp.where(kept[term], jax.nn.softplus(x), 0))
        else:
            exponentials = {
                term: jnp.where(kept[term], jnp.exp(x / moving["temperature"] - of_candidates[term]), 0).sum(axis=1)
                for term, x in scores.items()
            }
            own = jnp.exp(right / moving["temperature"] - log_q)
            to_answers, to_questions = ["a|q", "h|q", *both], ["q|a", *both]

            def one_sum(terms, right=right, own=own, exponentials=exponentials):
                if "a|q" not in terms:  # the right candidate is a question, and so are those of `q|a`
                    own = jnp.exp(right / moving["temperature"])
                    exponentials = exponentials | {"q|a": exponentials["q|a"] * jnp.exp(log_q)}
                rows = jnp.log(own + sum(exponentials[term] for term in terms)) - jnp.log(own)
                return jnp.sum(jnp.where(where, rows, 0))

            one, other = one_sum(to_answers), one_sum(to_questions)
            total = {
                "question_to_answer": one,
                "answer_to_question": other,
                "sum": one + other,
                "mean": (one + other) / 2,
                "joint": one_sum([*to_answers, "q|a"]),
            }[direction]
        losses.append(total / where.sum())
    weights = prefixes.weights or (1.0,) * len(losses)
    excluded = where.sum() * (where.sum() - 1) - kept["a|q"].sum()
    # Metrics are those of the longest prefix.
    logits = scores["a|q"] / moving["temperature"] - log_q[None]
    won = jnp.all(~kept["a|q"] | (jnp.diagonal(logits)[:, None] > logits), axis=1)
    metrics = {"masked_fraction": excluded / (where.sum() * (where.sum() - 1))}
    metrics["in_batch_accuracy"] = jnp.sum(won & where) / where.sum()
    return sum(map(jnp.multiply, weights, losses)), metrics


def naive_maxsim(question, counted, answer, among):
    highest = jnp.max(jnp.where(among[None], question @ answer.T, -jnp.inf), axis=1)
    return jnp.sum(jnp.where(counted & among.any(), highest, 0))


def limit(ceiling: Ceiling, right):
    relative = jnp.where(right > 0, ceiling.share * right, (2 - ceiling.share) * right)
    return relative + ceiling.margin


OPTIONS = [field.name for field in dataclasses.fields(Options)]


def options(case: dict) -> dict:
    return {name: value for name, value in case.items() if value is not True}


def with_options(loss, *pair, **given):
    """Calls a loss with those of its arguments that are options, and embeddings of tokens with their masks, grouped."""
    grouped = {name: given.pop(name) for name in OPTIONS if name in given}
    given |= {name: TokenVectors(given[name], mask) for name, mask in given.pop("tokens", {}).items()}
    return loss(*pair, **given, options=Options(**grouped))


def arguments(loss, case: dict, dtype=np.float64) -> tuple[dict, dict]:
    moving, rest = drawn(case.get("tokens", False))
    moving = {name: x.astype(dtype) for name, x in moving.items()}
    rest = {name: value for name, value in rest.items() if name not in ("guide", "log_q") or case.get(name)}
    if loss is in_batch_sigmoid:
        moving |= {"bias": dtype(-1.0)}
    return moving, rest


def values_and_gradients(compute, loss, case, dtype=np.float64) -> tuple:
    """Loss, metrics and gradients."""
    with jax.enable_x64(True):
        return jax.device_get(jax.jit(jax.value_and_grad(compute, has_aux=True))(*arguments(loss, case, dtype)))


@functools.cache
def expected(name: str) -> tuple:
    """Loss, metrics and gradients by the twin, in float64."""
    loss, case = LOSSES[name]

    def compute(moving, rest):
        _, rest = arguments(loss, case)  # the twin's masks are loops over arrays in NumPy
        given = {"ceiling": None, "guide_ceiling": Ceiling(), "prefixes": Prefixes((E,), normalize=False)}
        return twin(loss, moving, {"guide": None, "log_q": None} | rest, **(given | options(case)))

    return values_and_gradients(compute, loss, case)


def found(name, *, tile=None, devices=None, dtype=np.float64) -> tuple:
    """Loss, metrics and gradients by the library."""
    loss, case = LOSSES[name]
    axis_name = AXES if devices else None

    def compute(moving, rest):
        value, metrics = with_options(loss, **moving, **rest, **options(case), tile=tile, axis_name=axis_name)
        return value, {name: metrics[name] for name in ("masked_fraction", "in_batch_accuracy")}

    if not devices:
        return values_and_gradients(compute, loss, case, dtype)
    mesh = jax.make_mesh((devices // 2, 2), AXES, (jax.sharding.AxisType.Auto,) * 2, devices=jax.devices()[:devices])

    def split(moving, rest):
        specs = {name: PartitionSpec(AXES) if np.ndim(x) else PartitionSpec() for name, x in moving.items()}
        in_specs = (specs, PartitionSpec(AXES))
        return jax.shard_map(compute, mesh=mesh, in_specs=in_specs, out_specs=PartitionSpec())(moving, rest)

    return values_and_gradients(split, loss, case)


def agree(found, expected) -> None:
    chex.assert_trees_all_close(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in LOSSES])
def test_whole_arrays_are_the_twin(name):
    (_, metrics), gradients = expected(name)
    assert 0 < metrics["masked_fraction"] < 0.9
    assert metrics["in_batch_accuracy"] < 1
    moved = {name for name, gradient in gradients.items() if np.abs(gradient).max() > 1e-3}
    assert moved >= {"question", "answer", "temperature"}
    agree(found(name), expected(name))


@pytest.mark.parametrize(
    ("name", "devices"),
    [
        ("all", 8),
        ("no option", None),
        ("sigmoid", None),
        ("tokens", 8),
        pytest.param("sigmoid", 8, marks=pytest.mark.slow),
        pytest.param("joint", None, marks=pytest.mark.slow),
    ],
)
def test_tiles_are_the_twin(name, devices):
    agree(found(name, tile=TILE, devices=devices), expected(name))


def test_float32_in_tiles_is_as_exact_as_with_whole_arrays():
    _, exact = expected("no option")

    def errors(tile) -> dict:
        (loss, _), gradients = found("no option", tile=tile, dtype=np.float32)
        assert {loss.dtype, gradients["question"].dtype} == {np.dtype("float32")}
        return {name: np.abs(gradients[name] - x).max() / np.abs(x).max() for name, x in exact.items()}

    whole, tiled = errors(None), errors(TILE)
    for name, error in tiled.items():
        assert 0 < whole[name] < 1e-6
        # The temperature's gradient is one number, whose error may be smaller than its last place.
        assert error <= 2 * max(whole[name], np.finfo(np.float32).eps), name


def masked(loss, tile, devices=None, **given):
    """Loss, accuracy and number of excluded pairs of 64 pairs of which each two have equal answers."""
    draw = np.random.default_rng(0)
    question, answer = (draw.normal(size=(64, 384)).astype(np.float32) for _ in range(2))
    answer[1::2] = answer[0::2]
    question, answer = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (question, answer))
    given = {"temperature": 0.05} | given
    if given.pop("guide", False):
        given["guide"] = Guide(question, answer)
    compute = functools.partial(with_options, loss, tile=tile, axis_name="data" if devices else None, **given)
    if devices:
        compute = split_over(devices, compute)
    value, metrics = jax.jit(compute)(question, answer)
    return float(value), float(metrics["in_batch_accuracy"]), round(float(metrics["masked_fraction"]) * 64 * 63)


@pytest.mark.parametrize("loss", [in_batch_softmax, in_batch_sigmoid])
@pytest.mark.parametrize("given", [{"ceiling": Ceiling()}, {"guide": True}], ids=["ceiling", "guide"])
def test_equal_scores_are_equal_in_every_tile(loss, given):
    given = given | ({"bias": -10.0} if loss is in_batch_sigmoid else {})
    whole = masked(loss, None, **given)
    assert whole[1] == 0  # all right answers are there twice
    other = masked(loss, 8, None if "guide" in given else 4, **given)
    np.testing.assert_allclose(other[0], whole[0], rtol=1e-6)
    assert other[1:] == whole[1:]


@pytest.mark.parametrize("tile", [None, 8])
@pytest.mark.parametrize(("loss", "given"), [(in_batch_softmax, {}), (in_batch_sigmoid, {"bias": -10.0})])
def test_a_model_with_one_embedding_has_no_right_answers(loss, given, tile):
    vector = np.random.default_rng(1).normal(size=(1, 384)).astype(np.float32)
    one = np.repeat(vector / np.linalg.norm(vector), 16, axis=0)
    _, metrics = jax.jit(lambda x: loss(x, x, tile=tile, temperature=0.05, **given))(one)
    assert metrics["in_batch_accuracy"] == 0


@pytest.mark.parametrize("tile", [None, 2])
def test_a_score_at_the_ceiling_counts(tile):
    rows = jnp.eye(2)[jnp.array([0, 0, 1])]
    _, metrics = jax.jit(lambda x: in_batch_softmax(x, x, options=Options(ceiling=Ceiling()), tile=tile))(rows)
    assert metrics["masked_fraction"] == 0


def test_frequencies_leave_sums_over_questions_as_they_are_and_count_in_the_accuracy():
    draw = np.random.default_rng(2)
    question, answer = draw.normal(size=(2, 3, 4)).astype(np.float32)
    given = {"direction": "answer_to_question", "same_side": ("questions",)}
    loss = jax.jit(functools.partial(with_options, in_batch_softmax, **given))
    assert loss(question, answer, log_q=np.float32([2, 0, -1]))[0] == loss(question, answer)[0]
    # Logits of question 0: 1 - 1.5 and 0 - 0; of question 1: 0 - 1.5 and 1 - 0.
    in_one_direction = jax.jit(functools.partial(with_options, in_batch_softmax))
    _, metrics = in_one_direction(np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32), log_q=np.float32([1.5, 0]))
    assert metrics["in_batch_accuracy"] == 0.5


def test_prefixes_need_no_more_products_than_the_whole_embedding():
    """Entries of the embeddings that products contract: each once for the value and twice for the gradient."""

    def work(prefixes) -> int:
        pair = jnp.ones((B, E)), jnp.ones((B, E))
        compute = jax.grad(lambda x: in_batch_softmax(*x, options=Options(prefixes), tile=8)[0])
        return traced_flops(jax.make_jaxpr(compute)(pair))

    assert work(None) == work(Prefixes((2, 3, 6)))
