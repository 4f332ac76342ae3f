"""Recall and speed of search engines, BM25 and hybrid search: `python benchmarks/engines.py --data=FOLDER`.

Searches all sentences of SQuAD's dev file, encoded by MiniLM, for its questions, one question at a time, exactly, with
faiss's engines, with BM25 and with hybrid search. Prints recall@10 relative to exact search, the time from a question's
embedding to its documents, and the quality of each ranking.
"""

import argparse
import pathlib
import tempfile
import time
from collections.abc import Callable, Sequence

import common
import numpy as np

import endx_jax
from endx_jax.data import reqa
from endx_jax.data.formats import squad
from endx_jax.data.sets.documents import FoundDocument
from endx_jax.index.approximate import ENGINES
from endx_jax.index.index import Index, write_index
from endx_jax.index.text_search import BM25, DENSE, HYBRID
from endx_jax.ranking.hybrid import Hybrid

DEPTH = 100  # answers per question that are ranked

Search = Callable[[np.ndarray, Sequence[str], int], list[list[FoundDocument]]]


def ways(path: pathlib.Path) -> dict[str, Search]:
    """Returns the compared searches by name: functions of embeddings [Q, E], texts and k."""

    def way(engine: str = "exact", *, mode: str, hybrid: Hybrid | None = None) -> Search:
        search = Index(path, engine=engine, hybrid=hybrid)
        return lambda embeddings, texts, k: search.search(texts, k, embeddings=embeddings, mode=mode)

    return {
        "exact": way(mode=DENSE),
        **{f"faiss {engine}": way(engine, mode=DENSE) for engine in ENGINES},
        "BM25": way(mode=BM25),
        "hybrid, sum of scores": way(mode=HYBRID),
        "hybrid, reciprocal ranks": way(mode=HYBRID, hybrid=Hybrid(None)),
    }


def rows_of(answers: list[list[FoundDocument]]) -> list[list[str]]:
    """Returns the ids of each question's documents, best first."""
    return [[answer.document.id for answer in own] for own in answers]


def near(found: list[list[str]], exact: list[list[str]]) -> float:
    """Returns recall@10 relative to the exact search."""
    return float(
        np.mean([len({*own[:10]} & {*best[:10]}) / len(best[:10]) for own, best in zip(found, exact, strict=True)])
    )


def quality(found: list[list[str]], right: Sequence[set[str]]) -> dict[str, float]:
    """Returns the mean reciprocal rank within `DEPTH`, and the share of questions with a right answer in ten."""
    pairs = zip(found, right, strict=True)
    ranks = np.array([next((n for n, name in enumerate(own, 1) if name in ok), np.inf) for own, ok in pairs])
    return {f"mrr@{DEPTH}": float(np.mean(1 / ranks)), "hit@10": float(np.mean(ranks <= 10))}


def measure(search: Search, embeddings: np.ndarray, texts: Sequence[str]) -> dict[str, float]:
    """Returns the median and 99th percentile of the milliseconds per question, and the seconds of the first one."""
    seconds = []
    for n in range(len(texts)):
        start = time.perf_counter()
        search(embeddings[n : n + 1], texts[n : n + 1], 10)
        seconds.append(time.perf_counter() - start)
    p50, p99 = 1e3 * np.percentile(seconds[1:], [50, 99])
    return {"p50 ms": p50, "p99 ms": p99, "first s": seconds[0]}


def main() -> None:
    """Encodes, searches and prints."""
    options = _parser().parse_args()
    records = reqa.from_squad(squad.files_of(options.data)[1], "sentences")
    chosen = np.random.default_rng(options.seed).permutation(len(records.questions))[: options.questions]
    texts = [records.questions[n] for n in chosen]
    right = [{records.candidate_ids[row] for row in records.qrels[n]} for n in chosen]
    model = endx_jax.load(options.model)
    embeddings = model.encode_query(texts, normalize_embeddings=True)
    with tempfile.TemporaryDirectory() as name:
        path = pathlib.Path(name) / "index.sqlite"
        documents = records.documents
        encoded = model.encode_document([document.text for document in documents], normalize_embeddings=True)
        write_index(path, encoded, documents, metric="cosine", model={"name": model.name, "identity": model.identity})
        rows, exact = [], []
        for name, search in ways(path).items():
            timed = measure(search, embeddings[: options.timed], texts[: options.timed])
            found = rows_of(search(embeddings, texts, DEPTH))
            exact = exact or found
            recall = {"recall@10 of exact": near(found, exact)} if name.startswith("faiss") else {}
            rows.append({"way": name, **recall, **timed, **quality(found, right)})
    print(f"{len(documents):,} sentences, {len(texts):,} questions, {options.timed:,} of them timed\n")
    print(common.table(rows))
    common.write(options.json, vars(options), rows, versions=common.versions("faiss-cpu", "PyStemmer"))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder of SQuAD 1.1")
    parser.add_argument("--model", default="all-MiniLM-L6-v2")
    parser.add_argument("--questions", type=int, default=2635)
    parser.add_argument("--timed", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", help="file for the results")
    return parser


if __name__ == "__main__":
    main()
