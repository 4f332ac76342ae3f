"""Training files of other tools, with a question, right passages and hard negatives in each row.

- DPR (Karpukhin et al. 2020): `question`, `positive_ctxs` and `hard_negative_ctxs`, each a list of `title`, `text` and
  `passage_id` or `psg_id`; the second may be absent. `negative_ctxs`, which are drawn at random, are ignored. Questions
  have no ids.
- Tevatron (Gao et al. 2022): `query_id`, `query`, `positive_passages` and optional `negative_passages`, each a list of
  `docid`, `title` and `text`.
- FlagEmbedding (the BGE models): `query`, a list of texts or one text `pos`, and optionally `neg`. `prompt` and `type`
  are ignored.

Rows of Tevatron and FlagEmbedding may have a teacher's scores, `pos_scores` and `neg_scores`, lists of as many numbers
as there are right passages and negatives. Then all rows must have them.

A list may be null. A passage is its title, a space and its text. Empty passages, and questions without a right passage,
are ignored.
"""

from collections.abc import Callable

from endx_jax import json_files
from endx_jax.data.formats.format import Format, each_row
from endx_jax.data.formats.row_files import MOST_SCORE
from endx_jax.data.sets.examples import Example
from endx_jax.errors import EndxError

# Text of a passage and its id in the file; both may be empty.
Named = tuple[str, str]


def parse_dpr(row: dict, where: str) -> Example:
    """Parses a row of DPR's training files."""
    question = json_files.text_at(row, "question", where)
    json_files.value(row, "positive_ctxs", where)  # raises EndxError if there is none
    keys = ("positive_ctxs", "hard_negative_ctxs")
    right, wrong = (_passages(row, key, where, "passage_id", "psg_id") for key in keys)
    return _example(question, right, wrong)


def parse_tevatron(row: dict, where: str) -> Example:
    """Parses a row of Tevatron's training files."""
    name = json_files.identifier_at(row, "query_id", where, "")
    query = json_files.text_at(row, "query", where)
    json_files.value(row, "positive_passages", where)  # raises EndxError if there is none
    right, wrong = (_passages(row, f"{side}_passages", where, "docid") for side in ("positive", "negative"))
    return _example(query, right, wrong, _scores(row, right, wrong, where), name)


def parse_flag_embedding(row: dict, where: str) -> Example:
    """Parses a row of FlagEmbedding's training files."""
    sides = (texts(row.get(key) or [], f"{where}: {key!r}") for key in ("pos", "neg"))
    right, wrong = ([(text, "") for text in side] for side in sides)
    return _example(json_files.text_at(row, "query", where), right, wrong, _scores(row, right, wrong, where))


def texts(value: object, where: str) -> list[str]:
    """Returns the texts of a string or a list of strings; missing ones are empty."""
    items = {f"{where}, item {n}": item for n, item in enumerate(value)} if isinstance(value, list) else {where: value}
    found = {at: "" if json_files.is_missing(item) else item for at, item in items.items()}
    return [json_files.as_text(text, at, may_be_empty=True) for at, text in found.items()]


def _example(
    question: str, right: list[Named], wrong: list[Named], scores: list[float] | None = None, name: str = ""
) -> Example:
    """Returns an example without empty passages and their scores."""
    if scores is not None:
        scores = [score for score, (text, _) in zip(scores, (*right, *wrong), strict=True) if text]
    filled_right, filled_wrong = ([passage for passage in side if passage[0]] for side in (right, wrong))
    return Example(question, filled_right, filled_wrong, scores, name)


def _scores(row: dict, right: list[Named], wrong: list[Named], where: str) -> list[float] | None:
    """Returns the scores of all passages; None if the row has none."""
    sides = {"pos_scores": right, "neg_scores": wrong}
    if all(row.get(key) is None for key in sides):
        return None
    scores: list[float] = []
    for key, passages in sides.items():
        if row.get(key) is None and passages:
            raise EndxError(f"{where}: {key!r} is missing, but the row has other scores")
        values = json_files.list_at(row, key, where, [])
        if len(values) != len(passages):
            raise EndxError(f"{where}: {key!r} has {len(values)} scores for {len(passages)} passages")
        for n, value in enumerate(values):
            scores.append(json_files.as_number(value, f"{where}: {key}[{n}]", least=-MOST_SCORE, most=MOST_SCORE))
    return scores


def _passages(row: dict, key: str, where: str, *id_keys: str) -> list[Named]:
    """Returns the passages of the list at a key; keeps empty ones."""
    passages = []
    for place, passage in enumerate(json_files.list_at(row, key, where, [])):
        at = f"{where}: {key}[{place}]"
        title = json_files.value(passage, "title", at, "")
        title = "" if json_files.is_missing(title) else json_files.as_text(title, f"{at}: 'title'", may_be_empty=True)
        text = json_files.text_at(passage, "text", at, may_be_empty=True)
        name = next((passage[identifier] for identifier in id_keys if identifier in passage), "")
        known = (f"{title} {text}".strip(), json_files.identifier(name, f"{at}: the id")) if text else ("", "")
        passages.append(known)
    return passages


def _format(name: str, parse: Callable[[dict, str], Example], *keys: set[str]) -> Format:
    """Returns the format of rows that have one of these sets of keys."""
    return Format(name, lambda place: place.has_keys(*keys), examples=each_row(parse), in_parts=True)


DPR = _format("dpr", parse_dpr, {"question", "positive_ctxs"}, {"question", "hard_negative_ctxs"})
TEVATRON = _format("tevatron", parse_tevatron, {"query", "positive_passages"})
FLAG_EMBEDDING = _format("flag_embedding", parse_flag_embedding, {"query", "pos"})
