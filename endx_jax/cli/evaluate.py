"""`endx evaluate`: ranks a data set with a model and with BM25, and writes metrics, TREC runs and an index of the pool.

Of a suite, a folder of BEIR folders such as NanoBEIR, each set is ranked; the tables also have the means over sets.

Several processes, as started by `launch/local.py`, divide the encoding; the first one writes the results.

`--index` ranks all documents of an index instead, for data that name right documents by id or contain answer strings.
"""

import argparse
import functools
import os
import pathlib

from etils import epath

from endx_jax.cli.data_flags import add_data_flags, add_product_flag, with_data_flags
from endx_jax.data.settings import POOLS
from endx_jax.settings import check

# Best documents kept per question with --index.
DEPTH = 100


def main(argv: list[str]) -> None:
    """Runs the verb with the arguments of the command line."""
    arguments = _parser().parse_args(argv)
    check(arguments.top >= 0, f"--top={arguments.top}: give a number of answers, or 0 for all")
    check(min(arguments.min_questions, default=1) > 0, "--min-questions takes whole numbers of questions, above 0")

    from endx_jax.parallel import agreement, distributed

    distributed.initialize()
    if arguments.index:
        agreement.on_primary(lambda: _evaluate_index(arguments), "index-evaluated")
        return
    check(bool(arguments.workdir or arguments.model), "nothing to evaluate: set --workdir, --model or --index")

    from endx_jax.buckets import uploading
    from endx_jax.data.readers import beir
    from endx_jax.experiment import workdir as workdirs
    from endx_jax.experiment.data import ensure_prepared
    from endx_jax.experiment.model import load_pairs
    from endx_jax.hub import local_path
    from endx_jax.inference import load
    from endx_jax.parallel.console import say
    from endx_jax.parallel.mesh import MeshSettings, make_mesh
    from endx_jax.retrieval.suite import SuiteResults

    ensure_prepared([arguments.data or ""])
    data = local_path(arguments.data or "")
    sets = beir.suite_of(data, arguments.split) if data else {}
    agreement.check_equal(lambda: {"list of sets": ", ".join(sets)})
    for folder, split in sets.values():  # so that a damaged set is found before the others are encoded
        beir.judgements(folder, split, skip_invalid=arguments.skip_invalid)
    splits = {split for _, split in sets.values()} or {arguments.split or beir.default_split(data)}
    arguments.split = splits.pop() if len(splits) == 1 else "of its name"
    dataset, pools = (arguments.data, None) if sets else _pools(arguments, arguments.data)
    output = arguments.output or _default_output(arguments, dataset)
    workdirs.check_writable(output, "--output")
    pair_model = load_pairs(arguments.rerank, arguments.product_dtype) if arguments.rerank else None
    mesh, product_dtype = make_mesh(MeshSettings()), arguments.product_dtype
    model = load(arguments.workdir or arguments.model, mesh=mesh, product_dtype=product_dtype)
    agreement.check_parameters(model.params)
    if pools:
        results = _evaluate(arguments, dataset, pools, model, pair_model, output)
    else:
        results = SuiteResults(dataset, arguments.split)
        for name, (folder, arguments.split) in sets.items():
            _, pools = _pools(arguments, folder)
            results.add(name, _evaluate(arguments, folder, pools, model, pair_model, output / name))

        def write() -> None:
            with uploading(output) as folder:
                results.write(folder / workdirs.RESULTS)

        agreement.on_primary(write, "suite-written")
    say(f"\n{results.tables()}\nresults are in {output}")


def _evaluate(arguments: argparse.Namespace, dataset: str, pools, model, pair_model, output: pathlib.Path):
    """Ranks one data set with all systems; writes and returns the `Results`."""
    from endx_jax.buckets import uploading
    from endx_jax.data.records import asked_documents, known_questions
    from endx_jax.experiment import workdir as workdirs
    from endx_jax.experiment.data import fingerprint
    from endx_jax.experiment.index_results import write_pool
    from endx_jax.parallel import agreement
    from endx_jax.parallel.console import say
    from endx_jax.retrieval.hybrid import stored_hybrid
    from endx_jax.retrieval.index_file import metric_of
    from endx_jax.retrieval.rerank import evaluate_pairs
    from endx_jax.retrieval.results import Results
    from endx_jax.retrieval.systems import dense_scores, evaluate_dense

    records = pools.primary
    agreement.check_equal(lambda: {f"set {dataset}": fingerprint(records)})
    say(f"evaluating {len(records.questions):,} questions against {len(records.candidates):,} candidates of {dataset}")

    split = arguments.split if arguments.data else "test"
    source = arguments.workdir or arguments.model
    hybrid = stored_hybrid(source, cosine=model.cosine, language=records.text_language)
    results = Results(dataset=dataset, split=split, pools=pools, hybrid=hybrid)
    if arguments.reverse:
        results.rank_both_ways()
    results.add_bm25()
    dense = evaluate_dense(model.comparable, pools, reverse=arguments.reverse, fuse=results.fuse)
    system = "trained" if arguments.workdir else pathlib.Path(arguments.model).name
    results.add_dense(system, dense)
    if pair_model:
        score = pair_model(records.questions, records.candidates)
        first = dense_scores(dense.questions, dense.candidates)
        results.add("reranked", {pools.primary_name: evaluate_pairs(score, first, records, top=arguments.top)})
        ranked = f"the top {arguments.top} of {system}" if arguments.top else "all candidates"
        results.notes.append(f"reranked: {ranked}, re-ranked by {arguments.rerank}")
    identity, encoded = model.identity, dict(zip(records.questions, dense.questions, strict=True))
    documents, known = asked_documents(records.documents, known_questions(records.candidates, [records]), encoded)

    def write() -> None:
        with uploading(output) as folder:
            write_pool(
                folder / workdirs.INDEX,
                dense.candidates,
                documents,
                metric=metric_of(cosine=model.cosine),
                model={"name": model.name, "identity": identity, "product_dtype": model.product_dtype},
                corpus={"path": dataset},
                known=known,
                language=records.text_language,
            )
            results.write(folder / workdirs.RESULTS, folder)

    agreement.on_primary(write, "results-written")
    return results


def _evaluate_index(arguments: argparse.Namespace) -> None:
    """Ranks the documents of an index for the questions of `--data`, writes the results and prints the table."""
    from endx_jax.data.readers.beir import default_split
    from endx_jax.data.readers.formats import ANSWERS, detect_format
    from endx_jax.data.relevance import JUDGED, Answered, Judged, read_answered, read_judged
    from endx_jax.experiment import workdir as workdirs
    from endx_jax.experiment.compilation_cache import keep_programs
    from endx_jax.experiment.index_results import SYSTEM, write_index_results
    from endx_jax.hub import local_path
    from endx_jax.parallel.console import say
    from endx_jax.retrieval.index import Index
    from endx_jax.retrieval.index_evaluation import evaluate_answered, evaluate_judged, find_rows
    from endx_jax.retrieval.index_model import IndexModel
    from endx_jax.retrieval.results import COLUMNS, OWN_ID
    from endx_jax.retrieval.tables import format_table

    check(bool(arguments.data), "--index needs --data with questions and their right documents or answers")
    check(not (arguments.rerank or arguments.reverse), "--rerank and --reverse can't be used with --index")
    dataset = arguments.data = local_path(arguments.data)
    kind = detect_format(dataset) if os.path.exists(dataset) else ""  # otherwise a prepared set
    arguments.split = arguments.split or default_split(dataset)
    questions: Judged | list[Answered]
    if kind == ANSWERS:
        questions = read_answered(dataset)
    elif kind in JUDGED:
        questions = read_judged(dataset, arguments.split)
    else:
        questions = Judged.from_records(_pools(arguments, dataset)[1].primary)
    index = Index(arguments.index)
    name = pathlib.Path(dataset).name.partition(".")[0]
    output = arguments.output or arguments.index.parent / f"{arguments.index.stem}-evaluation" / name
    workdirs.check_writable(output, "--output")
    snapshot = index.snapshot
    check(len(snapshot) > 0, f"{index.path} has no documents")
    judged = None
    if isinstance(questions, Judged):
        ids, texts, judged = list(questions.ids), list(questions.texts), find_rows(snapshot, questions)
        evaluate = functools.partial(evaluate_judged, snapshot, judged, depth=DEPTH)
    else:
        ids, texts = [one.id for one in questions], [one.text for one in questions]
        evaluate = functools.partial(evaluate_answered, snapshot, questions)
    by_text = ", without their known questions" if snapshot.known else ""
    say(f"evaluating {len(texts):,} questions against {len(snapshot):,} documents of {index.path}{by_text}")
    keep_programs()
    embeddings = IndexModel(index, arguments.model or arguments.workdir, arguments.product_dtype).encode_query(texts)
    evaluation = evaluate(embeddings)
    about = {"dataset": dataset, "split": arguments.split, "index": str(index.path), "model": index.info.model}
    write_index_results(output, about, snapshot, ids, evaluation, judged)
    say("\n" + format_table({SYSTEM: evaluation.metrics}, COLUMNS if judged else tuple(evaluation.metrics)))
    if judged and any(judged.excluded):
        say(f"{sum(map(bool, judged.excluded)):,} {OWN_ID}")
    say(f"\nresults are in {output}")


def _pools(arguments: argparse.Namespace, data: str | None):
    """Returns the name of the data set (`data`, or the run's test split), and its primary pool and subsets."""
    import dataclasses

    from endx_jax.data.records import Pools
    from endx_jax.data.settings import DataSettings
    from endx_jax.data.splits import with_many_questions
    from endx_jax.errors import EndxError
    from endx_jax.experiment.data import pools, read_records, read_splits, settings_of
    from endx_jax.experiment.workdir import read_config

    if not (data or arguments.workdir):
        raise EndxError("--model needs --data, as a pretrained model has no test split")
    settings = read_config(arguments.workdir).data if arguments.workdir else DataSettings()
    if arguments.pool:
        settings = dataclasses.replace(settings, pool=arguments.pool)
    elif data:
        settings = settings_of(data, settings)
    if data:
        settings = with_data_flags(dataclasses.replace(settings, format=""), arguments)
        dataset, records = data, read_records(data, settings, arguments.split)
    else:
        dataset, records = settings.test_path or settings.path, read_splits(settings).test
    sets = pools(records, settings)
    subsets = with_many_questions(sets.primary, arguments.min_questions)
    return dataset, Pools({sets.primary_name: sets.primary} | subsets)


def _default_output(arguments: argparse.Namespace, dataset: str) -> pathlib.Path:
    name = "-".join(filter(None, (pathlib.Path(dataset).name.partition(".")[0], arguments.pool)))
    home = arguments.workdir or pathlib.Path("runs") / pathlib.Path(arguments.model).name
    return home / "evaluation" / name


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="endx evaluate", description=__doc__.partition(": ")[2])
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--workdir", type=epath.Path, help="workdir of a run, whose best checkpoint is used")
    source.add_argument("--model", help="pretrained folder or name")
    parser.add_argument(
        "--index",
        type=epath.Path,
        metavar="DIR",
        help="index whose documents are ranked, by the model that encoded it; needs --data",
    )
    parser.add_argument(
        "--data", help="file or folder of any supported format, or suite of BEIR folders [the run's test split]"
    )
    parser.add_argument(
        "--pool",
        choices=POOLS,
        help="retrieval unit of reading-comprehension data, as `data.pool` [the run's; with --model whole paragraphs, "
        "equal questions merged]",
    )
    parser.add_argument(
        "--rerank",
        type=epath.Path,
        metavar="WORKDIR",
        help="workdir of a pair classifier, or folder of a CrossEncoder, that re-ranks the best candidates",
    )
    parser.add_argument(
        "--top", type=int, default=20, metavar="N", help="number of candidates that --rerank re-ranks, 0: all [20]"
    )
    parser.add_argument(
        "--min-questions",
        type=int,
        nargs="*",
        default=[8],
        metavar="N",
        help="report questions whose answer has at least N questions separately as well [8]",
    )
    parser.add_argument("--reverse", action="store_true", help="rank the questions for each answer as well (RR)")
    add_data_flags(parser, split="test, or the only one of a BEIR folder")
    parser.set_defaults(split=None)
    add_product_flag(parser)
    parser.add_argument("--output", type=pathlib.Path, help="output folder [evaluation/NAME-POOL in WORKDIR]")
    return parser
