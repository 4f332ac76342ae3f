"""Numbers of questions, answers and pairs of reading-comprehension data, as papers report them."""

from endx_jax.data import reqa
from endx_jax.data.formats.origins import PREFIXES, SPLITS, name_and_split
from endx_jax.data.settings import PARAGRAPHS, DataSettings
from endx_jax.experiment.data import read_records
from endx_jax.settings import check_choice


def counts_of(path: str, pool: str) -> dict[str, int]:
    """Counts questions, answers and pairs.

    Args:
      path: file, MultiReQA folder, or split of a prepared data set.
      pool: `answers`, `sentences` or `paragraphs`; see `pools`.

    Returns:
      `questions`; `answers`, the candidates of the pool; and `rows`, the pairs before equal questions are merged.
    """
    if path.startswith(PREFIXES):
        from endx_jax.data.formats import reqa_dataset

        name, part = name_and_split(path)
        check_choice(f"the split of {name}", part, SPLITS)
        reqa_dataset.ensure(name)
        counts = reqa_dataset.summary(name)[part]
        return {
            "questions": counts["questions"],
            "answers": counts["answers" if pool == "answers" else "candidates"],
            "rows": counts["rows"],
        }
    if pool == PARAGRAPHS:
        records = read_records(path, DataSettings(pool=PARAGRAPHS), None)
        rows = len(records.pairs)
    else:
        conversion = reqa.convert(path, pool)
        records, rows = conversion.records, conversion.rows
    return {"questions": len(records.questions), "answers": len(records.candidates), "rows": rows}
