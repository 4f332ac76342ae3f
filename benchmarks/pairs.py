"""Quality and cost of a pair classifier, compared with dual encoders (Wang et al. 2021, Table 6).

`python benchmarks/pairs.py --data=FOLDER --pair=WORKDIR --run DUAL=WORKDIR --run ENDX=WORKDIR`

The data are 500 right pairs of a question and a sentence from 27 paragraphs of SQuAD's dev file, as in the paper; here
from the paragraphs with the most questions, taken in turn. The pool is all sentences that answer a question. The pair
classifier scores every pair of question and sentence, and also re-ranks the best sentences of each dual encoder.

Prints MRR, recall and hit rate, and the median milliseconds to rank the pool for a question, over `--timed` questions.
Before the timing, the pool is encoded and all programs are compiled; the classifier's texts are tokenized within its
time. For the classifier the seconds for all pairs in one call are printed too.
"""

import argparse
import pathlib
import time
from collections.abc import Callable

import common
import numpy as np

import endx_jax
from endx_jax.cli.entry import use_large_pages
from endx_jax.data import reqa
from endx_jax.data.formats import squad
from endx_jax.data.sets.records import Pools, RetrievalSet
from endx_jax.experiment.saved_model import load_pair_scorer
from endx_jax.inference.encode import EmbeddingFormat
from endx_jax.inference.low_latency import LowLatencyEncoder
from endx_jax.ranking.evaluate import Evaluation, evaluate_scores, evaluate_set
from endx_jax.ranking.rerank import PairScorer, PairScorerFactory, evaluate_pairs
from endx_jax.ranking.systems import bm25_scores, dense_scores
from reproduction.counts import of_few_paragraphs

MEASURES = ("mrr", "recall@1", "recall@5", "hit@1")


class Embedded:
    """Dual encoder with the encoded pool."""

    def __init__(self, workdir: str, records: RetrievalSet):
        model = endx_jax.load(workdir)
        output = EmbeddingFormat(normalize=model.cosine)
        encoder = LowLatencyEncoder(model.encoder, model.params, output)
        for shape in encoder.shapes:
            if shape[:2] == ("question", 1):
                encoder.warm_up(shape)
        self._encode = lambda texts: encoder("question", texts).embeddings
        self._pool = model.encoder(model.params, "answer", records.candidates, output=output)
        questions = model.encoder(model.params, "question", records.questions, output=output)
        self.scores = dense_scores(questions, self._pool)

    def ask(self, question: str) -> np.ndarray:
        """Ranks the pool for a question."""
        return np.argsort(-(self._pool @ self._encode([question])[0]), kind="stable")


def milliseconds(ask: Callable[[int], object], questions: int) -> float:
    """Returns the median milliseconds of `ask` over the first questions, after one untimed call for each."""
    for question in range(questions):
        ask(question)
    times = []
    for question in range(questions):
        start = time.perf_counter()
        ask(question)
        times.append(time.perf_counter() - start)
    return 1000 * common.median(times)


def row(system: str, found: Evaluation, **more) -> dict:
    """Returns a row of the table, with measures in per cent."""
    return {"system": system, **{name: 100 * found.metrics[name] for name in MEASURES}, **more}


def compare(
    records: RetrievalSet, pair: PairScorerFactory, runs: dict[str, str], top: list[int], timed: int
) -> list[dict]:
    """Returns all rows of the table."""
    score, timed = pair(records.questions, records.candidates), min(timed, len(records.questions))
    every = np.arange(len(records.candidates))

    def ask_pairs(question: int, candidates: np.ndarray) -> np.ndarray:
        scores = score(np.stack([np.full_like(candidates, question), candidates], axis=1))
        return candidates[np.argsort(-scores, kind="stable")]

    rows = [row("BM25", evaluate_set(bm25_scores(Pools(all=records))["all"], records))]
    known, seconds = score_all(score, records)
    for name, workdir in runs.items():
        embedded = Embedded(workdir, records)
        found = evaluate_scores(embedded.scores, records.qrels, candidates=len(every))
        rows.append(row(name, found, ms=milliseconds(lambda q: embedded.ask(records.questions[q]), timed)))  # noqa: B023
        for count in top:

            def ask(question: int) -> np.ndarray:
                return ask_pairs(question, embedded.ask(records.questions[question])[:count])  # noqa: B023

            found = evaluate_pairs(lambda pairs: known[pairs[:, 0], pairs[:, 1]], embedded.scores, records, top=count)
            rows.append(row(f"{name}, its best {count} re-ranked", found, ms=milliseconds(ask, timed)))
    found = evaluate_scores(lambda start, stop: known[start:stop], records.qrels, candidates=len(every))
    took = milliseconds(lambda question: ask_pairs(question, every), timed)
    rows.append(row("pair classifier, all pairs", found, ms=took, **{"seconds, all at once": seconds}))
    return rows


def score_all(score: PairScorer, records: RetrievalSet) -> tuple[np.ndarray, float]:
    """Returns the scores [Q, N] of all pairs, and the seconds of the call, compilation included."""
    shape = len(records.questions), len(records.candidates)
    start = time.perf_counter()
    scores = score(np.indices(shape).reshape(2, -1).T).reshape(shape)
    return scores, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=pathlib.Path, help="folder of SQuAD 1.1")
    parser.add_argument("--pair", required=True, type=pathlib.Path, help="workdir of a pair classifier")
    parser.add_argument("--run", action="append", default=[], metavar="NAME=WORKDIR", help="dual encoder; repeatable")
    parser.add_argument("--paragraphs", type=int, default=27)
    parser.add_argument("--pairs", type=int, default=500, help="number of right pairs of a question and a sentence")
    parser.add_argument("--top", type=int, nargs="*", default=[10, 20], help="numbers of sentences to re-rank")
    parser.add_argument("--timed", type=int, default=10, help="number of timed questions")
    parser.add_argument("--json", help="file for the results")
    options = parser.parse_args()
    records = of_few_paragraphs(reqa.from_squad(squad.files_of(options.data)[1]), options.paragraphs, options.pairs)
    counts = len(records.questions), len(records.pairs), len(records.candidates)
    print("{} questions, {} pairs, {} sentences\n".format(*counts))
    runs = dict(name.split("=", 1) for name in options.run)
    rows = compare(records, load_pair_scorer(options.pair), runs, options.top, options.timed)
    print(common.table(rows))
    common.write(options.json, vars(options), rows, questions=counts[0], pairs=counts[1], candidates=counts[2])


if __name__ == "__main__":
    use_large_pages()  # as `endx train` does
    main()
