"""Prepared data sets `reqa/...` and `multireqa/...`: ReQA's sentence retrieval (Ahmad et al. 2019).

They are converted once with tensorflow-datasets, which needs no TensorFlow for it, and read with Grain. Importing this
module imports tensorflow-datasets, so it is imported where it is needed.
"""

import collections
import contextlib
import hashlib
import io
import itertools
import os
import pathlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import requests
import tensorflow_datasets as tfds
from tensorflow_datasets.core.download.checksums import UrlInfo
from tensorflow_datasets.core.download.download_manager import NonMatchingChecksumError

from endx_jax.data.formats import folders, text_files
from endx_jax.data.formats.origins import ORIGINS, SPLITS, Origin, PublishedFile
from endx_jax.data.sets.paragraphs import AnswerSpan, Paragraph, Question, convert_paragraphs, with_sentences
from endx_jax.errors import EndxError, first_line
from endx_jax.files import expanded, locked, sha256_of
from endx_jax.settings import check_choice

NAMES = tuple(ORIGINS)
LARGE = 1e9  # maximum bytes that `ensure` downloads; larger sets need an explicit `prepare`
TIMEOUT = 10.0  # seconds until a server must respond
CITATION = "Ahmad et al. 2019, ReQA: An Evaluation for End-to-End Answer Retrieval Models"

Sources = tuple[list[str], ...]  # files of each of `SPLITS`


def prepare(
    name: str = "reqa/squad",
    *,
    source: str | os.PathLike | None = None,
    data_dir: str | os.PathLike | None = None,
    progress: bool = False,
) -> pathlib.Path:
    """Prepares a set, unless it exists already.

    The set is written atomically, and by one process at a time.

    Args:
      name: one of `NAMES`.
      source: folder with the source files, under the names in `ORIGINS`. None uses an existing set, made from any
        files, or downloads the published files and checks their hashes.
      data_dir: folder of tensorflow-datasets; by default `TFDS_DATA_DIR`, or `~/tensorflow_datasets`.
      progress: true to show progress bars.

    Returns:
      The folder of the prepared set.

    Raises:
      EndxError: `source` lacks a file or is malformed, the set was prepared from other files, the download fails, or
        `data_dir` can't be written to.
    """
    check_choice("the prepared set", name, NAMES)
    sources = None if source is None else _find(name, source)
    builder = _builder(name, data_dir, sources)
    if not _is_whole(builder):
        _generate(builder, progress)
    if sources:
        _check_made_from(sources, _builder(name, data_dir))
    return pathlib.Path(builder.data_dir)


def ensure(name: str, *, data_dir: str | os.PathLike | None = None) -> None:
    """Prepares a set if it does not exist and its download is not large.

    Raises:
      EndxError: more than `LARGE` bytes must be downloaded, or `prepare` fails.
    """
    size = sum(file.size for files in ORIGINS[name].published() for file in files)
    if size > LARGE and not _is_whole(_builder(name, data_dir)):
        raise EndxError(
            f"{name} is not prepared, and its files are {size / 1e9:.1f} GB: download them with `endx prepare {name}`, "
            f"or give a folder of them, `endx prepare {name} --source=FOLDER`"
        )
    prepare(name, data_dir=data_dir)


def is_prepared(name: str, *, data_dir: str | os.PathLike | None = None) -> bool:
    """Returns true if a set is prepared."""
    return _is_whole(_builder(name, data_dir))


def read_prepared(name: str, split: str, *, data_dir: str | os.PathLike | None = None) -> Iterator[Paragraph]:
    """Yields the paragraphs of a split with their sentences; prepares the set if needed.

    Args:
      name: one of `NAMES`.
      split: `train` or `validation`.
      data_dir: as in `prepare`.

    Raises:
      EndxError: `ensure` fails, or the prepared files are damaged.
    """
    import grain

    check_choice(f"the split of {name}", split, SPLITS)
    ensure(name, data_dir=data_dir)
    builder = _builder(name, data_dir)
    try:
        records = grain.MapDataset.source(builder.as_data_source(split))
        for number in range(len(records)):
            yield from from_record(records[number])
    except RuntimeError as failure:
        reason = first_line(failure)
        raise EndxError(f"{builder.data_dir} is damaged ({reason}); remove the folder and prepare it again") from None


def summary(name: str, *, data_dir: str | os.PathLike | None = None) -> dict[str, dict[str, Any]]:
    """Returns the counts of a prepared set by split, with `sha256` and `published` of its source files."""
    return dict(_builder(name, data_dir).info.metadata)


class _LocalInfo(tfds.core.DatasetInfo):
    def initialize_from_bucket(self) -> None:
        """Does nothing; tfds would query its servers and leave an empty temporary folder."""


def _configs(kind: str) -> list[tfds.core.BuilderConfig]:
    prefix = f"{kind}/"
    return [
        tfds.core.BuilderConfig(name=name.removeprefix(prefix), description=f"Made from {origin.title}.")
        for name, origin in ORIGINS.items()
        if name.startswith(prefix)
    ]


class Reqa(tfds.core.GeneratorBasedBuilder):
    """Builder of paragraphs with questions, and with their sentences after ReQA.

    An example is an article (see `to_record`), since reading one for each paragraph takes several times as long.
    `info.metadata` holds the counts of each split, as `convert_paragraphs` returns them for the pool of all sentences,
    and the sha256 of its decompressed source files.
    """

    # Increased whenever the conversion changes, so that existing sets are prepared again.
    VERSION = tfds.core.Version("1.2.0")
    RELEASE_NOTES: Mapping[str, str] = {
        "1.0.0": "First version.",
        "1.1.0": "Counts of rows and of answers.",
        "1.2.0": "Paragraphs with their sentences.",
    }
    BUILDER_CONFIGS = _configs("reqa")

    def __init__(self, *, sources: Sequence[Sequence[str]] | None = None, file_format: str = "array_record", **kwargs):
        """Creates a builder from the source files of each split; None downloads them."""
        self._sources = sources
        super().__init__(file_format=file_format, **kwargs)

    @property
    def set_name(self) -> str:
        """Name of the set in `ORIGINS`."""
        return f"{self.name}/{self.builder_config.name}"

    @property
    def origin(self) -> Origin:
        """Source files of the set."""
        return ORIGINS[self.set_name]

    @property
    def url_infos(self) -> dict[str, UrlInfo]:
        """Published hashes of the files, by which tfds checks downloads."""
        published = (file for part in self.origin.published() for file in part)
        return {file.url: UrlInfo(file.size, file.sha256, file.url.rpartition("/")[2]) for file in published}

    def _info(self) -> tfds.core.DatasetInfo:
        texts = tfds.features.Sequence(tfds.features.Text())
        numbers = tfds.features.Tensor(shape=(None,), dtype=np.int32)
        return _LocalInfo(
            builder=self,
            description="Paragraphs with their sentences and questions.",
            features=tfds.features.FeaturesDict(
                {
                    "title": tfds.features.Text(),
                    "contexts": texts,
                    "sentences": tfds.features.Tensor(shape=(None, 3), dtype=np.int32),
                    "questions": {"paragraph": numbers, "id": texts, "text": texts},
                    "answers": {"question": numbers, "start": numbers, "text": texts},
                }
            ),
            homepage=self.origin.homepage,
            citation=f"{CITATION}; {self.origin.paper}",
            license=self.origin.licence,
            disable_shuffling=True,
            metadata=tfds.core.MetadataDict(),
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Iterator]:
        paths = self._sources or self._download(dl_manager)
        return {
            split: self._generate_examples(split, files, published)
            for split, files, published in zip(SPLITS, paths, self.origin.published(), strict=True)
        }

    def _download(self, manager: tfds.download.DownloadManager) -> list[list[str]]:
        published = self.origin.published()
        first = published[0][0].url
        reason = _refusal(first)
        if reason is None:
            try:
                paths = manager.download([[file.url for file in part] for part in published])
                return [[str(path) for path in part] for part in paths]
            except NonMatchingChecksumError:
                reason = "the download does not have the published sha256"
            except (requests.RequestException, tfds.download.DownloadError) as failure:
                reason = type(failure).__name__
        names = [name.replace("|", " or ") for part in self.origin.names for name in part]
        raise EndxError(
            f"{self.set_name} is not prepared in {self.data_dir_root}, and {self.origin.title} can't be downloaded "
            f"from {first.rpartition('/')[0]} ({reason}): put {' and '.join(names)}, or the same as .gz, into a "
            f"folder, and prepare it with `endx prepare {self.set_name} --source=FOLDER`"
        )

    def _generate_examples(
        self, split: str, paths: Sequence[str], published: Sequence[PublishedFile]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        paragraphs = [*map(with_sentences, self.origin.read(paths))]
        conversion = convert_paragraphs(paragraphs, paths, "sentences")
        records = conversion.records
        self.info.metadata[split] = {
            "sha256": digest(paths),
            "published": not self._sources or _are(paths, published),
            "questions": len(records.questions),
            "candidates": len(records.candidates),
            "answers": len({candidate for right in records.qrels for candidate in right}),
            "pairs": len(records.pairs),
            "rows": conversion.rows,
            "unplaced_answers": conversion.unplaced_answers,
            "unplaced_questions": conversion.unplaced_questions,
        }
        articles = itertools.groupby(paragraphs, key=lambda paragraph: paragraph.article)
        yield from enumerate(to_record(title, [*of_article]) for title, of_article in articles)


class Multireqa(Reqa):
    """Builder of the same data with MultiReQA's sentences."""

    BUILDER_CONFIGS = _configs("multireqa")


BUILDERS: Mapping[str, type[Reqa]] = {"reqa": Reqa, "multireqa": Multireqa}


def _find(name: str, source: str | os.PathLike) -> Sources:
    """Returns the source files of each split in a folder."""
    train, validation = ORIGINS[name].names
    files = folders.find(source, [*train, *validation])
    return tuple(list(itertools.chain(*part)) for part in (files[: len(train)], files[len(train) :]))


def _builder(name: str, data_dir: str | os.PathLike | None, sources: Sources | None = None) -> Reqa:
    kind, _, config = name.partition("/")
    where = expanded(tfds.core.constants.DATA_DIR if data_dir is None else data_dir)  # tfds would make a folder `~`
    return BUILDERS[kind](config=config, data_dir=where if data_dir else None, sources=sources)


def _is_whole(builder: Reqa) -> bool:
    # Unlike `builder.is_prepared()`, this prints no warning for sets that are not prepared.
    return os.path.isfile(os.path.join(builder.data_dir, "dataset_info.json"))


def _generate(builder: Reqa, progress: bool) -> None:
    """Prepares a set, unless another process, for which it waits, has done so."""
    tfds.display_progress_bar(progress)
    settings = tfds.download.DownloadConfig(force_checksums_validation=True, try_download_gcs=False)
    try:
        os.makedirs(builder.data_dir_root, exist_ok=True)
        with locked(pathlib.Path(builder.data_dir_root, f".{builder.name}.lock"), waits=True):
            if _is_whole(builder):
                return
            if os.path.exists(builder.data_dir):
                said = "exists but is not a complete data set; remove the folder and prepare it again"
                raise EndxError(f"{builder.data_dir} {said}")
            with contextlib.redirect_stdout(io.StringIO()):  # it prints to standard output
                builder.download_and_prepare(download_config=settings)
    except OSError as failure:
        raise EndxError(f"can't write {builder.data_dir}: {failure.strerror or failure}") from None


def _check_made_from(sources: Sources, builder: Reqa) -> None:
    for split, files in zip(SPLITS, sources, strict=True):
        made_from, here = builder.info.metadata[split]["sha256"], digest(files)
        if here != made_from:
            others = f"another file than {files[0]}" if len(files) == 1 else f"other files than {files[0]} and the rest"
            raise EndxError(
                f"{builder.data_dir} was made from {others} (sha256 {made_from[:12]}..., here {here[:12]}...): remove "
                "that folder to prepare it again, or choose another one with --data-dir=DIR"
            )


def digest(paths: Sequence[str]) -> str:
    """Returns the sha256 of the concatenated, decompressed files: the same for `.json` and `.json.gz`."""
    hasher = hashlib.sha256()
    for path in paths:
        for block in text_files.blocks(path):
            hasher.update(block)
    return hasher.hexdigest()


def _are(paths: Sequence[str], published: Sequence[PublishedFile]) -> bool:
    """Returns true if files are the published ones, as published or decompressed."""
    if len(paths) != len(published):
        return False
    return all(
        file.sha256 in (sha256_of(pathlib.Path(path)), digest([path]))
        for path, file in zip(paths, published, strict=True)
    )


def _refusal(url: str) -> str | None:
    """Returns the reason why `url` can't be downloaded, or None; checked first, since tfds retries for minutes."""
    answers: list[str | None] = [f"no answer within {TIMEOUT:g} s"]

    def ask() -> None:
        try:
            # With requests, as tfds does, so that the same proxies and certificates apply.
            with requests.get(url, stream=True, timeout=TIMEOUT) as response:
                answers.append(None if response.ok else f"HTTP status {response.status_code}")
        except requests.RequestException as failure:
            answers.append(type(failure).__name__)

    # In a thread, since `timeout` applies to each address of the server separately, and not to name resolution.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(TIMEOUT)
    return answers[-1]


def to_record(title: str, paragraphs: Sequence[Paragraph]) -> dict[str, Any]:
    """Returns paragraphs of an article as the record on disk: flat columns, with rows of paragraphs and questions."""
    spans = [(row, *span) for row, paragraph in enumerate(paragraphs) for span in paragraph.sentences or ()]
    asked = [(row, question) for row, paragraph in enumerate(paragraphs) for question in paragraph.questions]
    answers = [(row, answer) for row, (_, question) in enumerate(asked) for answer in question.answers]
    return {
        "title": title,
        "contexts": [paragraph.context for paragraph in paragraphs],
        "sentences": np.array(spans, np.int32).reshape(-1, 3),
        "questions": {
            "paragraph": np.array([row for row, _ in asked], np.int32),
            "id": [question.id for _, question in asked],
            "text": [question.text for _, question in asked],
        },
        "answers": {
            "question": np.array([row for row, _ in answers], np.int32),
            "start": np.array([answer.start for _, answer in answers], np.int32),
            "text": [answer.text for _, answer in answers],
        },
    }


def from_record(record: Mapping[str, Any]) -> Iterator[Paragraph]:
    """Yields the paragraphs of a record, whose texts are UTF-8 bytes."""
    columns = record["questions"], record["answers"]
    spans: dict[int, list[tuple[int, int]]] = collections.defaultdict(list)
    answers: dict[int, list[AnswerSpan]] = collections.defaultdict(list)
    questions: dict[int, list[Question]] = collections.defaultdict(list)
    for row, start, end in record["sentences"].tolist():
        spans[row].append((start, end))
    for row, start, text in zip(*(columns[1][name] for name in ("question", "start", "text")), strict=True):
        answers[int(row)].append(AnswerSpan(text.decode(), int(start)))
    asked = zip(*(columns[0][name] for name in ("paragraph", "id", "text")), strict=True)
    for number, (row, name, text) in enumerate(asked):
        questions[int(row)].append(Question(name.decode(), text.decode(), tuple(answers[number])))
    for row, context in enumerate(record["contexts"]):
        yield Paragraph(record["title"].decode(), context.decode(), tuple(questions[row]), tuple(spans[row]))
