"""Evaluation of a model on a data set or a suite, or of the documents of an index (`endx_jax.evaluate`)."""

import functools
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from endx_jax.json_files import as_items, as_path, as_whole
from endx_jax.settings import require

# What computes is imported when an evaluation begins, so that `endx evaluate --help` answers at once.
if TYPE_CHECKING:
    from endx_jax.experiment.evaluation import IndexResults
    from endx_jax.inference import EmbeddingModel
    from endx_jax.ranking.results import Results, SuiteResults


def check_arguments(
    *,
    model: Any,
    data: Any,
    workdir: Any,
    index: Any,
    rerank: Any,
    top: int,
    min_questions: Sequence[int],
    reverse: bool,
    split: str | None,
    reading: Mapping[str, Any] | None = None,
    **others: Any,
) -> None:
    """Raises EndxError for arguments of `evaluate` that contradict each other; ignores the others.

    `endx evaluate` also calls it, before it imports JAX and connects to other processes.
    """
    if data is not None:
        as_path(data, "data")
    require(bool(workdir or model or index), "nothing to evaluate: set workdir=RUN or model=NAME")
    require(not (workdir and model), "set workdir=RUN or model=NAME, not both")
    as_whole(top, "top")
    for minimum in as_items(min_questions, "min_questions", "a list of whole numbers"):
        as_whole(minimum, "min_questions", least=1)
    require(not index or bool(data), "index needs data with questions and their right documents or answers")
    require(not index or not (rerank or reverse), "rerank and reverse can't be used with index")
    require(bool(data or workdir), "model needs data=FILE, as a pretrained model has no test split")
    given = [*(reading or ()), *["split"] * (split is not None)]
    said = f"{' and '.join(given)} can't be used with the run's own test split: set data=FILE"
    require(bool(data) or not given, said)


def evaluate(
    model: "EmbeddingModel | str | os.PathLike | None" = None,
    data: str | os.PathLike | None = None,
    *,
    workdir: str | os.PathLike | None = None,
    index: str | os.PathLike | None = None,
    output: str | os.PathLike | None = None,
    pool: Literal["", "answers", "sentences", "paragraphs"] = "",
    split: str | None = None,
    rerank: str | os.PathLike | None = None,
    top: int = 20,
    min_questions: Sequence[int] = (8,),
    reverse: bool = False,
    **reading: Any,
) -> "Results | SuiteResults | IndexResults | None":
    r"""Ranks a data set, or each set of a suite, with a model, with BM25, and with both fused.

    Several processes divide the encoding; the first one writes the output.

    Args:
      model: pretrained folder or name; in Python also a model.
      data: file or folder of any supported format, or suite of BEIR folders [the test split of `workdir`].
      workdir: workdir of a run, whose model is used, in place of `model`; its settings say how data is read.
      index: index whose documents are ranked, by the model that encoded it; needs `data` that name right documents by
        id, hold their texts, or contain answer strings.
      output: output folder for metrics, TREC runs and an index of the pool [evaluation/NAME-POOL in WORKDIR; in Python
        none].
      pool: retrieval unit of reading-comprehension data, as `data.pool` [the run's; with `model` whole paragraphs,
        equal questions merged].
      split: split of a BEIR, MS MARCO or save_to_disk folder [test, or the only one of a BEIR folder].
      rerank: workdir of a pair classifier or of late interaction, or folder or name of a CrossEncoder or
        MultiVectorEncoder, that re-ranks the best candidates.
      top: number of candidates that `rerank` re-ranks; 0: all.
      min_questions: report questions whose answer is right for at least so many questions separately as well [8].
      reverse: rank the questions for each answer as well (RR).
      **reading: `question_column`, `answer_column`, `skip_invalid` and `language`, as the settings of `data`.

    Returns:
      The results; their `repr` is the tables. None for an index on all processes but the first.

    Raises:
      EndxError: the model, the index or the data can't be read, a right document is not in the index, or the output
        can't be written.

    Examples:
      >>> import pathlib
      >>> rows = ["question,answer", "When do you open?,We open at nine.", "Where is the zoo?,In the park."]
      >>> pairs = pathlib.Path("pairs.csv")
      >>> _ = pairs.write_text("\n".join(rows))
      >>> results = endx_jax.evaluate("all-MiniLM-L6-v2", pairs)
      evaluating 2 questions against 2 candidates of pairs.csv
      >>> results.evaluations["all"]["all-MiniLM-L6-v2"].metrics["mrr"]
      1.0
    """
    check_arguments(**locals())

    from etils import epath

    from endx_jax.buckets import url_of
    from endx_jax.data.sources import find_data
    from endx_jax.experiment.evaluation import evaluate_index, rank_set, read_pools, read_settings, write_suite
    from endx_jax.experiment.saved_model import load_pair_scorer
    from endx_jax.experiment.workdir import check_writable, saved_system
    from endx_jax.files import expanded, last_name
    from endx_jax.inference import EmbeddingModel, load
    from endx_jax.parallel import agreement
    from endx_jax.parallel.mesh import MeshSettings, make_mesh
    from endx_jax.ranking.results import SuiteResults

    data, home = os.fspath(data or ""), epath.Path(url_of(output) or expanded(output)) if output else None
    settings = read_settings(workdir, pool, reading if data else None)
    find = functools.partial(find_data, data, settings, split, strict=bool(pool))
    if index:
        found = list["IndexResults"]()
        if isinstance(model, EmbeddingModel) and model.encoder.mesh.is_multi_process:
            model = model.name  # one process ranks, which needs the model for itself
        rank_index = functools.partial(evaluate_index, index, model or workdir)
        agreement.on_primary(lambda: found.append(rank_index(find(), settings, home)), "index-evaluated")
        return found[0] if found else None
    source = find() if data else None
    sets = source.sets() if source else {}
    agreement.check_equal(lambda: {"list of sets": ", ".join(sets)})
    for one in sets.values():  # so that a damaged set is found before the others are encoded
        one.judgements()
    ranked, begun = source and source.with_options(split=source.split), None if data or pool else workdir
    pools = None if sets else read_pools(ranked, settings, min_questions, begun)
    if home:
        check_writable(home, "output")
    reranker = (load_pair_scorer(rerank), rerank, top) if rerank else None
    if not isinstance(model, EmbeddingModel):
        model = load(workdir or model or "", mesh=make_mesh(MeshSettings()))
    agreement.check_parameters(model.params)
    system = saved_system(workdir) if workdir else last_name(model.name)
    rank = functools.partial(rank_set, model=model, system=system, reranker=reranker, reverse=reverse)
    if pools:
        dataset = data or settings.test_path or settings.path
        return rank(dataset, source.split if source else "test", pools, home=home)
    splits = {one.split for one in sets.values()}
    results = SuiteResults(data, splits.pop() if len(splits) == 1 else "of its name")
    for name, one in sets.items():
        results.add(
            name, rank(one.path, one.split, read_pools(one, settings, min_questions), home=home and home / name)
        )
    if home:
        agreement.on_primary(lambda: write_suite(home, results), "suite-written")
    return results
