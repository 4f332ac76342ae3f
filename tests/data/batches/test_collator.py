import dataclasses

import jax
import numpy as np
import pytest
from helpers import same
from refusals import check_refusal

from endx_jax.data.batches.collator import MOST_POSITIVES, BatchStream, Collator
from endx_jax.data.batches.ragged import Ragged
from endx_jax.data.batches.sampler import Sources
from endx_jax.data.batches.token_tables import Pairs, VectorTable
from endx_jax.data.sets.records import RetrievalSet
from endx_jax.data.settings import DataSettings
from endx_jax.data.sources import mix
from endx_jax.data.tokenization import TextProcessor, Tokenizer
from endx_jax.losses import Options, in_batch_softmax
from endx_jax.losses.false_negatives import false_negative_mask
from endx_jax.methods.objective import known_ids

RECORDS = RetrievalSet.from_pairs((f"where is cat {i}", f"the cat {'sat ' * (i % 7)}on {i}") for i in range(20))
STEPS = 12


def processors(folder):
    tokenizer = Tokenizer(folder)
    return {"question": TextProcessor(tokenizer, 16), "answer": TextProcessor(tokenizer, 40)}


@pytest.fixture(scope="module")
def pairs(tiny_bert):
    return RECORDS.tokenize(processors(tiny_bert))


def stream(pairs, **changes):
    return BatchStream(pairs, Collator(pairs), **({"seed": 1, "global_batch_size": 8} | changes))


def test_a_batch_is_a_function_of_seed_and_step(pairs):
    assert same(stream(pairs)[7], stream(pairs)[7])
    assert not same(stream(pairs)[7], stream(pairs)[8])
    assert not same(stream(pairs)[7], stream(pairs, seed=2)[7])
    source = stream(pairs)
    for step, batch in zip(range(3, 6), source.iterate(3, 6, threads=2), strict=True):
        assert same(batch, source[step])


def test_each_epoch_passes_over_every_pair_once_in_its_own_order(pairs):
    source = stream(pairs)
    drawn = np.concatenate([source.example_ids(step) for step in range(5)])  # 40 = 2 epochs of 20
    assert (sorted(drawn[:20]), sorted(drawn[20:])) == (list(range(20)), list(range(20)))
    assert list(drawn[:20]) != list(drawn[20:])
    drawn = np.concatenate([stream(pairs.first(8)).example_ids(step) for step in range(3)])
    assert set(drawn) == set(range(8))


@pytest.mark.parametrize("hard_negatives", [0, 1])
def test_rows_of_processes_make_up_the_global_batch(articles, hard_negatives):
    whole = stream(articles, hard_negatives=hard_negatives)[4]
    halves = [stream(articles, hard_negatives=hard_negatives, rows=slice(n, n + 4))[4] for n in (0, 4)]
    assert same(jax.tree.map(lambda *parts: np.concatenate(parts), *halves), whole)


def test_a_question_s_own_text_is_no_negative_in_any_term_or_beside_other_prompts(tiny_bert):
    both = [pair for n in range(4) for pair in ((f"cat {n}", f"dog {n}"), (f"dog {n}", f"cat {n}"))]
    batch = stream(RetrievalSet.from_pairs(both).tokenize(processors(tiny_bert)))[0]
    mirror = batch.question_id[:, None] == (batch.question_id ^ 1)  # pairs 2 n and 2 n + 1 are of the same texts
    terms = {}, {"direction": "sum"}, {"options": Options(same_side=("questions", "answers"))}

    @jax.jit
    def compute(*pair):
        ids = known_ids(batch)
        losses = [[in_batch_softmax(*pair, temperature=0.01, **of, **term)[0] for of in (ids, {})] for term in terms]
        return false_negative_mask(**ids), losses

    # Both texts of a pair are the same point.
    found, losses = compute(*[np.eye(4, dtype=np.float32)[batch.question_id // 2]] * 2)
    np.testing.assert_array_equal(found, mirror)
    for loss, without in losses:
        assert loss < 1e-6
        assert without > 0.5  # negative control
    both = RetrievalSet.from_pairs([("cat", "dog"), ("dog", "cat")]).with_prompts("query: ", "passage: ")
    mixed = mix([RetrievalSet.from_pairs([("a", "b")]), both]).tokenize(processors(tiny_bert))
    np.testing.assert_array_equal(mixed.positives[np.arange(3)], [[0, -1], [1, 2], [1, 2]])


def test_batches_groups_and_hard_negatives_that_are_not_there_are_refused(pairs):
    check_refusal(lambda: stream(pairs, global_batch_size=21), "21 pairs", "20 pairs")
    check_refusal(lambda: stream(pairs, group_size=2), "data.group_size", "is 2")
    check_refusal(lambda: stream(pairs, hard_negatives=1), "data.hard_negatives", "is 1")


@pytest.fixture(scope="module")
def articles(tiny_bert):
    """Two articles of eight questions; each has the answers of the next two questions of its article against it."""
    records = RetrievalSet.from_pairs((f"where is cat {i}", f"the cat sat on {i}") for i in range(16))
    hard = [tuple(sorted(i - i % 8 + (i + n) % 8 for n in (1, 2))) for i in range(15)]
    records = dataclasses.replace(records, groups=tuple("ab"[i // 8] for i in range(16)), hard_negatives=(*hard, ()))
    return records.tokenize(processors(tiny_bert))


def test_batches_can_hold_one_group(articles):
    source = stream(articles, group_size=8)
    for step in range(4):
        assert len(set(source[step].question_id // 8)) == 1
    mixed = stream(articles)
    assert any(len(set(mixed[step].question_id // 8)) == 2 for step in range(4))


@pytest.mark.parametrize("most_listed", [1, 2])
def test_hard_negatives_are_drawn_from_the_questions_own_without_repetition(articles, monkeypatch, most_listed):
    monkeypatch.setattr("endx_jax.data.batches.sampler.MOST_LISTED", most_listed)
    source = stream(articles, hard_negatives=3)
    seen = {}
    for step in range(20):
        batch = source[step]
        assert batch.hard_negatives.ids.shape[:2] == batch.hard_negative_ids.shape == (8, 3)
        for row, question in enumerate(batch.question_id):
            drawn = batch.hard_negative_ids[row]
            known = list(articles.hard_negatives.row(question))
            assert sorted(drawn[drawn >= 0]) == known
            for place, candidate in enumerate(drawn):
                if candidate < 0:  # a stand-in: the question's own answer
                    candidate = batch.answer_id[row]
                length = batch.hard_negatives.mask[row, place].sum()
                tokens = articles.answers.ids[articles.answers.offsets[candidate] :][:length]
                assert length == articles.answers.lengths[candidate]
                np.testing.assert_array_equal(batch.hard_negatives.ids[row, place, :length], tokens)
    for step in range(40):
        batch = stream(articles, hard_negatives=1)[step]
        for question, drawn in zip(batch.question_id, batch.hard_negative_ids[:, 0], strict=True):
            seen.setdefault(int(question), set()).add(int(drawn))
    assert all(len(seen[question]) == 2 for question in range(15))  # each of two was drawn some time
    assert seen[15] == {-1}


def test_prompts_stand_before_every_text_and_count_for_its_length(tiny_bert):
    tokenizer = Tokenizer(tiny_bert)
    with_prompt, by_hand = TextProcessor(tokenizer, 8, "the "), TextProcessor(tokenizer, 8)
    found, expected = with_prompt(["cat", "mat 123456789"]), by_hand(["the cat", "the mat 123456789"])
    np.testing.assert_array_equal(found.ids, expected.ids)
    assert list(found.lengths) == [4, 8]


def packed_sides(batch):
    sides = {"question": batch.question, "answer": batch.answer, "hard_negatives": batch.hard_negatives}
    return {side: tokens for side, tokens in sides.items() if tokens is not None}


@pytest.mark.parametrize("hard_negatives", [0, 3])
def test_a_packing_leaves_texts_ids_and_order_alone(articles, hard_negatives):
    plain = stream(articles, hard_negatives=hard_negatives)
    packing = plain.without_padding(STEPS, shards=2, chunks=2)
    assert plain.plan is None
    assert plain.profiles() == []
    for step in (0, 5, STEPS - 1):
        expected, found = plain[step], packing[step]
        for side, tokens in packed_sides(found).items():
            other = packed_sides(expected)[side]
            np.testing.assert_array_equal(tokens.ids[tokens.mask], other.ids[other.mask])
            np.testing.assert_array_equal(tokens.mask.sum(-1), other.mask.sum(-1))
            assert tokens.ids.shape[-1] == tokens.packing.buckets[-1][1] >= tokens.mask.sum(-1).max()
            per_part = 8 // 2 // 2 * (hard_negatives if side == "hard_negatives" else 1)
            assert sum(count for count, _ in tokens.packing.buckets) == per_part
            assert other.packing is None
        for name in ("question_id", "answer_id", "positive_ids", "hard_negative_ids"):
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def test_every_process_and_every_resume_has_the_same_packings(articles):
    whole = stream(articles, hard_negatives=1).without_padding(STEPS, shards=2)
    again = stream(articles, hard_negatives=1).without_padding(STEPS, shards=2)
    parts = [stream(articles, hard_negatives=1, rows=slice(start, start + 4)) for start in (0, 4)]
    halves = [part.without_padding(STEPS, shards=2) for part in parts]
    assert whole.plan == again.plan == halves[0].plan == halves[1].plan
    for step in (7, 3):  # out of turn
        for side, tokens in packed_sides(whole[step]).items():
            assert {packed_sides(half[step])[side].packing for half in halves} == {tokens.packing}
        assert same(jax.tree.map(lambda *parts: np.concatenate(parts), *(half[step] for half in halves)), whole[step])


def shapes_of(batch):
    leaves, structure = jax.tree.flatten(batch)
    return structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)


@pytest.mark.parametrize("hard_negatives", [0, 1])
def test_profiles_are_the_shapes_of_all_batches_of_the_run(articles, hard_negatives):
    source = stream(articles, hard_negatives=hard_negatives).without_padding(STEPS, joint=True)
    profiles = {shapes_of(profile) for profile in source.profiles()}
    assert {shapes_of(source[step]) for step in range(STEPS)} <= profiles
    assert source.profiles()[0].packing.tokens <= sum(side.packing.tokens for side in source.profiles()[0].sides)
    # A process that has some of the rows knows the shapes of all.
    half = stream(articles, hard_negatives=hard_negatives, rows=slice(4, 8)).without_padding(STEPS, joint=True)
    assert {shapes_of(profile) for profile in half.profiles()} == profiles


@pytest.mark.parametrize("hard_negatives", [0, 1])
def test_typical_and_given_shapes_are_those_of_the_stream_but_for_their_widths(articles, hard_negatives):
    source = stream(articles, hard_negatives=hard_negatives)
    answers = articles.answers.lengths[articles.index[:, 1]]
    questions = articles.questions.lengths[articles.index[:, 0]]
    widths = [-(-lengths.sum() // len(lengths)) for lengths in (questions, answers)]
    widest = source.shapes({"question": 16, "answer": 40, "hard_negatives": 40})
    for shapes, (question, answer) in ((source.typical(), widths), (widest, (16, 40))):
        expected = {"question": question, "answer": answer, "hard_negatives": answer}
        sides = {side: tokens.ids.shape[-1] for side, tokens in packed_sides(shapes).items()}
        assert sides == {side: expected[side] for side in sides}
        for ours, real in zip(jax.tree.leaves(shapes), jax.tree.leaves(source[0]), strict=True):
            assert ours.dtype == real.dtype
            assert (len(ours.shape), ours.shape[0]) == (real.ndim, 8)


def test_vectors_stand_in_for_texts(pairs):
    numbers = np.arange(60, dtype=np.float32).reshape(20, 3)
    values = {"questions": numbers, "answers": numbers + 1}
    tables = {side: VectorTable(value) for side, value in values.items()}
    hard = Ragged.from_rows([[n] for n in range(19, -1, -1)])
    of_vectors = stream(dataclasses.replace(pairs, **tables, hard_negatives=hard), hard_negatives=1)
    batch, of_tokens = of_vectors[3], stream(pairs)[3]
    np.testing.assert_array_equal(batch.question_id, of_tokens.question_id)
    np.testing.assert_array_equal(batch.question.values, values["questions"][batch.question_id])
    np.testing.assert_array_equal(batch.answer.values, values["answers"][batch.answer_id])
    np.testing.assert_array_equal(batch.hard_negatives.values, values["answers"][batch.hard_negative_ids])
    assert batch.hard_negatives.values.shape == (8, 1, 3)
    assert jax.tree.map(np.shape, of_vectors.typical()) == jax.tree.map(np.shape, batch)
    assert [int(side.lengths.sum()) for side in batch.sides] == [0, 0, 0]


def test_a_mixture_is_drawn_by_weight_and_known_by_one_id_a_text(tiny_bert):
    other = RetrievalSet.from_pairs([("where is dog", "the dog sat"), ("where is cat 3", "the mat")])
    mixed = mix([RECORDS, other]).tokenize(processors(tiny_bert))
    assert len(mixed) == 22  # "cat 3" has an answer in each set
    source = stream(mixed, sources=Sources((1.0, 3.0)))
    drawn = np.concatenate([source.example_ids(step) for step in range(125)])
    assert mixed.sizes == (20, 2)
    assert (drawn >= 20).sum() == 750
    batch = source[3]
    rows = source.example_ids(3)
    np.testing.assert_array_equal(np.stack([batch.question_id, batch.answer_id], 1), mixed.index[rows])
    (both,) = np.flatnonzero(np.diff(mixed.positives.offsets) == 2)  # "where is cat 3"
    assert set(mixed.index[mixed.index[:, 0] == both][:, 1]) == {3, 21}
    assert same(batch, stream(mixed, sources=Sources((1.0, 3.0)))[3])
    mixed = mix([RECORDS, RetrievalSet.from_pairs([])]).tokenize(processors(tiny_bert))
    check_refusal(lambda: stream(mixed, sources=Sources((1.0, 1.0))), "source 1 of data.mixture")


def test_batches_of_a_mixture_can_be_of_one_source(tiny_bert):
    other = RetrievalSet.from_pairs((f"where is dog {i}", f"the dog {i}") for i in range(10))
    mixed = mix([RECORDS, other]).tokenize(processors(tiny_bert))
    source = stream(mixed, sources=Sources((1.0, 1.0), temperature=1.0, one_at_a_time=True))
    second = np.asarray([source.example_ids(step) >= 20 for step in range(999)])
    assert (second == second[:, :1]).all()
    assert abs(second[:, 0].sum() - 333) <= 1  # 10 of 30 pairs


def test_only_reading_a_batch_releases_mapped_pages(pairs, monkeypatch):
    released = []
    monkeypatch.setattr(Pairs, "release", lambda self: released.append(self))
    source = stream(pairs)
    source.example_ids(0)
    assert released == []
    _ = source[0]
    assert released == [pairs]


def test_of_many_right_answers_those_in_the_batch_are_masked(tiny_bert):
    many = range(MOST_POSITIVES + 20)
    records = RetrievalSet.from_pairs([("who?", f"cat {i}") for i in many] + [(f"{i}?", "dog") for i in many])
    records = dataclasses.replace(records, hard_negatives=((), *((i,) for i in many)))  # right for another question
    pairs = records.tokenize(processors(tiny_bert))
    for step in range(20):
        batch = stream(pairs, hard_negatives=1)[step]
        assert batch.positive_ids.shape == (8, MOST_POSITIVES)
        for question, found in zip(batch.question_id, batch.positive_ids, strict=True):
            all_known, others = pairs.positives.row(question), batch.answer_id[batch.question_id != question]
            in_batch = {*all_known} & {*others, *batch.hard_negative_ids[:, 0]}
            assert in_batch <= {*found} <= {*all_known, -1}
    last = [(f"{i}?", f"cat {i}") for i in many[-40:]]
    pairs = RetrievalSet.from_pairs([("who?", f"cat {i}") for i in many] + last).tokenize(processors(tiny_bert))
    batch = stream(pairs, global_batch_size=len(pairs))[0]  # answers of 84 pairs of "who?" and of 40 others
    np.testing.assert_array_equal(false_negative_mask(**known_ids(batch))[batch.question_id == 0].sum(axis=1), 123)


@pytest.mark.parametrize("part", ["a.csv", ("a.csv", 0.0), ("a.csv", float("inf")), (1, 1.0), ("a.csv", 1.0, 2)])
def test_mixtures_without_sense_are_refused(part):
    check_refusal(lambda: DataSettings(mixture=(part,)), "data.mixture", "must hold (path")
    check_refusal(lambda: DataSettings(mixture=(("a.csv", 1.0),), max_train_pairs=5), "data.max_train_pairs")
