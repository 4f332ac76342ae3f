"""`endx evaluate`: ranks a data set with a trained model, beside BM25, and writes table, runs and encoded pool.

Started as several processes, as by `launch/local.py`, these share out the encoding, and the first one writes.

With `--index` all documents of an index are ranked instead, however many, for data that name right ones by their ids or
hold strings that answer the questions.
"""

import argparse
import os
import pathlib

from endx_jax.data.settings import POOLS
from endx_jax.settings import check


def main(argv: list[str]) -> None:
    """Runs the verb with the arguments of the command line."""
    arguments = _parser().parse_args(argv)
    check(arguments.top >= 0, f"--top={arguments.top}: give a number of answers, or 0 for all")
    check(min(arguments.min_questions, default=1) > 0, "--min-questions takes whole numbers of questions, above 0")

    from endx_jax.parallel import distributed

    distributed.initialize()
    if arguments.index:
        distributed.on_primary(lambda: _evaluate_index(arguments), "index-evaluated")
        return
    check(
        bool(arguments.workdir or arguments.model), "name what to evaluate: --workdir=RUN, --model=NAME or --index=DIR"
    )

    from endx_jax.experiment import workdir as workdirs
    from endx_jax.experiment.console import say
    from endx_jax.experiment.results import Results
    from endx_jax.loading import load
    from endx_jax.loading.pairs import load_pairs
    from endx_jax.parallel.mesh import MeshSettings, make_mesh
    from endx_jax.retrieval.dense import dense_scores
    from endx_jax.retrieval.index import write_index
    from endx_jax.retrieval.rerank import evaluate_pairs
    from endx_jax.retrieval.shards import metric_of
    from endx_jax.retrieval.systems import evaluate_dense

    dataset, pools = _pools(arguments)
    output = arguments.output or _default_output(arguments, dataset)
    workdirs.check_writable(output, "--output")
    pair_model = load_pairs(arguments.rerank) if arguments.rerank else None
    model = load(arguments.workdir or arguments.model, mesh=make_mesh(MeshSettings()))
    records = next(iter(pools.values()))
    say(f"evaluating {len(records.questions):,} questions against {len(records.candidates):,} candidates of {dataset}")

    results = Results(dataset=dataset, split=arguments.split if arguments.data else "test", pools=pools)
    if arguments.reverse:
        results.rank_both_ways()
    results.add_bm25()
    dense = evaluate_dense(model.comparable, pools, reverse=arguments.reverse)
    results.add_dense("trained" if arguments.workdir else pathlib.Path(arguments.model).name, dense)
    if pair_model:
        score = pair_model(records.questions, records.candidates)
        first = dense_scores(dense.questions, dense.candidates)
        results.add("reranked", {next(iter(pools)): evaluate_pairs(score, first, records, top=arguments.top)})
        given = f"the best {arguments.top} of the row above" if arguments.top else "all candidates"
        results.notes.append(f"reranked: {given}, in the order of {pair_model.name}")
    identity = model.identity

    def write() -> None:
        write_index(
            output / workdirs.INDEX,
            dense.candidates,
            records.documents,
            metric=metric_of(cosine=model.cosine),
            model={"name": model.name, "identity": identity},
        )
        results.write(output / workdirs.RESULTS, output)

    distributed.on_primary(write, "results-written")
    say(f"\n{results.tables()}\neverything is in {output}")


def _evaluate_index(arguments: argparse.Namespace) -> None:
    """Ranks the documents of an index."""
    from endx_jax.cli.evaluate_index import evaluate_index
    from endx_jax.data.answered import read_answered
    from endx_jax.data.judged import JUDGED, Judged, read_judged
    from endx_jax.data.readers.layout import ANSWERS, layout

    check(bool(arguments.data), "--index needs --data: the questions, and what is right for them")
    check(not (arguments.rerank or arguments.reverse), "--rerank and --reverse are for pools, not for --index")
    found = layout(arguments.data) if os.path.exists(arguments.data) else ""  # a prepared set is no path
    if found == ANSWERS:
        evaluate_index(arguments, read_answered(arguments.data))
    elif found in JUDGED:
        evaluate_index(arguments, read_judged(arguments.data, arguments.split))
    else:
        evaluate_index(arguments, Judged.of_records(next(iter(_pools(arguments)[1].values()))))


def _pools(arguments: argparse.Namespace):
    """The data set's name, and its pool by name, then its parts: of what `--data` names, or of the run's own split."""
    import dataclasses

    from endx_jax.data.settings import DataSettings
    from endx_jax.data.subsets import with_many_questions
    from endx_jax.errors import EndxError
    from endx_jax.experiment.data import has_paragraphs, pools, read_records, read_splits
    from endx_jax.experiment.workdir import read_config

    if not (arguments.data or arguments.workdir):
        raise EndxError("--model needs --data: a pretrained model has no test split of its own")
    settings = read_config(arguments.workdir).data if arguments.workdir else DataSettings()
    if arguments.pool:
        settings = dataclasses.replace(settings, pool=arguments.pool)
    elif arguments.data and not has_paragraphs(arguments.data):
        settings = dataclasses.replace(settings, pool="")
    if arguments.data:
        columns = {"question_column": arguments.question_column, "answer_column": arguments.answer_column}
        settings = dataclasses.replace(settings, **columns)
        dataset, records = arguments.data, read_records(arguments.data, settings, arguments.split)
    else:
        dataset, records = settings.test_path or settings.path, read_splits(settings).test
    pool, chosen = next(iter(pools(records, settings).items()))
    return dataset, {pool: chosen} | with_many_questions(chosen, arguments.min_questions)


def _default_output(arguments: argparse.Namespace, dataset: str) -> pathlib.Path:
    name = "-".join(filter(None, (pathlib.Path(dataset).name.partition(".")[0], arguments.pool)))
    home = arguments.workdir or pathlib.Path("runs") / pathlib.Path(arguments.model).name
    return home / "evaluation" / name


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="endx evaluate", description=__doc__.partition(": ")[2])
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--workdir", type=pathlib.Path, help="of a run; its best checkpoint is taken")
    source.add_argument("--model", help="a pretrained folder or name instead")
    parser.add_argument(
        "--index",
        type=pathlib.Path,
        metavar="DIR",
        help="rank all documents of this index, by the model that encoded it; needs --data",
    )
    parser.add_argument("--data", help="a file or folder that a reader knows; by default the run's own test split")
    parser.add_argument(
        "--pool",
        choices=POOLS,
        help="of SQuAD-format data: the sentences that answer a question, all of them, or whole paragraphs, after RR "
        "[the run's; whole paragraphs, equal questions merged]",
    )
    parser.add_argument(
        "--rerank",
        type=pathlib.Path,
        metavar="WORKDIR",
        help="of a pair classifier, which re-orders the best",
    )
    parser.add_argument(
        "--top", type=int, default=20, metavar="N", help="how many of the best --rerank is given, 0: all [20]"
    )
    parser.add_argument(
        "--min-questions",
        type=int,
        nargs="*",
        default=[8],
        metavar="N",
        help="rank the questions whose answer has at least N apart, too [8]",
    )
    parser.add_argument("--reverse", action="store_true", help="rank the questions for each answer, too (RR)")
    parser.add_argument("--split", default="test", help="which judgements of a BEIR or MS MARCO folder [test]")
    parser.add_argument("--question-column", default="question", help="in CSV, TSV and JSONL [question]")
    parser.add_argument("--answer-column", default="answer", help="in CSV, TSV and JSONL [answer]")
    parser.add_argument("--output", type=pathlib.Path, help="folder to write into [evaluation/NAME-POOL in WORKDIR]")
    return parser
