"""Recall and speed of search engines, BM25 and hybrid search: `python benchmarks/engines.py --data=FOLDER`.

Searches all sentences of SQuAD's dev file, encoded by MiniLM, for its questions, one question at a time, exactly, with
faiss's engines, with BM25 and with hybrid search. Prints recall@10 relative to exact search, the time from a question's
embedding to its documents, and the quality of each ranking.

`python benchmarks/engines.py --precisions NAME=PATH ...` compares the precisions of embeddings and other libraries'
search by bits, for the first answer sentences of data in SQuAD's format, or the index of large_index.py (PATH ends in
.sqlite, and has no right answers): recall@10 relative to float32, MRR and hit rate, bytes a document, and questions per
second, one at a time, down to their rows. Peers that are not installed are left out.
"""

import argparse
import contextlib
import functools
import json
import pathlib
import tempfile
import time
from collections.abc import Callable, Container, Sequence

import common
import numpy as np

import endx_jax
from endx_jax.data import reqa
from endx_jax.data.formats import squad
from endx_jax.data.sets.documents import FoundDocument
from endx_jax.index.approximate import ENGINES
from endx_jax.index.index import Index, write_index
from endx_jax.index.text_search import BM25, DENSE, HYBRID
from endx_jax.numerics import quantize, signs
from endx_jax.ranking.binary import FEWEST, BinaryCorpus
from endx_jax.ranking.hybrid import Hybrid
from endx_jax.ranking.search import Corpus

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


def near(found: Sequence[Sequence], exact: Sequence[Sequence]) -> float:
    """Returns recall@10 relative to the exact search."""
    return float(
        np.mean([len({*own[:10]} & {*best[:10]}) / len(best[:10]) for own, best in zip(found, exact, strict=True)])
    )


def quality(found: Sequence[Sequence], right: Sequence[Container]) -> dict[str, float]:
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


Data = tuple[np.ndarray, np.ndarray, list[list[int]]]  # embeddings of candidates and questions, rows of right ones


def embedded(path: str, options: argparse.Namespace) -> Data:
    """Returns the embeddings of a data set, or of an index of large_index.py."""
    model = endx_jax.load(options.model)
    if path.endswith(".sqlite"):
        texts = json.loads(pathlib.Path(path).with_name("questions.json").read_text())
        return Index(path).snapshot.embeddings[:], model.encode_query(texts[: options.questions]), []
    records = reqa.from_squad(path)
    right = [[row for row in rows if row < options.documents] for rows in records.qrels]
    some = np.flatnonzero([bool(rows) for rows in right])
    some = np.random.default_rng(options.seed).permutation(some)[: options.questions]
    questions = model.encode_query([records.questions[n] for n in some])
    return model.encode_document(records.candidates[: options.documents]), questions, [right[n] for n in some]


def searches_of_rows(vectors: np.ndarray) -> dict[str, tuple[float, Callable[[np.ndarray, int], np.ndarray]]]:
    """Returns, by name, the bytes a candidate and a function of questions [Q, E] and k, which returns rows [Q, k]."""
    codes, scales = quantize(vectors, np)
    bits, width = signs(codes), vectors.shape[1]
    octets = np.ascontiguousarray(bits.view(np.uint8)[:, : -(-width // 8)])

    def of(corpus: Corpus | BinaryCorpus) -> Callable[[np.ndarray, int], np.ndarray]:
        return lambda questions, k: corpus.search(questions, k).rows

    def ranked_again(find: Callable, questions: np.ndarray, k: int) -> np.ndarray:
        rows = find(questions, min(FEWEST, len(codes)))
        scores = [(codes[own] @ question) * scales[own] for own, question in zip(rows, questions, strict=True)]
        return np.take_along_axis(rows, np.argsort(-np.stack(scores), axis=1, kind="stable")[:, :k], axis=1)

    searches = {
        "float32": (4 * width, of(Corpus(vectors))),
        "int8": (width + 4, of(Corpus(codes, scales))),
        "binary": (width + 4 + 4 * bits.shape[1], of(BinaryCorpus(bits, codes, scales))),
        "binary, bits alone": (4 * bits.shape[1], of(Corpus(bits))),
    }
    peers: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {}
    with contextlib.suppress(ImportError):
        import faiss

        flat = faiss.IndexBinaryFlat(8 * octets.shape[1])
        flat.add(octets)
        peers["faiss `IndexBinaryFlat`"] = lambda questions, k: flat.search(packed(questions), k)[1]
    with contextlib.suppress(ImportError):
        from usearch.index import MetricKind, search

        def by_usearch(questions: np.ndarray, k: int) -> np.ndarray:
            keys = search(octets, packed(questions), k, MetricKind.Hamming, exact=True).keys
            return keys.reshape(-1, k).astype(np.int64)

        peers["usearch, exact"] = by_usearch
    for name, find in peers.items():
        searches[f"{name}, bits alone"] = octets.shape[1], find
        searches[f"{name}, and int8"] = width + 4 + octets.shape[1], functools.partial(ranked_again, find)
    return searches


def packed(questions: np.ndarray) -> np.ndarray:
    """Returns the signs of questions [Q, E] as bytes [Q, E / 8]."""
    return np.packbits(questions > 0, axis=1, bitorder="little")


def compare_precisions(name: str, data: Data, seconds: float) -> list[dict]:
    """Returns the rows of one data set."""
    vectors, questions, right = data
    rows, exact = [], []
    for way, (size, find) in searches_of_rows(vectors).items():
        parts = [find(questions[n : n + 64], DEPTH) for n in range(0, len(questions), 64)]
        found = np.concatenate(parts).tolist()
        exact = exact or found
        row = {"data": name, "way": way, "recall@10": near(found, exact), **(quality(found, right) if right else {})}
        find(questions[:1], 10)  # compiles
        started, count = time.perf_counter(), 0
        while time.perf_counter() - started < seconds:
            n = count % len(questions)
            find(questions[n : n + 1], 10)
            count += 1
        rows.append(row | {"bytes a document": size, "questions/s": count / (time.perf_counter() - started)})
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Encodes, searches and prints."""
    options = _parser().parse_args()
    if options.precisions:
        rows = []
        for name, _, path in (pair.partition("=") for pair in options.precisions):
            rows += compare_precisions(name, embedded(path, options), options.seconds)
        print(common.table(rows))
        common.write(options.json, vars(options), rows)
        return
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
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--data", help="folder of SQuAD 1.1")
    what.add_argument("--precisions", nargs="+", metavar="NAME=PATH", help="compare precisions on this data")
    parser.add_argument("--documents", type=int, default=3000, help="sentences of each data set of --precisions")
    parser.add_argument("--seconds", type=float, default=3, help="of questions by each way of --precisions")
    parser.add_argument("--model", default="all-MiniLM-L6-v2")
    parser.add_argument("--questions", type=int, default=2635)
    parser.add_argument("--timed", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", help="file for the results")
    return parser


if __name__ == "__main__":
    main()
