"""Supported data formats: detection by the contents of a file or folder, and the reader of each."""

import os
from collections.abc import Callable, Iterable, Iterator

from endx_jax.data.formats import (
    beir,
    columns,
    document_files,
    examples,
    folders,
    mrqa,
    msmarco,
    natural_questions,
    row_files,
    shards,
    squad,
    text_files,
)
from endx_jax.data.sets.paragraphs import Paragraph, whole_paragraphs
from endx_jax.data.sets.records import RetrievalSet
from endx_jax.errors import EndxError

BEIR, MSMARCO, MULTIREQA, LLAMA_INDEX = "beir", "msmarco", "multireqa", "llama_index"
SQUAD, SQUAD_ROWS, MRQA, NATURAL_QUESTIONS = "squad", "squad_rows", "mrqa", "natural_questions"
DPR, TEVATRON, FLAG_EMBEDDING, COLUMNS = "dpr", "tevatron", "flag_embedding", "columns"
# Questions with answer strings and without passages: NQ-open, and DPR's question files.
ANSWERS = "answers"

ENDINGS = (".json", ".jsonl", ".csv", ".tsv", *text_files.ARROW_ENDINGS)

# Readers of reading-comprehension data, to which `data.pool` applies.
PARAGRAPH_READERS: dict[str, Callable[[str, text_files.InvalidRows, str | None], Iterable[Paragraph]]] = {
    SQUAD: lambda path, invalid, _: squad.squad_paragraphs(path, invalid),
    SQUAD_ROWS: squad.squad_rows,
    MRQA: lambda path, invalid, _: mrqa.mrqa_paragraphs(path, invalid),
    NATURAL_QUESTIONS: lambda path, invalid, _: natural_questions.natural_paragraphs(path, invalid),
    MULTIREQA: lambda path, *_: mrqa.multireqa_paragraphs(path),
}
# Parsers of the rows of other tools' training files.
ROW_PARSERS: dict[str, examples.Parser] = {
    DPR: examples.parse_dpr,
    TEVATRON: examples.parse_tevatron,
    FLAG_EMBEDDING: examples.parse_flag_embedding,
}
# Formats of rows with questions and answers, which are read in parts too: see `row_examples`.
TABLES = (COLUMNS, *ROW_PARSERS)

# Files, plain or .gz, that identify the format of a folder; other folders are read as BEIR.
_FOLDERS = {MSMARCO: (msmarco.COLLECTION,), MULTIREQA: mrqa.CANDIDATES}

# Keys of the first row of a file, by format; the first match decides.
_KEYS = {
    MRQA: ({"header"}, {"context", "qas"}),
    NATURAL_QUESTIONS: (
        {"annotations", "document_text"},
        {"question_text", "document_text"},
        {"annotations", "document_tokens"},
        {"annotations", "document_html"},
    ),
    DPR: ({"question", "positive_ctxs"}, {"question", "hard_negative_ctxs"}),
    TEVATRON: ({"query", "positive_passages"},),
    FLAG_EMBEDDING: ({"query", "pos"},),
}


def read(
    path: str | os.PathLike,
    *,
    split: str | None = None,
    question_column: str = columns.QUESTION,
    answer_column: str = columns.ANSWER,
    whole: bool = True,
    skip_invalid: bool = False,
    kind: str = "",
) -> RetrievalSet:
    """Reads the data set at `path`.

    Supported file formats, those of text also with `.gz`:

    - `.json`: SQuAD 1.1 and 2.0, LlamaIndex's `EmbeddingQAFinetuneDataset`, or a list of the objects of a `.jsonl`
      file, also as the only such list in an object;
    - `.jsonl`: Natural Questions and MRQA; SQuAD with a question a row, also in Arrow tables; training files of DPR,
      Tevatron and FlagEmbedding; or one question and answer per line, with optional hard negatives, or a chat;
    - `.csv` and `.tsv` with a header line, delimited by comma, semicolon, tab or bar: one question and answer per row,
      with optional hard negatives;
    - `.parquet`, `.arrow` and `.feather` (pyarrow): rows with the same columns.

    Supported folders are BEIR, MS MARCO, MultiReQA, those of `datasets.save_to_disk`, and folders or patterns of
    several of these files (`shards.files`). The candidates of reading-comprehension data are whole paragraphs. Text is
    UTF-8. White space at both ends of a text is removed, and equal texts are merged.

    Args:
      path: file or folder.
      split: split of a folder that has several; None if it has only one. Ignored by other formats.
      question_column: column or key of the question, in any case. For the default, `question`, the names in
        `columns.NAMES` are tried too.
      answer_column: column or key of the answer, in any case. For the default, `answer`, the names in
        `columns.NAMES` are tried too.
      whole: true for a pool of the whole corpus of a BEIR folder; false for one of the documents in judgements and
        negatives, which is enough for training and needs less memory.
      skip_invalid: true to skip invalid rows, such as those with an empty answer, and to log a warning with their
        number and the first reason. Does not apply to MS MARCO and MultiReQA.
      kind: format of `detect_format`; empty to detect it.

    Raises:
      EndxError: the data can't be read; the message names the file, the location in it and the reason.

    Examples:
      >>> import pathlib
      >>> text = '{"question": "Where is my parcel?", "answer": "Use the tracking link."}'
      >>> assert pathlib.Path("faq.jsonl").write_text(text)
      >>> records = endx_jax.data.read("faq.jsonl")
      >>> records.questions, records.candidates, records.qrels
      (('Where is my parcel?',), ('Use the tracking link.',), ((0,),))
    """
    path = os.fspath(path)
    data_format = kind or detect_format(path)
    if data_format == ANSWERS:
        where = "`endx evaluate --index=DIR --data=...` looks for passages that contain them"
        if text_files.uncompressed(path).endswith((".csv", ".tsv")):
            raise EndxError(f"{path} holds questions with lists of answer strings and no passages: {where}")
        text_files.LOG.warning("%s: each text of a list of answers is a right answer of its question; %s", path, where)
    if data_format in PARAGRAPH_READERS:
        paragraphs = read_paragraphs(path, data_format, skip_invalid=skip_invalid, split=split)
        return whole_paragraphs(paragraphs, path, merge=True)
    if data_format == BEIR:
        _check_not_squad(path)
        return beir.read_beir(path, split, whole=whole, skip_invalid=skip_invalid)
    if data_format == LLAMA_INDEX:
        return beir.read_qa_dataset(path)
    if data_format == MSMARCO:
        return msmarco.read_msmarco(path, split)
    invalid = text_files.InvalidRows(path, skip=skip_invalid)
    merged = examples.ExampleSet()
    for where, example in row_examples(path, data_format, (question_column, answer_column), invalid, split=split):
        with invalid.row():
            merged.add(example, where)
    records = merged.records(path, invalid)
    invalid.log()
    return records


def row_examples(
    path: str,
    kind: str,
    names: tuple[str, str],
    invalid: text_files.InvalidRows,
    *,
    split: str | None = None,
    part: shards.FilePart | None = None,
) -> Iterator[tuple[str, examples.Example]]:
    """Yields (location, example) of the rows of a table, or of a part of it.

    Its format `kind` is one of `TABLES`; `names` are the columns of question and answer of `COLUMNS`.
    """
    parser = examples.ColumnParser(names)
    rows = row_files.read_rows(path, invalid, check=parser.choose, split=split, part=part)
    parse = ROW_PARSERS.get(kind, parser)
    for _, where, row in parser.labelled(rows) if parse is parser else rows:
        with invalid.row():
            yield where, parse(row, where)


def read_paragraphs(
    path: str, kind: str = "", *, skip_invalid: bool = False, split: str | None = None
) -> Iterator[Paragraph]:
    """Yields the paragraphs of reading-comprehension data in file order, without merging.

    Args:
      path: file, folder or pattern.
      kind: format of `detect_format`; empty to detect it.
      skip_invalid: true to skip invalid questions, contexts and pages; ignored for MultiReQA.
      split: split of a folder.

    Raises:
      EndxError: the data has another format, or is invalid (the message has the line or key).
    """
    kind = kind or detect_format(path)
    if kind not in PARAGRAPH_READERS:
        _check_not_squad(path)
        choice = "name a file of such data, or " if os.path.isdir(path) else ""
        raise EndxError(
            f"{path} is not reading-comprehension data ({', '.join(PARAGRAPH_READERS)}) but {kind}; {choice}leave "
            "data.pool empty"
        )
    invalid = text_files.InvalidRows(path, skip=skip_invalid)
    for file in [path] if kind in (SQUAD_ROWS, MULTIREQA) else shards.files(path, split):
        yield from PARAGRAPH_READERS[kind](file, invalid, split)
    invalid.log()


def detect_format(path: str) -> str:
    """Returns the format of the file or folder at `path`, such as `SQUAD`; of shards, that of the first.

    A `.json` file that holds an object is SQuAD. Other formats are identified by the keys of the first valid row, or
    the first line of a `.csv` or `.tsv` file.

    Raises:
      EndxError: there is nothing at the path, its ending is unknown, or it can't be read.
    """
    if document_files.names_in(path):
        raise EndxError(
            f"{path} holds documents, which have no questions: search them with `endx serve --model=all-MiniLM-L6-v2 "
            f"--corpus={folders.base(path)}`, train with data.format=documents, or give questions with answers, such "
            "as a CSV file with the columns question and answer"
        )
    return format_of(path)


def format_of(path: str) -> str:
    """Returns the format of data as `detect_format` does, which also refuses documents."""
    if os.path.isdir(path):
        kind = next((name for name, parts in _FOLDERS.items() if _has_file(path, parts)), "")
        if sets := [] if kind else [*beir.sets_of(path)]:
            raise EndxError(
                f"{path} holds several data sets ({', '.join(sets[:3])}{', ...' * (len(sets) > 3)}): name one of them; "
                "only `endx evaluate --data` and evaluation.sets take them all"
            )
        if kind or holds_squad(path) or not shards.holds_shards(path):
            return kind or BEIR
    files = next(iter(shards.files_by_split(path).values()))
    file = files[0]
    ending = text_files.ending(file, ENDINGS)
    if ending in (".csv", ".tsv"):
        return ANSWERS if _is_answers_line(text_files.first_text_line(file)) else COLUMNS
    if ending == ".json" and not text_files.holds_list(file) and not text_files.list_inside(file):
        return LLAMA_INDEX if beir.QA_START.match(text_files.head(file, 1000)) else SQUAD
    rows = (row for part in files for _, _, row in row_files.read_rows(part, text_files.InvalidRows(path, skip=True)))
    kind, row = next(
        ((kind, row) for row in rows if (kind := _kind(row)) != COLUMNS or row.get("answers") != []), (COLUMNS, {})
    )
    if squad.has_spans(row):
        return SQUAD_ROWS
    has_list = any(isinstance(row.get(key), list) for key in ("answer", "answers"))
    return ANSWERS if kind == COLUMNS and "question" in row and has_list else kind


def _kind(row: dict) -> str:
    """Returns the format of `_KEYS` that a row has, or `COLUMNS`."""
    return next((name for name, choices in _KEYS.items() if any(keys <= row.keys() for keys in choices)), COLUMNS)


def holds_squad(path: str) -> bool:
    """Returns true if the path is a folder with SQuAD's files, and without a BEIR corpus."""
    return os.path.isdir(path) and _has_file(path, squad.FILES) and not _has_file(path, ("corpus.jsonl",))


def _check_not_squad(path: str) -> None:
    """Raises EndxError for a folder with SQuAD's files, which only training with `data.pool` reads."""
    if holds_squad(path):
        raise EndxError(f"{path} holds SQuAD's files: name one of them, or set data.pool to train on the folder")


def _has_file(folder: str, names: Iterable[str]) -> bool:
    return any(os.path.isfile(os.path.join(folder, name + packed)) for name in names for packed in ("", ".gz"))


def _is_answers_line(line: str) -> bool:
    """Returns true for a line of DPR's question files: a question, a tab and a list in Python's notation."""
    _, tab, answers = line.partition("\t")
    return bool(tab) and "\t" not in answers and answers.lstrip('"').startswith("[")
