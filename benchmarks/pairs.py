"""What does reading question and answer together find, and what does it cost? Table 6 of Wang et al. 2021.

`python benchmarks/pairs.py --data=FOLDER --pair=WORKDIR --run DUAL=WORKDIR --run ENDX=WORKDIR`

As there, 500 pairs of a question and a right sentence, from 27 paragraphs of SQuAD's dev file; here the paragraphs with
the most questions, whose questions are taken in turn, a paragraph at a time. The pool is the sentences that answer one
of them. The pair classifier scores every pair of question and sentence, a dual encoder compares embeddings; and the
classifier puts the best of each dual encoder in a new order.

What is printed: MRR, recall and hit rate; and milliseconds a question, the median of `--timed` questions asked one
after another, up to the ranking of the pool. The pool is encoded before, and texts are tokenised before where the
classifier reads them; all programs are compiled. The classifier's seconds for all pairs at once are printed too.
"""

import argparse
import pathlib
import time
from collections.abc import Callable

import common
import numpy as np

import endx_jax
from endx_jax.cli.memory import use_large_pages
from endx_jax.data import reqa
from endx_jax.data.readers import squad
from endx_jax.data.records import Pools, RetrievalSet
from endx_jax.experiment.model import LoadedPairs, load_pairs
from endx_jax.inference.encode import Output
from endx_jax.inference.warm import WarmEncoder
from endx_jax.papers.rows import small_pool
from endx_jax.retrieval.evaluate import Evaluation, evaluate
from endx_jax.retrieval.rerank import ScorePairs, evaluate_pairs
from endx_jax.retrieval.systems import dense_scores, evaluate_bm25

MEASURES = ("mrr", "recall@1", "recall@5", "hit@1")


class Embedded:
    """A dual encoder and the pool that it has encoded."""

    def __init__(self, workdir: str, records: RetrievalSet):
        model = endx_jax.load(workdir)
        output = Output(normalize=model.cosine)
        encoder = WarmEncoder(model.encoder, model.params, output)
        for shape in encoder.shapes:
            if shape[:2] == ("question", 1):
                encoder.warm_up(shape)
        self._encode = lambda texts: encoder("question", texts).embeddings
        self._pool = model.encoder(model.params, "answer", records.candidates, output=output)
        questions = model.encoder(model.params, "question", records.questions, output=output)
        self.scores = dense_scores(questions, self._pool)

    def ask(self, question: str) -> np.ndarray:
        """The pool in order, for a question."""
        return np.argsort(-(self._pool @ self._encode([question])[0]), kind="stable")


def milliseconds(ask: Callable[[int], object], questions: int) -> float:
    """The median time of `ask`, of questions one after another, each asked once before."""
    for question in range(questions):
        ask(question)
    times = []
    for question in range(questions):
        start = time.perf_counter()
        ask(question)
        times.append(time.perf_counter() - start)
    return 1000 * common.median(times)


def row(system: str, found: Evaluation, **more) -> dict:
    """A row of the table; measures in per cent."""
    return {"system": system, **{name: 100 * found.metrics[name] for name in MEASURES}, **more}


def compare(records: RetrievalSet, pair: LoadedPairs, runs: dict[str, str], top: list[int], timed: int) -> list[dict]:
    """All rows."""
    score, timed = pair(records.questions, records.candidates), min(timed, len(records.questions))
    every = np.arange(len(records.candidates))

    def ask_pairs(question: int, candidates: np.ndarray) -> np.ndarray:
        scores = score(np.stack([np.full_like(candidates, question), candidates], axis=1))
        return candidates[np.argsort(-scores, kind="stable")]

    rows = [row("BM25", *evaluate_bm25(Pools(all=records)).values())]
    known, seconds = score_all(score, records)
    for name, workdir in runs.items():
        embedded = Embedded(workdir, records)
        found = evaluate(embedded.scores, records.qrels, candidates=len(every))
        rows.append(row(name, found, ms=milliseconds(lambda q: embedded.ask(records.questions[q]), timed)))  # noqa: B023
        for count in top:

            def ask(question: int) -> np.ndarray:
                return ask_pairs(question, embedded.ask(records.questions[question])[:count])  # noqa: B023

            found = evaluate_pairs(lambda pairs: known[pairs[:, 0], pairs[:, 1]], embedded.scores, records, top=count)
            rows.append(row(f"{name}, its best {count} re-ranked", found, ms=milliseconds(ask, timed)))
    found = evaluate(lambda start, stop: known[start:stop], records.qrels, candidates=len(every))
    took = milliseconds(lambda question: ask_pairs(question, every), timed)
    rows.append(row("pair classifier, all pairs", found, ms=took, **{"seconds, all at once": seconds}))
    return rows


def score_all(score: ScorePairs, records: RetrievalSet) -> tuple[np.ndarray, float]:
    """Scores [Q, N] of all pairs, and the seconds they took, compilation included."""
    shape = len(records.questions), len(records.candidates)
    start = time.perf_counter()
    scores = score(np.indices(shape).reshape(2, -1).T).reshape(shape)
    return scores, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=pathlib.Path, help="folder of SQuAD 1.1")
    parser.add_argument("--pair", required=True, type=pathlib.Path, help="workdir of a pair classifier")
    parser.add_argument("--run", action="append", default=[], metavar="NAME=WORKDIR", help="a dual encoder, each")
    parser.add_argument("--paragraphs", type=int, default=27)
    parser.add_argument("--pairs", type=int, default=500, help="of a question and a right sentence")
    parser.add_argument("--top", type=int, nargs="*", default=[10, 20], help="best of a dual encoder to re-rank")
    parser.add_argument("--timed", type=int, default=10, help="questions that are asked one after another")
    parser.add_argument("--json", help="file for the results")
    options = parser.parse_args()
    records = small_pool(reqa.read(squad.files_of(options.data)[1]), options.paragraphs, options.pairs)
    counts = len(records.questions), len(records.pairs), len(records.candidates)
    print("{} questions, {} pairs, {} sentences\n".format(*counts))
    runs = dict(name.split("=", 1) for name in options.run)
    rows = compare(records, load_pairs(options.pair), runs, options.top, options.timed)
    print(common.table(rows))
    common.write(options.json, vars(options), rows, questions=counts[0], pairs=counts[1], candidates=counts[2])


if __name__ == "__main__":
    use_large_pages()  # as `endx` does
    main()
