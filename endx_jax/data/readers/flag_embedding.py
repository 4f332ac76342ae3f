"""FlagEmbedding's training files (the BGE models): an object a line, `query` with texts `pos` and `neg`."""

from endx_jax.data.readers import files
from endx_jax.data.readers.gathering import Gathering, Named
from endx_jax.data.records import RetrievalSet

RIGHT, WRONG = "pos", "neg"


def read(path: str) -> RetrievalSet:
    """Reads `.jsonl`: `query`, the list `pos` of right texts, and perhaps `neg`, the hard negatives.

    Scores of a teacher (`pos_scores`, `neg_scores`), `prompt` and `type` are passed over, and so are queries without a
    right text.

    Raises:
      EndxError: the file is broken, named by line.
    """
    gathering = Gathering()
    for number, row in files.objects(path):
        where = f"{path}, line {number}"
        query = files.text(files.value(row, "query", where), f"{where}: 'query'")
        right, wrong = (texts(files.value(row, key, where, []), f"{where}: {key!r}") for key in (RIGHT, WRONG))
        gathering.add(Named(query), right, wrong, where)
    return gathering.records(path)


def texts(value: object, where: str) -> list[Named]:
    """A list of texts, empty ones left out."""
    found = (
        files.text(item, f"{where}, item {n}", may_be_empty=True) for n, item in enumerate(files.listed(value, where))
    )
    return [Named(text) for text in found if text]
