"""`endx compare`: tests whether one system is better than another, question by question."""

from etils import epath

from endx_jax.cli.parser import main_of


def compare(
    first: str,
    second: str,
    *,
    systems: str = "trained",
    pool: str = "",
    qrels: str = "",
    clusters: bool = False,
    output: epath.Path | None = None,
) -> None:
    """Prints a comparison of two runs, or of two systems of one run, on every metric that both have.

    Args:
      first: workdir, folder that endx evaluate wrote, .per_question.jsonl file, or TREC run of any tool.
      second: another run, or the same one with two `systems`.
      systems: system of each run, such as bm25,trained.
      pool: pool, such as sentences or answers>=8 [each run's primary pool].
      qrels: TREC file of right candidates, to compare TREC runs [qrels.trec beside one of the runs].
      clusters: resample groups of questions, such as articles, which are not independent within [single questions].
      output: file for the comparison as JSON.
    """
    import dataclasses
    import json

    from endx_jax.buckets import NOT_COPIED, local_copy, write_bytes
    from endx_jax.errors import printable
    from endx_jax.experiment.comparison import changed_settings, compare_systems, read_pair
    from endx_jax.inference.manifest import MODEL
    from endx_jax.settings import require

    names = systems.split(",")
    require(len(names) <= 2 and all(names), f"systems={systems}: give one name, or two names separated by a comma")
    runs = [local_copy(run, skip=(*NOT_COPIED, MODEL, "*.sqlite")) for run in (first, second)]
    a, b, notes = read_pair(runs, (names[0], names[-1]), pool, local_copy(qrels) if qrels else None)
    compared, changed = compare_systems(a, b, clustered=clusters), changed_settings(*runs)
    if changed:
        notes.append(f"The settings of the runs differ: {'; '.join(changed)}.")
    if output:
        written = json.dumps({**compared.as_dict(), "settings": changed}, indent=1) + "\n"
        write_bytes(output, written.encode())
    print(printable(repr(dataclasses.replace(compared, notes=tuple(notes)))))


RUNS = {"first": {"metavar": "RUN_A"}, "second": {"metavar": "RUN_B"}}
main = main_of(__doc__, compare, positional=RUNS, **RUNS, systems={"metavar": "A[,B]"})
