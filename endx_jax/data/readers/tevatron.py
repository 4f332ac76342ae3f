"""Tevatron's training files (Gao et al. 2022): an object a line, a query with passages that are right and wrong."""

from endx_jax.data.readers import dpr, files
from endx_jax.data.readers.gathering import Gathering, Named
from endx_jax.data.records import RetrievalSet

RIGHT, WRONG = "positive_passages", "negative_passages"


def read(path: str) -> RetrievalSet:
    """Reads `.jsonl`: `query_id`, `query`, `positive_passages`, and perhaps `negative_passages` as hard negatives.

    A candidate's text is `title`, a space, `text`, and its id `docid`. Queries without a right passage are passed over.

    Raises:
      EndxError: the file is broken, named by line, or an id stands for two texts.
    """
    gathering = Gathering()
    for number, row in files.objects(path):
        where = f"{path}, line {number}"
        name = files.identifier(files.value(row, "query_id", where, ""), f"{where}: 'query_id'")
        query = files.text(files.value(row, "query", where), f"{where}: 'query'")
        right, wrong = (dpr.passages({WRONG: [], **row}, key, where, ("docid",)) for key in (RIGHT, WRONG))
        gathering.add(Named(query, name), right, wrong, where)
    return gathering.records(path)
