"""ReQA's sentence retrieval (Ahmad et al. 2019) as tensorflow-datasets builders that need no TensorFlow.

Importing this module imports tensorflow-datasets; `endx_jax.data.reqa_dataset` does so when it is called.
"""

import hashlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import requests
import tensorflow_datasets as tfds
from tensorflow_datasets.core.download.checksums import UrlInfo
from tensorflow_datasets.core.download.download_manager import NonMatchingChecksumError

from endx_jax.data import articles, reqa
from endx_jax.data.origins import ORIGINS, SPLITS, Origin
from endx_jax.data.published import Published
from endx_jax.data.readers import files
from endx_jax.errors import EndxError

PATIENCE = 10.0  # seconds for the first answer of the network

CITATION = "Ahmad et al. 2019, ReQA: An Evaluation for End-to-End Answer Retrieval Models"


class _LocalInfo(tfds.core.DatasetInfo):
    def initialize_from_bucket(self) -> None:
        """Does nothing: tfds would ask its own servers for the set, and leave an empty temporary folder behind."""


def _configs(kind: str) -> list[tfds.core.BuilderConfig]:
    prefix = f"{kind}/"
    return [
        tfds.core.BuilderConfig(name=name.removeprefix(prefix), description=f"Out of {origin.title}.")
        for name, origin in ORIGINS.items()
        if name.startswith(prefix)
    ]


class Reqa(tfds.core.GeneratorBasedBuilder):
    """Questions and the pool of sentences that they search, all sentences, as `reqa.convert_paragraphs` makes them.

    An example is an article, as `articles.cut` describes it, and not a question or a sentence: tfds has one table of
    features for all splits, so either would leave columns of the other empty; and it takes about as long to read an
    article as ten single rows, which would make reading slower than the conversion itself.

    `info.metadata` tells of each split its counts and the sha256 of the text, unpacked, that it was made from.
    """

    # Raise it whenever the conversion gives something else: what is prepared is not made anew otherwise.
    VERSION = tfds.core.Version("1.1.0")
    RELEASE_NOTES: Mapping[str, str] = {"1.0.0": "First version.", "1.1.0": "Counts of rows and of answers."}
    BUILDER_CONFIGS = _configs("reqa")

    def __init__(self, *, sources: Sequence[Sequence[str]] | None = None, file_format: str = "array_record", **kwargs):
        """Takes the files of each split; without them they are downloaded."""
        self._sources = sources
        super().__init__(file_format=file_format, **kwargs)

    @property
    def set_name(self) -> str:
        """The set's name in `ORIGINS`."""
        return f"{self.name}/{self.builder_config.name}"

    @property
    def origin(self) -> Origin:
        """What the set is made from."""
        return ORIGINS[self.set_name]

    @property
    def url_infos(self) -> dict[str, UrlInfo]:
        """What tfds holds downloads against."""
        published = (file for part in self.origin.published() for file in part)
        return {file.url: UrlInfo(file.size, file.sha256, file.url.rpartition("/")[2]) for file in published}

    def _info(self) -> tfds.core.DatasetInfo:
        texts, indices = tfds.features.Sequence(tfds.features.Text()), tfds.features.Tensor
        table = {"index": indices(shape=(None,), dtype=np.int32), "id": texts, "text": texts}
        pairs = indices(shape=(None, 2), dtype=np.int32)
        return _LocalInfo(
            builder=self,
            description="Questions and the sentences of all articles, among which the answers are to be found.",
            features=tfds.features.FeaturesDict(
                {
                    "title": tfds.features.Text(),
                    "sentences": table,
                    "questions": table,
                    "answers": pairs,
                    "hard_negatives": pairs,
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
                found = manager.download([[file.url for file in part] for part in published])
                return [[str(path) for path in part] for part in found]
            except NonMatchingChecksumError:
                reason = "what came does not have the published sha256"
            except (requests.RequestException, tfds.download.DownloadError) as failure:
                reason = type(failure).__name__
        names = [name.replace("|", " or ") for part in self.origin.names for name in part]
        raise EndxError(
            f"{self.set_name} is not prepared in {self.data_dir_root}, and {self.origin.title} can't be downloaded "
            f"from {first.rpartition('/')[0]} ({reason}): put {' and '.join(names)}, or the same as .gz, into a "
            f"folder, and prepare it with `endx prepare {self.set_name} --source=FOLDER`"
        )

    def _generate_examples(
        self, split: str, paths: Sequence[str], published: Sequence[Published]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        conversion = reqa.convert_paragraphs(self.origin.read(paths), paths, "sentences")
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
        yield from enumerate(articles.cut(records, conversion.homes))


class Multireqa(Reqa):
    """The same with sentences as MultiReQA publishes them."""

    BUILDER_CONFIGS = _configs("multireqa")


BUILDERS: Mapping[str, type[Reqa]] = {"reqa": Reqa, "multireqa": Multireqa}


def digest(paths: Sequence[str]) -> str:
    """sha256 of text files, unpacked, one after another: the same for `.json` and `.json.gz`."""
    found = hashlib.sha256()
    for path in paths:
        for _, line in files.lines(path):
            found.update(line.encode())
    return found.hexdigest()


def _are(paths: Sequence[str], published: Sequence[Published]) -> bool:
    """Whether files are the published ones, as they are or unpacked."""
    if len(paths) != len(published):
        return False
    return all(file.sha256 in (_hash(path), digest([path])) for path, file in zip(paths, published, strict=True))


def _hash(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _refusal(url: str) -> str | None:
    """Why `url` can't be had, or None; asked first, because tfds repeats a failed request for minutes."""
    answers: list[str | None] = [f"no answer within {PATIENCE:g} s"]

    def ask() -> None:
        try:
            # As tfds does it, so that the same proxies and certificates hold.
            with requests.get(url, stream=True, timeout=PATIENCE) as response:
                answers.append(None if response.ok else f"HTTP status {response.status_code}")
        except requests.RequestException as failure:
            answers.append(type(failure).__name__)

    # In a thread: `timeout` is for each address of the server anew, and does not hold while its name is looked up.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return answers[-1]
