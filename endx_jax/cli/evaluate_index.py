"""`endx evaluate --index`: ranks all documents of an index for the questions of a data set."""

import argparse
import pathlib

from endx_jax.settings import check

# Best documents kept a question.
DEPTH = 100


def evaluate_index(arguments: argparse.Namespace, judged) -> None:
    """Evaluates, writes and prints.

    Args:
      arguments: of the command line.
      judged: `Judged`, or a list of `Answered`.
    """
    from endx_jax.data.judged import Judged
    from endx_jax.experiment import workdir as workdirs
    from endx_jax.experiment.compilation_cache import keep_programs
    from endx_jax.experiment.console import say
    from endx_jax.experiment.index_results import write_answered, write_judged
    from endx_jax.loading.index_model import IndexModel
    from endx_jax.retrieval.index import Index
    from endx_jax.retrieval.whole_index import evaluate_answered, evaluate_judged, rows_of

    index = Index(arguments.index)
    dataset = arguments.data
    output = arguments.output or arguments.index / "evaluation" / pathlib.Path(dataset).name.partition(".")[0]
    workdirs.check_writable(output, "--output")
    snapshot = index.snapshot
    check(len(snapshot) > 0, f"{index.folder} holds no document")
    about = {"dataset": dataset, "split": arguments.split, "index": str(index.folder), "model": index.manifest.model}
    if isinstance(judged, Judged):
        rows = rows_of(snapshot, (name for names in judged.right for name in names))
        right = [sorted(rows[name] for name in names) for names in judged.right]
    texts = list(judged.texts) if isinstance(judged, Judged) else [question.text for question in judged]
    say(f"evaluating {len(texts):,} questions against {len(snapshot):,} documents of {index.folder}")
    keep_programs()
    questions = IndexModel(index, arguments.model or arguments.workdir).encode_query(texts)
    if isinstance(judged, Judged):
        table = write_judged(output, about, snapshot, judged, right, evaluate_judged(snapshot, questions, right, DEPTH))
    else:
        table = write_answered(output, about, snapshot, judged, evaluate_answered(snapshot, questions, judged))
    say(f"\n{table}\n\neverything is in {output}")
