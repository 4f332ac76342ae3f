"""`endx mine`: finds hard negatives for a data set's questions and writes a data set to train on.

Hard negatives are candidates that BM25, a model or an index ranks high and that are not known to be right. A teacher
can filter them.
"""

import argparse
import functools
import pathlib
from typing import TYPE_CHECKING, Any

from etils import epath

from endx_jax.cli.data_flags import add_data_flags, add_product_flag, data_settings
from endx_jax.data.settings import POOLS
from endx_jax.settings import require

if TYPE_CHECKING:
    from endx_jax.data.sets.records import RetrievalSet
    from endx_jax.ranking.mining import Mined, MiningSettings, Ranked


def main(argv: list[str]) -> None:
    """Runs the verb with the arguments of the command line."""
    arguments = _parser().parse_args(argv)
    _check(arguments)

    from endx_jax.data.readers.beir import REPORT, write_mined
    from endx_jax.experiment.model import load_pair_scorer
    from endx_jax.experiment.workdir import check_output
    from endx_jax.parallel.console import say
    from endx_jax.parallel.environment import keep_programs
    from endx_jax.ranking.mining import Margin, MiningSettings, mine_negatives, score_candidates

    first, last = arguments.ranks
    settings = MiningSettings(
        negatives=arguments.negatives,
        first_rank=first,
        last_rank=last,
        margin=Margin(arguments.margin, arguments.relative_margin),
    )
    check_output(arguments.output, REPORT, "mine")
    records = _read(arguments)
    counts = f"{len(records.questions):,} questions and {len(records.candidates):,} candidates"
    say(f"{counts} in {arguments.data}")
    keep_programs()
    names = dict.fromkeys(filter(None, (arguments.teacher, arguments.score_with)))
    load = functools.partial(load_pair_scorer, embeddings=True, product_dtype=arguments.product_dtype)
    loaded = {name: load(name) for name in names}
    teacher, scorer = loaded.get(arguments.teacher), loaded.get(arguments.score_with)
    records, ranked, source = _rank(arguments, records, settings.last_rank)
    score = teacher(records.questions, records.candidates) if teacher else None
    distilled = scorer(records.questions, records.candidates) if scorer else None
    strata = distilled if arguments.strata else None
    questions = records.questions
    mined = mine_negatives(
        ranked, records.qrels, records.candidates, settings, score, records.excluded, strata, questions
    )
    scores = score_candidates(distilled, records.qrels, mined.negatives) if distilled else None
    about = _about(arguments, settings, source, records, mined)
    write_mined(arguments.output, records, mined.negatives, about=about, scores=scores)
    say(_summary(arguments, settings, source, mined))


def _check(arguments: argparse.Namespace) -> None:
    """Refuses contradicting arguments before anything is read."""
    ways = {"--bm25": arguments.bm25, "--workdir": arguments.workdir, "--index": arguments.index}
    chosen = [name for name, value in ways.items() if value]
    if arguments.model and not arguments.index:
        chosen.append("--model")
    require(len(chosen) == 1, "set exactly one of --bm25, --workdir=RUN, --model=NAME and --index=DIR")
    require(
        not arguments.strata or arguments.score_with, "--strata needs the model of --score-with, whose scores it covers"
    )
    require(arguments.questions >= 0, f"--questions={arguments.questions}: give a number of questions, or 0 for all")


def _read(arguments: argparse.Namespace) -> "RetrievalSet":
    """Returns the set that a run with this data would train on, before any questions are held out."""
    from endx_jax.data.sets.splits import limit_questions
    from endx_jax.data.settings import DataSettings
    from endx_jax.experiment.data import paths_of, pools, read_records

    names = {"path": arguments.data, "pool": arguments.pool, "split": arguments.split}
    settings = DataSettings(**names, **data_settings(arguments))
    path, _ = paths_of(settings)
    # With an index, its documents are the candidates, so the data's corpus is not needed.
    records = read_records(path, settings, settings.split, whole=arguments.index is None)
    return limit_questions(pools(records, settings).primary, arguments.questions)


def _rank(
    arguments: argparse.Namespace, records: "RetrievalSet", depth: int
) -> tuple["RetrievalSet", "Ranked", dict[str, Any]]:
    """Returns the set with the documents of an index, its ranking, and the source of that ranking."""
    from endx_jax.parallel.console import showing_progress
    from endx_jax.ranking.mining import rank_by_bm25, rank_by_embeddings

    if arguments.bm25:
        from endx_jax.parallel.console import say
        from endx_jax.ranking.bm25 import BM25, without_words

        ranked = rank_by_bm25(records, depth, progress=showing_progress())
        for line in without_words(int((ranked.rows[:, 0] < 0).sum()), len(ranked.rows), records.text_language):
            say(line)
        return records, ranked, {"name": "bm25", "description": BM25.description(records.text_language)}
    if arguments.index:
        from endx_jax.index.index import Index
        from endx_jax.index.index_evaluation import rank_by_index
        from endx_jax.index.index_model import IndexModel

        index = Index(arguments.index)
        encoder = IndexModel(index, arguments.model, arguments.product_dtype)
        grown, ranked = rank_by_index(encoder.encode, index.snapshot, records, depth)
        about = {"name": encoder.model.name, "identity": encoder.model.identity, "index": str(arguments.index)}
        return grown, ranked, about
    from endx_jax.inference import load

    model = load(arguments.workdir or arguments.model, product_dtype=arguments.product_dtype)
    about = {"name": model.name, "identity": model.identity}
    return records, rank_by_embeddings(model.comparable, records, depth), about


def _about(
    arguments: argparse.Namespace, settings: "MiningSettings", source: dict, records: "RetrievalSet", mined: "Mined"
) -> dict[str, Any]:
    """Returns the contents of `mining.json`."""
    import dataclasses

    import endx_jax

    return {
        "endx_jax": endx_jax.__version__,
        "data": {"path": arguments.data, "pool": arguments.pool, "split": arguments.split},
        "sha256": records.sha256,
        "source": source,
        "teacher": arguments.teacher,
        "score_with": arguments.score_with,
        "strata": arguments.strata,
        "settings": dataclasses.asdict(settings),
        "questions": len(mined.negatives),
        "negatives": sum(map(len, mined.negatives)),
        "dropped": mined.dropped,
    }


def _summary(arguments: argparse.Namespace, settings: "MiningSettings", source: dict, mined: "Mined") -> str:
    count, questions = sum(map(len, mined.negatives)), len(mined.negatives)
    without = sum(not kept for kept in mined.negatives)
    dropped = ", ".join(f"{number:,} {reason}" for reason, number in mined.dropped.items() if number) or "nothing"
    return (
        f"{count:,} hard negatives for {questions:,} questions ({without:,} without any), from ranks "
        f"{settings.first_rank} to {settings.last_rank} of {source['name']}; excluded: {dropped}\n"
        f"Train on them with --config.data.path={arguments.output} --config.data.hard_negatives=1"
        + (" --config.objective.distillation.loss=listwise_kl" if arguments.score_with else "")
    )


def _ranks(text: str) -> tuple[int, int]:
    """Parses a window of ranks such as `1-100`."""
    first, _, last = text.partition("-")
    if not (first.isdecimal() and last.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of ranks such as 1-100")
    return int(first), int(last)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="endx mine", description=__doc__.partition(": ")[2])
    parser.add_argument("--data", required=True, help="file, folder or prepared set with questions and right answers")
    parser.add_argument(
        "--pool", choices=POOLS, default="", help="retrieval unit of reading-comprehension data, as `data.pool`"
    )
    add_data_flags(parser, split="train")
    add_product_flag(parser)
    parser.add_argument(
        "--questions", type=int, default=0, metavar="N", help="mine for N questions only, chosen by hash [all]"
    )
    parser.add_argument(
        "--output", type=pathlib.Path, required=True, help="output folder, to train on with `data.path`"
    )
    source = parser.add_argument_group("ranking of the candidates (exactly one)")
    source.add_argument("--bm25", action="store_true", help="rank the data's candidates by stemmed BM25")
    source.add_argument("--workdir", type=epath.Path, help="workdir of a run, whose best checkpoint ranks")
    source.add_argument("--model", help="pretrained folder or name that ranks; with --index, the model that encoded it")
    source.add_argument("--index", type=epath.Path, help="index of `endx encode` whose documents are the candidates")
    which = parser.add_argument_group("selection of negatives")
    which.add_argument("--negatives", type=int, default=10, metavar="K", help="maximum negatives per question [10]")
    which.add_argument(
        "--ranks",
        type=_ranks,
        default=(1, 100),
        metavar="FIRST-LAST",
        help="window of ranks to take negatives from [1-100]",
    )
    which.add_argument(
        "--margin", type=float, help="minimum difference to the right answers' score [none; 0 with --teacher]"
    )
    which.add_argument(
        "--relative-margin",
        type=float,
        metavar="SHARE",
        help="minimum difference as a share of the right answers' score, such as 0.05",
    )
    which.add_argument(
        "--teacher",
        metavar="WORKDIR",
        help="workdir or name of a pair classifier or dual encoder that filters negatives",
    )
    which.add_argument(
        "--strata",
        action="store_true",
        help="spread negatives over all scores of --score-with, instead of the best-ranked; scores the whole window",
    )
    parser.add_argument(
        "--score-with",
        metavar="MODEL",
        help="model whose scores are written for distillation: workdir of a pair classifier, folder or name of a "
        "sentence-transformers CrossEncoder, or workdir or name of a dual encoder",
    )
    return parser
