import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import mesh_of

from endx_jax.planning.programs import collectives
from endx_jax.ranking import search, tiles
from endx_jax.ranking.search import Corpus, top_k
from endx_jax.ranking.tiles import Tile, merge_block


def naive(questions, candidates, k):
    """The whole matrix of scores, in float64, sorted as a whole; of equal scores the first stays first."""
    scores = np.asarray(questions, np.float64) @ np.asarray(candidates, np.float64).T
    ids = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, ids, axis=1), ids


def assert_found(found, scores, rows):
    np.testing.assert_array_equal(found.rows, rows)
    np.testing.assert_array_equal(found.scores, scores)


def check(questions, candidates, k, **options):
    """Ids and scores are the twin's, exactly: the embeddings must be small whole numbers, the sums of which are."""
    found = top_k(questions, candidates, k, **options)
    assert (found.scores.dtype, found.rows.dtype) == (np.float32, np.int32)
    assert_found(found, *naive(questions, candidates, k))


def whole_numbers(*shape, seed=0, most=2):
    """Embeddings of few distinct values, so that most scores are shared by many candidates."""
    return np.random.default_rng(seed).integers(-most, most + 1, shape).astype(np.float32)


@pytest.fixture
def set_tiles(monkeypatch):
    """Sets the tiles of CPUs; none: they have those of accelerators."""

    def set_sizes(**sizes):
        monkeypatch.setattr(search, "TILES", {"cpu": Tile(**sizes)} if sizes else {})

    return set_sizes


@pytest.fixture
def small_tiles(set_tiles):
    """Tiles so small that a few questions and candidates fill many, and rows are merged in several steps."""
    set_tiles(questions=16, candidates=8, merged=3, bytes=96)


@pytest.mark.parametrize(
    ("mesh", "questions", "count", "k"),
    [(1, 19, 9, 5), (8, 19, 1, 5), (8, 19, 200, 5), (8, 1, 99, 5), (8, 17, 99, 5)]
    + [(8, 19, 99, k) for k in (1, 60)],  # less and more than a tile
)
def test_any_number_of_questions_candidates_and_answers(small_tiles, mesh, questions, count, k):
    questions, candidates = whole_numbers(questions, 3), whole_numbers(count, 3, seed=count)
    check(questions, candidates, k, mesh=mesh_of(mesh), block=16)


@pytest.mark.parametrize("mesh", [1, 8])
def test_any_order_of_the_corpus(small_tiles, mesh):
    questions = np.resize([[1.0, 0, 0], [2.0, 0, 0], [0.0, 0, 0]], (19, 3))
    below_the_zeros_of_the_padding = -1 - np.arange(130) % 7
    for scores in (np.arange(130), -np.arange(130), np.ones(130), below_the_zeros_of_the_padding):
        check(questions, np.outer(scores, [1, 0, 0]), 5, mesh=mesh_of(mesh), block=16)
    # Products that are -0 and 0, which are equal.
    candidates = np.outer([-1e-30, 0] * 10, [1, 0, 0])
    found = top_k(questions * 1e-30, candidates, 5, mesh=mesh_of(mesh), block=16)
    np.testing.assert_array_equal(found.rows, np.tile(np.arange(5), (19, 1)))


def test_chunks_merge_only_their_own_rows(small_tiles):
    # Each question is alone with its candidate, in the order that fills the last step of each merge with others.
    check(np.eye(40), np.repeat(np.eye(40)[::-1], 3, axis=0), 5, mesh=mesh_of(1))


def test_the_tile_of_accelerators(set_tiles):
    set_tiles()
    check(whole_numbers(9, 4), whole_numbers(20_000, 4, seed=1, most=9), 10, mesh=mesh_of(1), block=1)


def test_bits_depend_neither_on_blocks_nor_on_devices():
    rng = np.random.default_rng(0)
    questions, candidates = rng.standard_normal((40, 48)), rng.standard_normal((3000, 48))
    candidates[2000:] = candidates[rng.integers(0, 2000, 1000)]  # copies, in other tiles
    expected = top_k(questions, candidates, 50, mesh=mesh_of(1))
    # Far below the 1e-2 of bfloat16 passes.
    np.testing.assert_allclose(expected.scores, naive(questions, candidates, 50)[0], rtol=1e-5)
    for options in ({"mesh": mesh_of(1), "block": 512}, {"mesh": mesh_of(8), "block": 512}, {}):
        assert_found(top_k(questions, candidates, 50, **options), *expected)
    same = expected.scores[:, 1:] == expected.scores[:, :-1]
    assert same.sum() > 100
    assert (np.diff(expected.rows, axis=1)[same] > 0).all()


def test_kinds_of_numbers(small_tiles, tmp_path):
    candidates = whole_numbers(200, 3, seed=1)
    check(whole_numbers(19, 3), candidates.astype(np.int64), 5, block=16)
    np.save(tmp_path / "corpus.npy", candidates.astype(np.float16))
    for mode in (None, "r"):
        check(whole_numbers(19, 3), np.load(tmp_path / "corpus.npy", mmap_mode=mode), 5, block=16)


def test_codes_with_scales(small_tiles):
    codes, scales = whole_numbers(130, 3, most=100).astype(np.int8), 2.0 ** (np.arange(130) % 5 - 2)
    questions = whole_numbers(19, 3, seed=1)
    found = top_k(questions, codes, 5, scales=scales.astype(np.float32), mesh=mesh_of(8), block=16)
    assert_found(found, *naive(questions, codes * scales[:, None], 5))


@pytest.mark.parametrize(("share", "k"), [(0.0, 5), (0.5, 5), (0.5, 150)])
def test_a_mask_is_as_if_the_others_were_not_there(small_tiles, share, k):
    questions, candidates = whole_numbers(19, 3), whole_numbers(200, 3, seed=1)
    where = np.random.default_rng(2).random(200) < share
    candidates[np.flatnonzero(~where)[:1]] = np.nan  # what is not there can't be wrong either
    found = top_k(questions, candidates, k, where=where, mesh=mesh_of(8), block=16)
    scores, ids = naive(questions, candidates[where], k)
    assert found.rows.shape == (19, min(k, where.sum()))
    assert_found(found, scores, np.flatnonzero(where)[ids])


def test_an_empty_search_returns_empty_arrays():
    for questions, count in ((0, 6), (4, 0), (0, 0)):
        asked, corpus = np.zeros((questions, 3)), np.zeros((count, 3), np.float32)
        for found in (top_k(asked, corpus, 5), Corpus(corpus).search(asked, 5)):
            assert found.scores.shape == found.rows.shape == (questions, min(5, count))
            assert (found.scores.dtype, found.rows.dtype) == (np.float32, np.int32)


class Watched(np.ndarray):
    """Candidates that call `read` when a block of them is read, to be sent to the devices."""

    def __getitem__(self, rows):
        self.read()
        return np.asarray(self)[rows]


def watched(candidates, read) -> Watched:
    view = candidates.view(Watched)
    view.read = read
    return view


def test_the_corpus_stays_on_the_host(small_tiles):
    def on_devices():
        return sum(array.nbytes for array in jax.live_arrays())

    def most_on_devices(count):
        sizes, others = [], on_devices()
        candidates = watched(whole_numbers(count, 64), lambda: sizes.append(on_devices() - others))
        top_k(whole_numbers(9, 64), candidates, 5, mesh=mesh_of(1), block=16)
        assert len(sizes) == count // 16
        return max(sizes)

    # A block beside the next one, sixteen questions, two times the best: chunks of 16 rows of 5 scores, ids and a flag.
    assert most_on_devices(1600) == most_on_devices(160) <= 4 * 64 * (16 + 16) + 2 * 16 * 41


def test_devices_speak_once_at_the_end():
    mesh = mesh_of(8)
    split, questions = jax.NamedSharding(mesh, jax.P(mesh.axis_names)), jnp.zeros((1, 8, 4))
    nothing = tiles.empty_best(8, 8, 5, split)
    block = tiles.Block(jax.device_put(np.zeros((4096, 4), np.float32), split), None, None)
    step = tiles.merge_block.lower(nothing, questions, block, 0, 4096, mesh, search.TILES["cpu"])
    assert collectives(step.compile().as_text()) == []
    merged = tiles.merge_devices.lower(nothing, mesh).compile().as_text()
    assert {c.kind for c in collectives(merged)} == {"all-gather"}


@pytest.fixture
def small_blocks(set_tiles):
    """Blocks of at most 128 rows, 16 a device: each corpus takes several."""
    set_tiles(questions=8, candidates=2, merged=3, bytes=48)


def check_corpus(corpus, candidates, where, k=7, counts=(1, 15)):
    """Rows and scores are those of sorting all scores of the candidates that count."""
    for count in counts:
        questions = whole_numbers(count, 3, seed=count)
        scores = np.where(where, questions @ candidates.T, -np.inf)
        np.testing.assert_array_equal(corpus.scores(questions)(count // 2, count), scores[count // 2 :])
        rows = np.argsort(-scores, axis=1, kind="stable")[:, : min(k, where.sum())]
        assert_found(corpus.search(questions, k), np.take_along_axis(scores, rows, axis=1), rows)


@pytest.mark.parametrize("resident", [True, False])
def test_a_corpus_finds_what_sorting_all_scores_finds(small_blocks, resident):
    codes, scales = whole_numbers(400, 3, seed=1).astype(np.int8), np.float32([1, 2, 4, 2] * 100)
    where, candidates = np.arange(400) % 3 != 1, codes * scales[:, None]
    check_corpus(Corpus(codes, scales, where, resident=resident, block=128), candidates, where, counts=(15,))
    if resident:  # other searches without scales do not keep the corpus on the devices
        check_corpus(Corpus(candidates, None, where, block=128), candidates, where)


def test_unchanged_blocks_are_not_sent_again(small_blocks):
    candidates, where, sent = whole_numbers(400, 3, seed=1), np.arange(400) != 5, []

    def made(count, where, blocks, before=None):
        """A corpus that sends so many blocks and finds what it should."""
        del sent[:]
        of = watched(candidates[:count], lambda: sent.append(1))
        corpus = Corpus(of, None, where, block=128, before=before)
        assert len(sent) == blocks
        check_corpus(corpus, candidates[:count], where)
        return corpus

    before = made(300, np.ones(300, bool), 3)
    after = made(400, where, 2, before)  # of the blocks 0, 128 and 256 the last was not full
    check_corpus(before, candidates[:300], np.ones(300, bool))
    made(400, ~where, 0, after)


def test_few_programs_are_compiled_and_what_is_larger_than_memory_does_not_fit(small_blocks):
    candidates = whole_numbers(128, 3)
    merge_block.clear_cache()
    for count in (118, 123, 128):
        corpus = Corpus(candidates[:count], None, np.ones(count, bool), block=128)
        for questions in (1, 5, 6, 8):
            for k in (1, 5, 16):
                corpus.search(whole_numbers(questions, 3), k)
    # One size of block, 1 question or 8, and 16 kept. JAX has no public number of programs.
    assert merge_block._cache_size() == 2
    assert search.fits(1)
    assert not search.fits(1 << 60)
