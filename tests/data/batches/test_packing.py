"""Plans against brute force, and what they promise of every batch."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from endx_jax.batch import Packing
from endx_jax.data.batches import packing as packings
from endx_jax.data.batches.packing import GRID, JOINT, MAX_BUCKETS, MAX_PROFILES, Need, PackingPlan, needs_of, partition
from endx_jax.parallel.execution import Execution

LIMITS = {"question": 24, "answer": 60, "hard_negatives": 60}
CUTS = [(1, 1), (2, 1), (1, 5), (2, 5), (8, 2)]  # 24 rows: 24, 12, and 12 and 3 that do not divide


def square(value):
    return value * (value + 64)


def cost_of(groups, values, cost):
    ends = np.cumsum(groups)
    assert ends[-1] == len(values)
    return sum(count * cost(float(values[end - 1])) for count, end in zip(groups, ends, strict=True))


def all_cuts(n, count):
    for places in itertools.combinations(range(1, n), count - 1):
        bounds = (0, *places, n)
        yield [end - start for start, end in itertools.pairwise(bounds)]


def least(values, most, cost):
    """The least cost over all cuts, taking one more group only where it spares enough."""
    best = np.inf
    for count in range(1, min(most, len(values)) + 1):
        found = min(cost_of(groups, values, cost) for groups in all_cuts(len(values), count))
        if not found < best * (1 - packings.WORTH):
            break
        best = found
    return best


@pytest.mark.parametrize("cost", [square, lambda value: value], ids=["square", "linear"])
@pytest.mark.parametrize("most", [1, 2, 4])
def test_cuts_are_the_best_of_all(most, cost):
    draw = np.random.default_rng(most)
    for n in (1, 2, 3, 7, 9):
        values = np.sort(draw.integers(1, 60, n))
        groups = partition(values, most, cost)
        assert min(groups) > 0
        assert len(groups) <= most
        assert cost_of(groups, values, cost) == pytest.approx(least(values, most, cost))


def test_cuts_of_equal_and_of_many_values():
    assert partition(np.full(10, 7), 4, square) == [10]
    values = np.sort(np.random.default_rng(0).integers(1, 500, 8 * GRID + 3))
    exact = min(cost_of((n, len(values) - n), values, square) for n in range(1, len(values)))
    assert exact <= cost_of(partition(values, 2, square), values, square) < 1.01 * exact


@pytest.mark.parametrize(("rows", "chunks"), [(12, 1), (12, 3), (11, 3), (5, 4), (7, 7)])
def test_rows_are_dealt_once_each_and_chunks_are_alike(rows, chunks):
    costs = np.random.default_rng(rows).integers(1, 100, rows)
    places = packings.deal(costs, chunks)
    assert places.shape == (chunks, -(-rows // chunks))
    missing = places.size - rows
    assert sorted(places.ravel()) == sorted([*range(rows), *[np.argmin(costs)] * missing])
    if not missing:
        sums = costs[places].sum(1)
        assert np.ptp(sums) <= np.ptp(costs)


def test_shards_are_dealt_apart():
    costs = np.array([[3, 1, 2, 4], [1, 2, 3, 4]])
    np.testing.assert_array_equal(packings.deal(costs, 2), [[[1, 0], [2, 3]], [[0, 2], [1, 3]]])


@pytest.mark.parametrize(("rows", "size"), [(12, 4), (11, 4)])
def test_a_device_deals_as_the_plan_does(rows, size):
    costs = np.random.default_rng(rows).integers(1, 6, rows)
    execution = Execution(tower_chunk=size)

    def company(params, names):
        return jnp.broadcast_to(names[None], (len(names), len(names)))

    @jax.jit
    def run(names):
        return execution.map_rows(company, (), names, cost=lambda names: jnp.asarray(costs)[names])

    found = run(jnp.arange(rows))
    for chunk in packings.deal(costs, execution.chunks(rows)):
        for row in set(chunk):
            if list(chunk).count(row) == 1 and row != np.argmin(costs):  # the cheapest row fills up other chunks too
                np.testing.assert_array_equal(found[row], chunk)


@pytest.mark.parametrize(
    ("tokens", "buckets", "fits"),
    [
        (10, ((2, 3), (1, 5)), True),
        (9, ((2, 3), (1, 5)), False),  # too few tokens
        (10, ((3, 5),), True),
        (10, ((3, 4),), False),  # the longest is wider
        (10, ((1, 3), (1, 2), (1, 5)), False),  # one in the middle is wider
    ],
)
def test_a_packing_fits_where_it_has_room_for_all_tokens_and_each_width(tokens, buckets, fits):
    assert Need(10, np.array([2, 3, 5])).fits(Packing(tokens, buckets)) is fits


def batches(steps=40, rows=24, hard=2, seed=0):
    """Lengths of batches that differ: some have short texts."""
    draw = np.random.default_rng(seed)
    found = []
    for _ in range(steps):
        scale = draw.choice([0.3, 0.6, 1.0])
        sizes = {"question": rows, "answer": rows, "hard_negatives": (rows, hard)}
        found.append({s: draw.integers(3, 4 + int(scale * (LIMITS[s] - 4)), size) for s, size in sizes.items()})
    return found


def needs_by_hand(lengths, shards, chunks):
    """Side to (tokens, widths), each shard and chunk looked at by itself."""
    found = {side: [] for side in lengths}
    rows = len(lengths["question"]) // shards
    for shard in range(shards):
        own = {side: x[shard * rows : (shard + 1) * rows] for side, x in lengths.items()}
        totals = [sum(int(np.sum(x[row])) for x in own.values()) for row in range(rows)]
        order = sorted(range(rows), key=totals.__getitem__)
        order += order[:1] * (-rows % chunks)
        for chunk in range(chunks):
            for side, x in own.items():
                found[side].append(sorted(np.concatenate([np.ravel(x[row]) for row in order[chunk::chunks]])))
    return {side: (max(map(sum, parts)), np.max(parts, axis=0)) for side, parts in found.items()}


@pytest.mark.parametrize(("shards", "chunks"), CUTS)
def test_a_need_is_that_of_the_part_that_needs_most(shards, chunks):
    for lengths in batches(3):
        for side, (tokens, widths) in needs_by_hand(lengths, shards, chunks).items():
            need = needs_of(lengths, shards, chunks)[side]
            assert need.tokens == tokens
            np.testing.assert_array_equal(need.widths, widths)


@pytest.mark.parametrize(("shards", "chunks"), CUTS)
def test_every_planned_batch_has_the_smallest_planned_profile_that_fits(shards, chunks):
    planned = batches()
    plan = PackingPlan.from_batches(planned, LIMITS, shards=shards, chunks=chunks, steps=10**9)
    *profiles, anything = plan.profiles
    assert 1 < len(profiles) <= MAX_PROFILES
    room = []
    for profile in plan.profiles:
        assert set(profile) == set(LIMITS)
        for side, packing in profile.items():
            texts = -(-(24 // shards) // chunks)
            assert sum(count for count, _ in packing.buckets) == texts * (2 if side == "hard_negatives" else 1)
            assert len(packing.buckets) <= MAX_BUCKETS
            assert packing.buckets[-1][1] <= LIMITS[side]
        room.append(sum(packing.tokens for packing in profile.values()))
    assert room[:-1] == sorted(room[:-1])
    computed = real = 0
    for lengths in planned:
        needs = {side: Need(*need) for side, need in needs_by_hand(lengths, shards, chunks).items()}
        fitting = [profile for profile in profiles if all(needs[side].fits(profile[side]) for side in needs)]
        chosen = plan.choose(lengths)
        assert chosen == fitting[0] != anything
        computed += shards * chunks * sum(packing.tokens for packing in chosen.values())
        real += sum(int(x.sum()) for x in lengths.values())
    # A batch may fit a smaller profile than the one that was made with it in mind.
    assert computed / real <= plan.overhead < 1.05 * computed / real


@pytest.mark.parametrize("joint", [{}, {JOINT: 60}])
def test_any_batch_has_a_profile(joint):
    plan = PackingPlan.from_batches(batches(), LIMITS | joint, shards=2, chunks=5, steps=10**9)
    longest = {side: np.full((24, 2) if side == "hard_negatives" else 24, limit) for side, limit in LIMITS.items()}
    assert plan.choose(longest) is plan.profiles[-1]
    needs = needs_of(longest, 2, 5)
    assert all(needs[side].tokens == plan.profiles[-1][side].tokens for side in LIMITS)
    assert needs[JOINT].tokens == sum(needs[side].tokens for side in LIMITS)
    for lengths in batches(20, seed=1):
        needs = needs_of(lengths, 2, 5)
        assert all(needs[side].fits(packing) for side, packing in plan.choose(lengths).items())


def test_a_plan_is_a_function_of_the_batches():
    plans = [PackingPlan.from_batches(batches(), LIMITS, shards=2, chunks=3, steps=10**9) for _ in range(2)]
    assert plans[0] == plans[1]
    assert plans[0] != PackingPlan.from_batches(batches(seed=1), LIMITS, shards=2, chunks=3, steps=10**9)
    lengths = {"question": np.full(32, 8), "answer": np.full(32, 33)}
    plan = PackingPlan.from_batches([lengths] * 10, {"question": 24, "answer": 60}, shards=1, chunks=1, steps=10**9)
    assert plan.profiles[:-1] == ({"question": Packing(32 * 8, ((32, 8),)), "answer": Packing(32 * 33, ((32, 40),))},)
    assert plan.overhead == 1.0


def test_texts_of_all_sides_together_need_no_more_padding_than_by_themselves():
    apart, together = (
        PackingPlan.from_batches(batches(), limits, shards=2, chunks=3, steps=10**9)
        for limits in (LIMITS, LIMITS | {JOINT: 60})
    )
    assert 1 < together.overhead < apart.overhead
    room = [profile[JOINT].tokens for profile in together.profiles]
    assert room == sorted(room)
    assert all(len(profile[JOINT].row_widths) == 4 * (1 + 1 + 2) for profile in together.profiles)
