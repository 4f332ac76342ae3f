"""tensorflow-datasets builders of ReQA's sentence retrieval (Ahmad et al. 2019), which need no TensorFlow.

Importing this module imports tensorflow-datasets; `endx_jax.data.reqa_dataset` imports it when needed.
"""

import hashlib
import pathlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import requests
import tensorflow_datasets as tfds
from tensorflow_datasets.core.download.checksums import UrlInfo
from tensorflow_datasets.core.download.download_manager import NonMatchingChecksumError

from endx_jax.data import reqa
from endx_jax.data.origins import ORIGINS, SPLITS, Origin, PublishedFile
from endx_jax.data.readers import text_files
from endx_jax.errors import EndxError
from endx_jax.files import sha256_of

TIMEOUT = 10.0  # seconds until a server must respond

CITATION = "Ahmad et al. 2019, ReQA: An Evaluation for End-to-End Answer Retrieval Models"


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
    """Builder of questions with the pool of all sentences, as `reqa.convert_paragraphs` makes them.

    An example is an article (see `reqa.to_articles`); reading examples of one question or sentence would take
    longer than the conversion itself. `info.metadata` holds the counts of each split and the sha256 of its decompressed
    source files.
    """

    # Increased whenever the conversion changes, so that existing sets are prepared again.
    VERSION = tfds.core.Version("1.1.0")
    RELEASE_NOTES: Mapping[str, str] = {"1.0.0": "First version.", "1.1.0": "Counts of rows and of answers."}
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
        """Published hashes, with which tfds checks downloads."""
        published = (file for part in self.origin.published() for file in part)
        return {file.url: UrlInfo(file.size, file.sha256, file.url.rpartition("/")[2]) for file in published}

    def _info(self) -> tfds.core.DatasetInfo:
        texts, indices = tfds.features.Sequence(tfds.features.Text()), tfds.features.Tensor
        table = {"index": indices(shape=(None,), dtype=np.int32), "id": texts, "text": texts}
        pairs = indices(shape=(None, 2), dtype=np.int32)
        return _LocalInfo(
            builder=self,
            description="Questions, and the sentences of all articles as the pool of candidates.",
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
        yield from enumerate(reqa.to_articles(records, conversion.articles))


class Multireqa(Reqa):
    """Builder of the same data with MultiReQA's sentences."""

    BUILDER_CONFIGS = _configs("multireqa")


BUILDERS: Mapping[str, type[Reqa]] = {"reqa": Reqa, "multireqa": Multireqa}


def digest(paths: Sequence[str]) -> str:
    """Returns the sha256 of the concatenated, decompressed files: the same for `.json` and `.json.gz`."""
    found = hashlib.sha256()
    for path in paths:
        for block in text_files.blocks(path):
            found.update(block)
    return found.hexdigest()


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
