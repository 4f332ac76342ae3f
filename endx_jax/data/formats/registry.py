"""Registry of data formats, and the one place that finds the format of a path: `open_data`.

A format is one file here, which describes it as a `Format`, and one entry of `FORMATS`.
"""

import array
import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from endx_jax.data.formats import document_files, folders, text_files
from endx_jax.data.formats.answer_strings import ANSWERS
from endx_jax.data.formats.beir import BEIR, SUITE
from endx_jax.data.formats.format import DEFAULTS, Format, Place, Reader, ReadOptions, T
from endx_jax.data.formats.llama_index import LLAMA_INDEX
from endx_jax.data.formats.made import MADE
from endx_jax.data.formats.mrqa import MRQA, MULTIREQA
from endx_jax.data.formats.msmarco import MSMARCO
from endx_jax.data.formats.natural_questions import NATURAL_QUESTIONS
from endx_jax.data.formats.origins import ORIGINS, name_and_split
from endx_jax.data.formats.squad import FOLDER, SQUAD, SQUAD_ROWS
from endx_jax.data.formats.tables import COLUMNS, ENDINGS, LINES, PASSAGES, Placed
from endx_jax.data.formats.text_files import InvalidRows
from endx_jax.data.formats.training_files import DPR, FLAG_EMBEDDING, TEVATRON
from endx_jax.data.sets.documents import Document, check_id
from endx_jax.data.sets.examples import Example, Judgements, UniqueIds
from endx_jax.data.sets.paragraphs import POOLS, Paragraph, convert_paragraphs, whole_paragraphs
from endx_jax.data.sets.records import RetrievalSet, RetrievalSetBuilder
from endx_jax.errors import EndxError, counted
from endx_jax.hub import local_path
from endx_jax.json_files import as_path
from endx_jax.settings import check_choice

Path = str | os.PathLike


# Document files, or a folder or pattern of them, as passages.
DOCUMENTS = Format(
    "documents",
    lambda place: bool(place.documents),
    documents=lambda place, options, invalid: document_files.passages(place.path, place.documents, options.say),
)


def _prepared(place: Place, options: ReadOptions, invalid: InvalidRows) -> Iterator[Paragraph]:
    from endx_jax.data.formats.reqa_dataset import read_prepared  # imports tensorflow-datasets

    yield from read_prepared(*name_and_split(place.path))


# Data sets of `endx prepare`, by name.
PREPARED = Format(
    "prepared",
    lambda place: name_and_split(place.path)[0] in ORIGINS,
    paragraphs=_prepared,
    parts=lambda place: None if ":" in place.path else (f"{place.path}:train", f"{place.path}:validation"),
)

# All formats; the first that matches is that of a path. The formats of tables, whose files are read in parts of rows,
# are told apart by the keys of their first row; `COLUMNS` has all other tables.
FORMATS: list[Format] = [
    MADE,
    PREPARED,
    LINES,
    MSMARCO,
    MULTIREQA,
    BEIR,
    DOCUMENTS,
    SUITE,
    FOLDER,
    PASSAGES,
    LLAMA_INDEX,
    SQUAD,
    SQUAD_ROWS,
    MRQA,
    NATURAL_QUESTIONS,
    DPR,
    TEVATRON,
    FLAG_EMBEDDING,
    ANSWERS,
    COLUMNS,
]
# Formats that other processes can read too: without `MADE`, whose data a config file makes, and without added formats.
PACKAGED = tuple(FORMATS[1:])


@dataclasses.dataclass(frozen=True)
class Data:
    """Data at a path, whose format is known, and how it is read: see `open_data`.

    Each method raises EndxError if the data can't be read, or hold nothing of this kind; the message names the file,
    the location in it and the reason.

    Attributes:
      place: path, and facts about the files there.
      format: format of the data.
      options: options of reading.
    """

    place: Place
    format: Format
    options: ReadOptions = DEFAULTS

    def __reduce__(self):
        # Processes that tokenize parts of the data find its format again, since functions of a format have no names.
        return open_data, (self.path, self.options)

    def with_options(self, **changes: Any) -> "Data":
        """Returns the data with some options of reading changed."""
        return dataclasses.replace(self, options=dataclasses.replace(self.options, **changes))

    @property
    def path(self) -> str:
        """Local path of the data, or name of the set."""
        return self.place.path

    @property
    def split(self) -> str:
        """Split to evaluate: the requested one, or else the only one of a BEIR folder, or else `test`."""
        return self.options.split or self.format.default_split(self.place)

    @property
    def has_units(self) -> bool:
        """True for reading-comprehension data, whose retrieval unit is `data.pool`."""
        return self.format.paragraphs is not None

    @property
    def parts(self) -> tuple[str, str] | None:
        """Paths of the training and the test data, if the data has both."""
        return self.format.parts(self.place)

    def sets(self) -> dict[str, "Data"]:
        """Returns the data sets of a suite by name, each with its split; none for other data."""
        sets = self.format.sets(self.place, self.options.split).items()
        return {name: open_data(path, dataclasses.replace(self.options, split=split)) for name, (path, split) in sets}

    def records(self) -> RetrievalSet:
        """Returns the questions with their candidates; equal texts are merged."""
        if self.format.paragraphs:
            return records_of(self.paragraphs(), [self.path], self.options.pool)
        if read := self.format.records:
            return self._whole(read)
        if self.format.examples:
            return self._whole(self._merged)
        if self.path.lower().endswith(".xlsx"):  # may hold pairs
            raise text_files.unknown_ending(self.path, ENDINGS)  # which names the format to save them in
        corpus = self.path if os.path.exists(self.path) else folders.base(self.path)
        raise EndxError(
            f"{self.path} holds documents, which have no questions: search them with `endx serve "
            f"--model=all-MiniLM-L6-v2 --corpus={corpus}`, make questions for them with "
            "`endx generate`, or give questions with answers, such as a CSV file with the columns question and answer"
        )

    def examples(self) -> Iterator[Example]:
        """Yields questions with their right and wrong passages in the order of the data, without merging."""
        if not self.format.examples:
            raise EndxError(f"{self.path} is {self.format.name}, which is not read row by row")
        yield from (example for _, example in self._each(self.format.examples))

    def paragraphs(self) -> Iterator[Paragraph]:
        """Yields the paragraphs of reading-comprehension data in the order of the data, without merging."""
        if not self.format.paragraphs:
            kinds = ", ".join(known.name for known in FORMATS if known.paragraphs)
            choice = "name a file of such data, or " if self.place.is_folder else ""
            settings = self.options.settings  # of which this data may refuse others too
            more = " --config.data.group_size=1" * (settings.group_size > 1)
            more += " --config.data.hard_negatives=-1" * (settings.hard_negatives > 0)
            flags = f" (in training --config.data.pool={more})" if more else ""
            raise EndxError(
                f"{self.path} is not reading-comprehension data ({kinds}) but {self.format.name}; {choice}leave "
                f"data.pool empty{flags}"
            )
        yield from self._each(self.format.paragraphs)

    def judgements(self) -> Judgements:
        """Returns the questions with the ids of their right documents, if possible without reading the documents."""
        return self._whole(self.format.judgements) if self.format.judgements else self.records().judgements

    def documents(self) -> Iterator[Document]:
        """Yields the documents of a corpus in the order of the data.

        Of other data these are the distinct passages: paragraphs or sentences of reading-comprehension data, with the
        title of their article as metadata. Repeated ids are an error after all documents have been read.
        """
        options = dataclasses.replace(self.options, say=functools.cache(self.options.say))
        if self.format.paragraphs:
            return _checked(self.path, self._contexts)
        if options.pool:
            needed = f"only reading-comprehension data can be split into {options.pool}"
            raise EndxError(f"{self.path}: {needed}; leave out the pool")
        if read := self.format.documents:
            return _checked(self.path, functools.partial(read, self.place, options, InvalidRows(self.path)))
        return _checked(self.path, lambda: ((self.path, document) for document in self.records().documents))

    def _each(self, read: Reader[Iterable[T]]) -> Iterator[T]:
        """Yields what a reader returns, and then logs the rows that it skipped."""
        part = self.options.part
        invalid = InvalidRows(part.file if part else self.path, skip=self.options.skip_invalid)
        yield from read(self.place, self.options, invalid)
        invalid.log()

    def _whole(self, read: Reader[T]) -> T:
        """Returns what a reader returns, and logs the rows that it skipped."""
        (contents,) = self._each(lambda *given: [read(*given)])
        return contents

    def _merged(self, place: Place, options: ReadOptions, invalid: InvalidRows) -> RetrievalSet:
        """Returns the examples as a retrieval set, in which each id belongs to one text."""
        assert self.format.examples is not None
        merged, questions, passages = RetrievalSetBuilder(), UniqueIds("question"), UniqueIds("passage")
        scored: bool | None = None
        empty = 0
        for where, example in self.format.examples(place, options, invalid):
            if not (example.right or example.wrong):
                empty += 1
                continue
            with invalid.row():
                if scored not in (None, example.scores is not None):
                    here, before = ("no scores", "some") if example.scores is None else ("scores", "none")
                    raise EndxError(f"{where}: the row has {here} of a teacher, and the rows above have {before}")
                passages.add((text for text in (*example.right, *example.wrong) if not isinstance(text, str)), where)
                questions.add([(example.question, example.id)], where)
                merged.add(*example)
                scored = example.scores is not None
        rows, used = len(merged.without_right), sum(one.question in merged.questions for one in merged.without_right)
        if not merged.questions:
            reason = invalid.report or (f"{counted(rows, 'row')} with wrong ones" if rows else "")
            raise EndxError(f"{self.path}: no questions with a right passage in the file{reason and f'; {reason}'}")
        if empty:
            text_files.LOG.warning("%s: %s without an answer left out", self.path, counted(empty, "question"))
        if rows:
            said = f"wrong answers of {used:,} of {counted(rows, 'row')} are hard negatives"
            text_files.LOG.warning("%s: %s, for data.hard_negatives", self.path, said)
        return merged.build()

    def _contexts(self) -> Iterator[Placed]:
        if self.options.pool:
            conversion = convert_paragraphs(self.paragraphs(), [self.path], self.options.pool)
            names, texts = conversion.records.candidate_ids, conversion.records.candidates
            for name, text, title in zip(names, texts, conversion.articles, strict=True):
                yield self.path, Document(name, text, {"title": title}, numbered=True)
            return
        titles: dict[str, str] = {}
        for paragraph in self.paragraphs():
            titles.setdefault(paragraph.context.strip(), paragraph.article)
        for number, (text, title) in enumerate(titles.items()):
            yield self.path, Document(f"p{number}", text, {"title": title}, numbered=True)


def records_of(paragraphs: Iterator[Paragraph], names: Sequence[str], pool: str) -> RetrievalSet:
    """Returns paragraphs of the data sets `names` as a retrieval set whose unit is `pool`: see `ReadOptions.pool`."""
    if pool in POOLS:
        return convert_paragraphs(paragraphs, names, pool).records
    return whole_paragraphs(paragraphs, " and ".join(names), merge=not pool)


def _checked(path: str, read: Callable[[], Iterable[Placed]]) -> Iterator[Document]:
    """Yields the documents; then raises EndxError if there are none, or if two have the same id."""
    seen = array.array("q")  # hashes, since ids would take ten times the memory
    for where, document in read():
        check_id(document.id, f"{where}: the id")
        seen.append(hash(document.name))
        yield document
    if not seen:
        raise EndxError(f"{path}: no documents in it")
    ordered = np.sort(np.frombuffer(seen, np.int64))
    repeated = set(ordered[1:][ordered[1:] == ordered[:-1]].tolist())
    first: dict[str, str] = {}
    for where, document in read() if repeated else ():
        name = document.name
        if name in first:
            hint = "ids must be unique; name their column with id_column=NAME, or none with id_column="
            raise EndxError(f"{where}: the id {name[:100]!r} is also that of {first[name]}; {hint}")
        if hash(name) in repeated:
            first[name] = where


def open_data(path: Path, options: ReadOptions = DEFAULTS, *, otherwise: Format | None = None) -> Data:
    """Finds the format of the data at a path; the contents are read by the methods of the result.

    Questions with answers (text is UTF-8, and text files may end in `.gz`):

    - `.json`: SQuAD 1.1 and 2.0, LlamaIndex's `EmbeddingQAFinetuneDataset`, or the objects of a `.jsonl` file, also as
      a list, as the only such list in an object, or in YAML (`text_files.list_inside`);
    - `.jsonl`: Natural Questions and MRQA; SQuAD with a question a row, also in Arrow tables; training files of DPR,
      Tevatron and FlagEmbedding; or one question and answer per line, with optional hard negatives, or a chat;
    - `.csv` and `.tsv` with a header line, delimited by comma, semicolon, tab or bar: one question and answer per row,
      with optional hard negatives;
    - `.parquet`, `.arrow` and `.feather` (pyarrow): rows with the same columns;
    - folders of BEIR, MS MARCO, MultiReQA and `datasets.save_to_disk`, and folders or patterns of several of these
      files (`folders.table_files`).

    Documents: tables and BEIR and MS MARCO folders as above; DPR's `psgs_w100.tsv`; `.tsv` of ids and texts without a
    header; `.txt`, one text per line; a document in Markdown, HTML or PDF, or a folder or pattern of such documents
    (`document_files.passages`); and the passages of the other formats. A table with questions, answers and no column
    `text` has its distinct answers, with the questions that they answer.

    Args:
      path: file, folder or pattern, also on the hub or in a bucket, or the name of a prepared set.
      options: options of reading.
      otherwise: format of a file whose ending is unknown; None to refuse it.

    Raises:
      EndxError: there is nothing at the path, its format is unknown, or it can't be read.
    """
    place = Place(local_path(as_path(path)))
    for known in FORMATS:
        if known.matches(place):
            return Data(place, known, options)
    if otherwise and not place.is_folder:
        return Data(place, otherwise, options)
    if not place.is_folder:
        raise text_files.unknown_ending(place.files[0], ENDINGS)
    raise EndxError(
        f"{place.path}: no file can be read as questions and answers, or as documents; it has "
        f"{folders.endings_in(place.path)}: write a .csv or .jsonl file with a question and an answer, or a text, in "
        f"each row, BEIR's corpus.jsonl, queries.jsonl, qrels, or documents ({', '.join(document_files.ENDINGS)})"
    )


def path_and_split(path: str) -> tuple[str, str | None]:
    """Returns the parts of `PATH:SPLIT`, for files, the hub and buckets; None for a path without a split.

    The split of a prepared set, such as `reqa/squad:validation`, is a part of its name.
    """
    whole, colon, split = path.rpartition(":")
    if not colon or "/" in split or whole in ORIGINS or os.path.exists(path):
        return path, None
    return whole, split


def read(
    path: Path,
    *,
    split: str | None = None,
    question_column: str | None = None,
    answer_column: str | None = None,
    whole: bool = True,
    skip_invalid: bool = False,
) -> RetrievalSet:
    """Reads the data set at `path`, of any format that `open_data` knows and that has questions.

    The candidates of reading-comprehension data are whole paragraphs. White space at both ends of a text is removed,
    and equal texts are merged.

    Args:
      path: file, folder or pattern.
      split: split of a folder that has several; None if it has only one. Ignored by other formats.
      question_column: column or key of the question, in any case; None for the first of `columns.NAMES`.
      answer_column: column or key of the answer, likewise.
      whole: true for a pool of the whole corpus of a BEIR folder; false for one of the documents in judgements and
        negatives, which is enough for training and needs less memory.
      skip_invalid: true to skip invalid rows, such as those with an empty answer, and to log a warning with their
        number and the first reason. Does not apply to MS MARCO and MultiReQA.

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
    options = ReadOptions(
        split=split,
        question_column=question_column,
        answer_column=answer_column,
        whole=whole,
        skip_invalid=skip_invalid,
    )
    return open_data(path, options).records()


def read_corpus(path: Path, **options) -> Iterator[Document]:
    """Yields the documents of a corpus in file order, of any format that `open_data` knows.

    The id of a document without one is the number of its line, counted on from file to file. `tables.documents` says
    how the columns of a table become metadata. White space at both ends of a text is removed. A text may be empty, as
    some in published corpora are, if its row has other values.

    Args:
      path: file, folder or pattern.
      **options: `pool` (empty for paragraphs, `answers` or `sentences`), `split`, `say`, and `text_column`,
        `question_column`, `id_column` and `title_column`: see `ReadOptions`.

    Raises:
      EndxError: the corpus can't be read; the message names file and line. Repeated ids are reported after all
        documents have been read.
    """
    reading = ReadOptions(**options)
    check_choice("pool", reading.pool, ("", *POOLS))
    return open_data(path, reading).documents()
