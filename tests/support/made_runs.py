"""Workdirs that look like finished runs, without the runs."""

import json
import pathlib

from endx_jax.data.sets.records import RetrievalSet
from endx_jax.experiment import workdir as workdirs
from endx_jax.experiment.config import resolve

MANIFEST = {
    "begun": "2026-01-02T03:04:05Z",
    "seed": 0,
    "data_sha256": "ab" * 32,
    "commit": "1234567890+",
    "python": "3.11.7",
    "versions": {"endx_jax": "0.1.0", "jax": "0.10.2"},
    "system": "Linux",
    "processor": "a processor",
    "cores": 2,
    "devices": {"kind": "cpu", "count": 1, "processes": 1},
}
RECORDS = RetrievalSet.from_pairs([("q", "a")])


def finish(workdir: pathlib.Path, config, mrr: float, *, pool: str = "answers", system: str = "trained") -> None:
    """Writes what is read of a run: its config, a step, and results in which recall@N is the MRR less N hundredths."""
    workdirs.write_config(workdir, resolve(config), {"sha256": MANIFEST["data_sha256"]})
    (workdir / workdirs.MANIFEST).write_text(json.dumps(MANIFEST | {"seed": config.seed}))
    (workdir / "metrics.jsonl").write_text('{"step": 10, "loss": 1.0}\n{"step": 40, "loss": 0.5}\n')
    metrics = {"mrr": mrr, "recall@1": mrr - 0.01, "recall@5": mrr - 0.05, "p@1": mrr - 0.02}
    evaluation = {"pool": pool, "system": system, "direction": "question_to_answer", "metrics": metrics}
    (workdir / workdirs.RESULTS).write_text(json.dumps({"evaluations": [evaluation]}))
