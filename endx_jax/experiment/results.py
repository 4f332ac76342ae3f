"""The results of a run: evaluations side by side, on the screen and in `results.json`."""

import dataclasses
import json
import pathlib
from collections.abc import Mapping

from endx_jax.data.records import RetrievalSet, one_to_one
from endx_jax.data.settings import PARAGRAPHS
from endx_jax.files import write_text
from endx_jax.metrics.ranking import RECALLS
from endx_jax.retrieval import trec
from endx_jax.retrieval.agreement import question_agreement
from endx_jax.retrieval.bm25 import BM25
from endx_jax.retrieval.evaluate import Evaluation
from endx_jax.retrieval.overlap import SMALLEST, probe_accuracy, same_side_neighbours
from endx_jax.retrieval.systems import DenseResult, evaluate_bm25
from endx_jax.retrieval.tables import format_table

# What the table shows; results.json has more cutoffs.
COLUMNS = ("mrr", "mrr@10", "p@1", "recall@1", "recall@5", "recall@10", "hit@1", "hit@5", "ndcg@10", "map")
# And of paragraphs, as RR has them.
PARAGRAPH_COLUMNS = ("mrr", *(f"recall@{n}" for n in RECALLS), "avg_recall")


@dataclasses.dataclass
class Results:
    """Evaluations of several systems on the same questions, against one pool or several.

    Attributes:
      dataset: what the set is called.
      split: which part of it.
      pools: the set with each pool, by the pool's name; the first is what the run is judged by.
      evaluations: by pool, then by system in the order of the tables.
      overlap: by dense system, how far apart its questions and answers lie: see `retrieval.overlap`.
      agreement: by dense system, how near the questions of one answer lie: see `retrieval.agreement`.
      decoders: by side, whether a decoder listens: see `experiment.decoding`; empty without decoders.
      held_out_pairs: how well a teacher and its student find them: see `experiment.teacher`; empty without a teacher.
      notes: lines below the tables: what has to be known to read them.
      direction: `question_to_answer` or `answer_to_question`, what asks and what is ranked.
      reverse: the same systems in the other direction; None where that was not asked for.
    """

    dataset: str
    split: str
    pools: Mapping[str, RetrievalSet]
    evaluations: dict[str, dict[str, Evaluation]] = dataclasses.field(default_factory=dict)
    overlap: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    agreement: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    decoders: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    held_out_pairs: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    direction: str = "question_to_answer"
    reverse: "Results | None" = None

    def rank_both_ways(self) -> None:
        """Makes room for the other direction, in which answers ask for their questions."""
        pools = {pool: records.reversed() for pool, records in self.pools.items()}
        self.reverse = Results(self.dataset, self.split, pools, direction="answer_to_question")

    def add(self, system: str, evaluations: Mapping[str, Evaluation]) -> None:
        """Takes a system's evaluations by pool."""
        for pool, found in evaluations.items():
            self.evaluations.setdefault(pool, {})[system] = found

    def add_bm25(self, *, depth: int = 100) -> None:
        """Ranks by BM25."""
        self.add("bm25", evaluate_bm25(self.pools, depth=depth))
        if self.reverse:
            self.reverse.add_bm25(depth=depth)

    def add_dense(self, system: str, result: DenseResult) -> None:
        """Takes a dense system's evaluations, and measures its embeddings where there are enough."""
        self.add(system, result.evaluations)
        if self.reverse:
            self.reverse.add(system, result.reverse)
        agreement = question_agreement(result.questions, next(iter(self.pools.values())).qrels)
        if agreement:
            self.agreement[system] = agreement
        rows = one_to_one(next(iter(self.pools.values())).qrels)
        if len(rows) >= SMALLEST:
            questions, answers = map(list, zip(*rows, strict=True))
            pairs = result.questions[questions], result.candidates[answers]
            self.overlap[system] = {
                "probe_accuracy": probe_accuracy(*pairs),
                "same_side_neighbours": same_side_neighbours(*pairs),
            }

    def tables(self) -> str:
        """What a run ends with: a table a pool, and what is behind the lexical row and the overlap."""
        lines = self._rankings()
        if self.reverse:
            lines += ["answers ask, and questions are ranked:", *self.reverse._rankings()]
        lines.append(f"bm25: {BM25.DESCRIPTION}")
        lines += [
            f"{system}: a linear probe tells questions from answers with accuracy {found['probe_accuracy']:.3f}, and "
            f"{found['same_side_neighbours']:.3f} of the neighbours are of the same side (one cloud 0.5, two clouds 1)"
            for system, found in self.overlap.items()
        ]
        lines += [
            f"{system}: SSE {found['sse']:.3f}, the mean squared distance of two questions of one answer, of the "
            f"{found['answers']:,} answers with the most; of any two questions {found['sse_any']:.3f}"
            for system, found in self.agreement.items()
        ]
        lines += [
            f"{side} decoder: {found['nll']:.2f} nats a held-out text of {found['words']:.1f} words, and with "
            f"another's latent vector {found['nll_shuffled']:.2f}; its posteriors carry {found['kl']:.2f} nats"
            for side, found in self.decoders.items()
        ]
        lines += [
            f"{name}: finds {found['pairs']:,} held-out pairs with MRR {found['mrr']:.3f}, hit@1 {found['hit@1']:.3f} "
            f"and loss {found['loss']:.3f}"
            for name, found in self.held_out_pairs.items()
        ]
        return "\n".join([*lines, *self.notes])

    def _rankings(self) -> list[str]:
        lines = []
        for pool, systems in self.evaluations.items():
            if len(self.evaluations) > 1:
                questions, candidates = len(self.pools[pool].questions), len(self.pools[pool].candidates)
                lines.append(f"pool {pool}, {questions:,} questions, {candidates:,} candidates:")
            columns = PARAGRAPH_COLUMNS if pool == PARAGRAPHS else COLUMNS
            lines += [format_table({name: found.metrics for name, found in systems.items()}, columns), ""]
        return lines

    def as_dict(self) -> dict:
        """The contents of `results.json`: fractions in [0, 1]."""
        about = {"dataset": self.dataset, "split": self.split, "direction": self.direction}
        evaluations = []
        for pool, systems in self.evaluations.items():
            counts = {"questions": len(self.pools[pool].questions), "candidates": len(self.pools[pool].candidates)}
            evaluations += [
                {**about, "pool": pool, "system": name, "metrics": found.metrics, **counts}
                for name, found in systems.items()
            ]
        if self.reverse:
            evaluations += self.reverse.as_dict()["evaluations"]
        primary = next(iter(self.evaluations.values()))
        return {
            "systems": {name: found.metrics for name, found in primary.items()},
            "overlap": self.overlap,
            "agreement": self.agreement,
            **({"decoders": self.decoders} if self.decoders else {}),
            **({"held_out_pairs": self.held_out_pairs} if self.held_out_pairs else {}),
            "evaluations": evaluations,
        }

    def write(self, json_path: pathlib.Path, rankings: pathlib.Path) -> None:
        """Writes the JSON; and for each system its run and per-question measures, beside the judgements, as TREC files.

        Args:
          json_path: such as `results.json`.
          rankings: the folder for `qrels.trec`, `SYSTEM.run.trec` and `SYSTEM.per_question.jsonl` of the first pool;
            the other pools' stand in folders of their names (`answers-at-least-8`), and so does the other direction.
        """
        self._write_rankings(rankings)
        write_text(json_path, json.dumps(self.as_dict(), indent=1) + "\n")

    def _write_rankings(self, rankings: pathlib.Path) -> None:
        for number, (pool, systems) in enumerate(self.evaluations.items()):
            records, folder = self.pools[pool], rankings / pool_folder(pool) if number else rankings
            trec.write_qrels(folder / "qrels.trec", records.question_ids, records.candidate_ids, records.qrels)
            for name, found in systems.items():
                ids = (records.question_ids, records.candidate_ids)
                trec.write_run(folder / f"{name}.run.trec", *ids, found.top_ids, found.top_scores, name)
                trec.write_per_question(folder / f"{name}.per_question.jsonl", records.question_ids, found)
        if self.reverse:
            self.reverse._write_rankings(rankings / self.reverse.direction)


def pool_folder(pool: str) -> str:
    """The name of a pool's folder: not every file system takes the signs in the names of pools."""
    return pool.replace(">=", "-at-least-")
