"""What layout the data at a path have: seen in what is there, never in the name of a file before its ending."""

import os

from endx_jax.data.readers import files

BEIR, MSMARCO, MULTIREQA = "beir", "msmarco", "multireqa"
SQUAD, MRQA, NATURAL_QUESTIONS = "squad", "mrqa", "natural_questions"
DPR, TEVATRON, FLAG_EMBEDDING, COLUMNS = "dpr", "tevatron", "flag_embedding", "columns"
# Questions with strings that answer them, and no passages: NQ-open, and DPR's question files.
ANSWERS = "answers"

ENDINGS = (".json", ".jsonl", ".csv", ".tsv")

# A file that only a folder of this layout has, each also with .gz; a folder with none of them is BEIR.
_FOLDERS = {MSMARCO: ("collection.tsv",), MULTIREQA: ("candidates.json", "candidates.jsonl")}

# Keys that the first object of a file has, by layout; the first that fits is it.
_KEYS = {
    MRQA: ({"header"}, {"context", "qas"}),
    NATURAL_QUESTIONS: (
        {"annotations", "document_text"},
        {"annotations", "document_tokens"},
        {"annotations", "document_html"},
    ),
    TEVATRON: ({"query", "positive_passages"},),
    FLAG_EMBEDDING: ({"query", "pos"},),
}


def layout(path: str) -> str:
    """The layout of the file or folder at `path`, one of the names above.

    A `.json` file is SQuAD, or where it is a list DPR; in a `.jsonl` file the keys of the first object decide, in
    `.csv` and `.tsv` the first line.

    Raises:
      EndxError: there is nothing at the path, its ending is unknown, or what decides can't be read.
    """
    if os.path.isdir(path):
        return next((name for name, parts in _FOLDERS.items() if _any_of(path, parts)), BEIR)
    ending = files.ending(path, ENDINGS)
    if ending == ".jsonl":
        return _of_objects(path)
    first = next((line for _, line in files.lines(path) if line.strip()), "")
    if ending == ".json":
        return DPR if first.lstrip().startswith("[") else SQUAD
    return ANSWERS if _answers_line(first) else COLUMNS


def _any_of(folder: str, names: tuple[str, ...]) -> bool:
    return any(os.path.isfile(os.path.join(folder, name + packed)) for name in names for packed in ("", ".gz"))


def _of_objects(path: str) -> str:
    first: dict = next((row for _, row in files.objects(path)), {})
    for name, choices in _KEYS.items():
        if any(keys <= first.keys() for keys in choices):
            return name
    has_lists = any(isinstance(first.get(key), list) for key in ("answer", "answers"))
    return ANSWERS if "question" in first and has_lists else COLUMNS


def _answers_line(line: str) -> bool:
    """Whether this is a line of DPR's question files: a question, a tab and a list in Python's notation."""
    _, tab, answers = line.partition("\t")
    return bool(tab) and "\t" not in answers and answers.lstrip('"').startswith("[")
