"""The results of a run: evaluations side by side, on the screen and in `results.json`."""

import dataclasses
import json
import pathlib

from endx_jax.data.records import RetrievalSet
from endx_jax.files import write_text
from endx_jax.retrieval import trec
from endx_jax.retrieval.bm25 import BM25
from endx_jax.retrieval.evaluate import Evaluation
from endx_jax.retrieval.tables import format_table

# What the table shows; results.json has more cutoffs.
COLUMNS = ("mrr", "mrr@10", "p@1", "recall@1", "recall@5", "recall@10", "hit@1", "hit@5", "ndcg@10", "map")


@dataclasses.dataclass
class Results:
    """Evaluations of several systems on one retrieval set.

    Attributes:
      dataset: what the set is called.
      split: which part of it.
      records: the set.
      evaluations: by system, in the order of the table.
    """

    dataset: str
    split: str
    records: RetrievalSet
    evaluations: dict[str, Evaluation] = dataclasses.field(default_factory=dict)

    def table(self) -> str:
        """The table that a run ends with, and what is behind its lexical row."""
        table = format_table({name: found.metrics for name, found in self.evaluations.items()}, COLUMNS)
        return f"{table}\nbm25: {BM25.DESCRIPTION}"

    def as_dict(self) -> dict:
        """The contents of `results.json`: fractions in [0, 1]."""
        counts = {"questions": len(self.records.questions), "candidates": len(self.records.candidates)}
        about = {"dataset": self.dataset, "split": self.split, "pool": "answers", "direction": "question_to_answer"}
        return {
            "systems": {name: found.metrics for name, found in self.evaluations.items()},
            "evaluations": [
                {**about, "system": name, "metrics": found.metrics, **counts}
                for name, found in self.evaluations.items()
            ],
        }

    def write(self, json_path: pathlib.Path, rankings: pathlib.Path) -> None:
        """Writes the JSON; and for each system its run and per-question measures, beside the judgements, as TREC files.

        Args:
          json_path: such as `results.json`.
          rankings: the folder for `qrels.trec`, `SYSTEM.run.trec` and `SYSTEM.per_question.jsonl`.
        """
        records = self.records
        trec.write_qrels(rankings / "qrels.trec", records.question_ids, records.candidate_ids, records.qrels)
        for name, found in self.evaluations.items():
            ids = (records.question_ids, records.candidate_ids)
            trec.write_run(rankings / f"{name}.run.trec", *ids, found.top_ids, found.top_scores, name)
            trec.write_per_question(rankings / f"{name}.per_question.jsonl", records.question_ids, found)
        write_text(json_path, json.dumps(self.as_dict(), indent=1) + "\n")
