"""DPR's training files (Karpukhin et al. 2020): one JSON list of questions with passages that are right and wrong."""

from collections.abc import Iterator

from endx_jax.data.readers import files
from endx_jax.data.readers.gathering import Gathering, Named
from endx_jax.data.records import RetrievalSet

RIGHT, WRONG = "positive_ctxs", "hard_negative_ctxs"


def read(path: str) -> RetrievalSet:
    """Reads `.json` or `.json.gz`: all of `positive_ctxs` are right, `hard_negative_ctxs` are hard negatives.

    A candidate's text is `title`, a space, `text`. `negative_ctxs`, which are drawn at random, are passed over, and so
    are questions without a right passage, as in DPR's own training. A question has no id there.

    Raises:
      EndxError: the file is broken or another list, named by line, or an id stands for two passages.
    """
    gathering = Gathering()
    for number, row in files.items(path):
        where = f"{path}, line {number}"
        question = Named(files.text(files.value(row, "question", where), f"{where}: 'question'"))
        gathering.add(question, passages(row, RIGHT, where), passages(row, WRONG, where), where)
    return gathering.records(path)


def passages(row: dict, key: str, where: str, id_keys: tuple[str, ...] = ("passage_id", "psg_id")) -> Iterator[Named]:
    """The passages at `key` of a row, those without text left out: objects of `text`, perhaps `title` and an id."""
    listed = files.value(row, key, where)
    for place, passage in enumerate(files.listed(listed, f"{where}: {key!r}")):
        at = f"{where}: {key}[{place}]"
        title = files.text(files.value(passage, "title", at, "") or "", f"{at}.title", may_be_empty=True)
        text = files.text(files.value(passage, "text", at), f"{at}.text", may_be_empty=True)
        name = next((passage[identifier] for identifier in id_keys if identifier in passage), "")
        if text:
            yield Named(f"{title} {text}".strip(), files.identifier(name, f"{at}: the id"))
