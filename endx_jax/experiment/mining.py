"""Hard negatives for a data set's questions, as a data set to train on (`endx_jax.mine`)."""

import dataclasses
import os
from typing import TYPE_CHECKING, Any, Literal

from endx_jax.json_files import as_path, as_whole, shown
from endx_jax.settings import require
from endx_jax.uploads import uploads

# What computes is imported when mining begins, so that `endx mine --help` answers at once.
if TYPE_CHECKING:
    from endx_jax.data.sets.records import RetrievalSet
    from endx_jax.ranking import mining

FolderOrName = str | os.PathLike


@uploads()
def mine(
    data: FolderOrName,
    output: FolderOrName,
    *,
    bm25: bool = False,
    workdir: FolderOrName | None = None,
    model: FolderOrName | None = None,
    index: FolderOrName | None = None,
    pool: Literal["", "answers", "sentences", "paragraphs"] = "",
    split: str = "train",
    questions: int = 0,
    negatives: int = 10,
    ranks: tuple[int, int] = (1, 100),
    margin: float | None = None,
    relative_margin: float | None = None,
    teacher: FolderOrName | None = None,
    score_with: FolderOrName | None = None,
    strata: bool = False,
    **reading: Any,
) -> "mining.Mined":
    r"""Writes a data set with candidates that rank high for a question and are not known to be right.

    One of `bm25`, `workdir`, `model` and `index` ranks the candidates; with `index`, `model` encodes the questions.
    `bm25` with `workdir` or `model` ranks them by both, as a hybrid search with that model does.

    Args:
      data: file, folder or prepared set with questions and right answers.
      output: output folder, to train on with `data.path`.
      bm25: rank the data's candidates by stemmed BM25; with `workdir` or `model`, by the sum of both scores.
      workdir: workdir of a run, whose model ranks.
      model: pretrained folder or name that ranks; with `index`, the model that encoded it.
      index: index of `endx encode` whose documents are the candidates.
      pool: retrieval unit of reading-comprehension data, as `data.pool`.
      split: split of a BEIR, MS MARCO or save_to_disk folder.
      questions: number of questions to mine for, chosen by hash; 0: all.
      negatives: maximum number of negatives per question.
      ranks: first and last rank of the window to take negatives from; ranks count from 1 [1-100].
      margin: minimum difference to the right answers' score [none; 0 with `teacher`].
      relative_margin: minimum difference as a share of the right answers' score, such as 0.05.
      teacher: workdir or name of a pair classifier or dual encoder that filters negatives.
      score_with: model whose scores are written for distillation: workdir of a pair classifier, folder or name of a
        sentence-transformers CrossEncoder, or workdir or name of a dual encoder.
      strata: spread negatives over all scores of `score_with`, instead of the best-ranked; scores the whole window.
      **reading: `question_column`, `answer_column`, `skip_invalid` and `language`, as the settings of `data`.

    Raises:
      EndxError: the arguments contradict each other, the data or a model can't be read, or the output can't be written.

    Examples:
      >>> import pathlib
      >>> rows = ["question,answer", "When do you open?,We open at nine.", "Is the zoo open?,The zoo is open."]
      >>> pairs = pathlib.Path("pairs.csv")
      >>> _ = pairs.write_text("\n".join(rows))
      >>> mined = endx_jax.mine(pairs, "mined", bm25=True)
      2 questions and 2 candidates in pairs.csv
      2 hard negatives for 2 questions (0 without any), from ranks 1 to 100 of bm25; excluded: 2 right
      >>> [[negative.row for negative in wrong] for wrong in mined.negatives]
      [[1], [0]]
    """
    data = as_path(data, "data")
    models = sum(map(bool, (workdir, index, None if index else model)))
    message = "set one of bm25=True, workdir=RUN, model=NAME and index=FILE, or bm25=True with workdir or model"
    require(models + bm25 == 1 or (models == 1 and not index), message)
    require(not strata or bool(score_with), "strata=True needs the model of score_with, whose scores it covers")
    questions = as_whole(questions, "the number of questions")
    window = f"ranks is {shown(ranks)}; pass the first and the last rank, such as (1, 100)"
    require(isinstance(ranks, tuple | list) and len(ranks) == 2, window)

    from endx_jax.data.formats.mined import REPORT, write_mined
    from endx_jax.data.sets.splits import limit_questions
    from endx_jax.data.settings import DataSettings
    from endx_jax.data.sources import data_of, pools
    from endx_jax.errors import counted
    from endx_jax.experiment.saved_model import load_pair_scorer
    from endx_jax.experiment.workdir import check_output
    from endx_jax.files import expanded
    from endx_jax.parallel.console import say
    from endx_jax.parallel.environment import environment, keep_programs
    from endx_jax.ranking import mining

    settings = mining.MiningSettings(negatives, *ranks, mining.Margin(margin, relative_margin))
    output = expanded(output)
    check_output(output, REPORT, "mine")
    # With an index, its documents are the candidates, so the data's corpus is not needed.
    data_settings = DataSettings(path=data, pool=pool, split=split, **reading)
    records = data_of(data_settings)[0].with_options(whole=not index).records()
    records = limit_questions(pools(records, data_settings).primary, questions)
    say(f"{counted(len(records.questions), 'question')} and {counted(len(records.candidates), 'candidate')} in {data}")
    keep_programs()
    names = dict.fromkeys(name for name in (teacher, score_with) if name)
    scorers = {name: load_pair_scorer(name, embeddings=True) for name in names}
    records, ranked, source = _rank(records, settings.last_rank, workdir or model, index, bm25)
    texts = records.questions, records.candidates
    score, distilled = (scorers[name](*texts) if name else None for name in (teacher, score_with))
    mined = mining.mine_negatives(ranked, records, settings, score, distilled if strata else None)
    scores = mining.score_candidates(distilled, records.qrels, mined.negatives) if distilled else None
    count = sum(map(len, mined.negatives))
    about = {
        "endx_jax": environment()["versions"]["endx_jax"],
        "data": {"path": data, "pool": pool, "split": split},
        "sha256": records.sha256,
        "source": source,
        "teacher": teacher and str(teacher),
        "score_with": score_with and str(score_with),
        "strata": strata,
        "settings": dataclasses.asdict(settings),
        "questions": len(mined.negatives),
        "negatives": count,
        "dropped": mined.dropped,
    }
    write_mined(output, records, mined.negatives, about=about, scores=scores)
    without = sum(not wrong for wrong in mined.negatives)
    dropped = ", ".join(f"{number:,} {reason}" for reason, number in mined.dropped.items() if number) or "nothing"
    say(
        f"{count:,} hard negatives for {len(mined.negatives):,} questions ({without:,} without any), from ranks "
        f"{settings.first_rank} to {settings.last_rank} of {source['name']}; excluded: {dropped}"
    )
    return mined


def _rank(
    records: "RetrievalSet", last: int, model: FolderOrName | None, index: FolderOrName | None, bm25: bool
) -> "tuple[RetrievalSet, mining.Ranked, dict[str, Any]]":
    """Ranks candidates, those of an index or of the set; returns their set, ranks and source."""
    from endx_jax.index.index_evaluation import rank_by_index
    from endx_jax.index.index_model import open_index, stored_hybrid
    from endx_jax.inference import load
    from endx_jax.parallel.console import say, showing_progress
    from endx_jax.ranking import mining
    from endx_jax.ranking.bm25 import BM25, without_words

    if index:
        stored = open_index(index, model or None)
        encoder = stored.encoder
        encoder.model.check_one_vector("mining")
        records, ranked = rank_by_index(encoder.encode, stored.snapshot, records, last)
        return records, ranked, {"name": encoder.model.name, "identity": encoder.model.identity, "index": str(index)}
    if model is None:
        ranked = mining.rank_by_bm25(records, last, progress=showing_progress())
        for line in without_words(int((ranked.rows[:, 0] < 0).sum()), len(ranked.rows), records.text_language):
            say(line)
        return records, ranked, {"name": "bm25", "description": BM25.description(records.text_language)}
    loaded = load(model)
    source = {"name": loaded.name, "identity": loaded.identity}
    if not bm25:
        return records, mining.rank_by_embeddings(loaded.comparable, records, last), source
    hybrid = stored_hybrid(model, cosine=loaded.cosine, language=records.text_language)
    ranked = mining.rank_by_hybrid(loaded.comparable, hybrid, records, last, progress=showing_progress())
    return records, ranked, source | {"name": f"{loaded.name} and BM25", "hybrid": str(hybrid)}
