"""Time and memory of exact search, compared with faiss's flat index: `python benchmarks/search.py [--json=FILE]`.

Both find the k best of a corpus of random unit vectors by inner product, on all cores of this machine, each in a
process of its own, in alternation. The corpus is a memory-mapped file, as in an index; faiss has its own copy, made
before the timing. Prints the median seconds, questions per second and the ratio to faiss; seconds of start-up and of
the first call; the number of results that differ, which happens if scores are equal up to rounding; and the peak
memory of a process that only runs `top_k`, with the corpus and Python.
"""

import argparse
import multiprocessing
import pathlib
import resource
import sys
import tempfile

import common
import numpy as np
import sides

from endx_jax.ranking.search import Neighbours, top_k

# Largest difference of scores of unit vectors that the order of summation explains.
ROUNDING = 1e-5


def unit_vectors(random: np.random.Generator, count: int, width: int) -> np.ndarray:
    vectors = random.standard_normal((count, width), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def write_corpus(path: pathlib.Path, count: int, width: int, seed: int, step: int = 65536) -> None:
    """Writes a `.npy` file in steps, since child processes inherit the peak memory of this one."""
    random = np.random.default_rng(seed)
    with open(path, "wb") as stream:
        header = {"descr": "<f4", "fortran_order": False, "shape": (count, width)}
        np.lib.format.write_array_header_1_0(stream, header)
        for start in range(0, count, step):
            unit_vectors(random, min(step, count - start), width).tofile(stream)


def peak_memory(path: pathlib.Path, questions: np.ndarray, k: int, block: int) -> int:
    """Returns the peak memory in bytes of a separate process that searches twice, the corpus included."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_search_and_measure, (path, questions, k, block))


def _search_and_measure(path: pathlib.Path, questions: np.ndarray, k: int, block: int) -> int:
    for _ in range(2):
        top_k(questions, np.load(path, mmap_mode="r"), k, block=block)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def differing(ours: Neighbours, scores: np.ndarray, ids: np.ndarray) -> tuple[int, float]:
    """Returns the number of places with another candidate than faiss's, and the largest difference of scores."""
    return int((ours.rows != ids).sum()), float(np.abs(ours.scores - scores).max())


class Ours:
    """Search of endx_jax for given questions."""

    def __init__(self, path: pathlib.Path, questions: np.ndarray, k: int, block: int):
        self._arguments = questions, np.load(path, mmap_mode="r"), k
        self._block = block

    def __call__(self) -> Neighbours:
        """Returns the k best of each question."""
        return top_k(*self._arguments, block=self._block)


def compare(path: pathlib.Path, questions: np.ndarray, options: argparse.Namespace) -> list[dict]:
    """Returns the rows of faiss and endx_jax."""
    faiss = sides.Case("peer_search", "FaissSearch", (path, questions, options.k))
    ours = sides.Case("search", "Ours", (path, questions, options.k, options.block))
    timings = sides.alternate({"faiss IndexFlatIP": faiss, "endx_jax top_k": ours}, options.repeats)
    theirs, found = timings.values()
    places, difference = differing(found.results[-1], *theirs.results[-1])
    if difference > ROUNDING:
        raise SystemExit(f"the searches differ by {difference} in a score, which exceeds rounding")
    print(f"{places} of {questions.shape[0] * options.k} places differ, scores by at most {difference:.1e}")
    return [
        {
            "search": name,
            "seconds": timing.median,
            "questions a second": len(questions) / timing.median,
            "time / faiss": timing.median / theirs.median,
            "start-up, seconds": timing.start_up,
            "first call, seconds": timing.first,
        }
        for name, timing in timings.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--candidates", type=int, default=1_000_000)
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--block", type=int, default=32768, help="candidates sent to the device at a time")
    parser.add_argument("--repeats", type=int, default=5, help="timed rounds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", help="file for the results")
    options = parser.parse_args()
    questions = unit_vectors(np.random.default_rng(options.seed + 1), options.questions, options.width)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "corpus.npy")
        write_corpus(path, options.candidates, options.width, options.seed)
        memory = peak_memory(path, questions, options.k, options.block)
        rows = compare(path, questions, options)
    rows[1]["peak memory, GB"] = memory / 1e9
    print(common.table(rows))
    common.write(options.json, vars(options), rows, versions=common.versions("faiss-cpu", "numpy"))


if __name__ == "__main__":
    main()
