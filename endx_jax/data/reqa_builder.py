"""ReQA's sentence retrieval (Ahmad et al. 2019) as a tensorflow-datasets builder that needs no TensorFlow.

Importing this module imports tensorflow-datasets; `endx_jax.data.reqa_dataset` does so when it is called.
"""

import dataclasses
import hashlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import requests
import tensorflow_datasets as tfds
from tensorflow_datasets.core.download.checksums import UrlInfo
from tensorflow_datasets.core.download.download_manager import NonMatchingChecksumError

from endx_jax.data import articles, reqa
from endx_jax.data.readers import files, squad
from endx_jax.errors import EndxError


@dataclasses.dataclass(frozen=True)
class Published:
    """A file of SQuAD 1.1 where its authors publish it, with its size in bytes and its hash."""

    url: str
    size: int
    sha256: str


PUBLISHED = {
    "train": Published(
        url="https://rajpurkar.github.io/SQuAD-explorer/dataset/train-v1.1.json",
        size=30_288_272,
        sha256="3527663986b8295af4f7fcdff1ba1ff3f72d07d61a20f487cb238a6ef92fd955",
    ),
    "validation": Published(
        url="https://rajpurkar.github.io/SQuAD-explorer/dataset/dev-v1.1.json",
        size=4_854_279,
        sha256="95aa6a52d5d6a735563366753ca50492a658031da74f301ac5238b03966972c9",
    ),
}

PATIENCE = 10.0  # seconds for the first answer of the network

CITATIONS = """\
@inproceedings{ahmad-etal-2019-reqa,
  title = {{ReQA}: An Evaluation for End-to-End Answer Retrieval Models},
  author = {Ahmad, Amin and Constant, Noah and Yang, Yinfei and Cer, Daniel},
  booktitle = {Proceedings of the 2nd Workshop on Machine Reading for Question Answering},
  year = {2019},
}
@inproceedings{rajpurkar-etal-2016-squad,
  title = {{SQuAD}: 100,000+ Questions for Machine Comprehension of Text},
  author = {Rajpurkar, Pranav and Zhang, Jian and Lopyrev, Konstantin and Liang, Percy},
  booktitle = {Proceedings of EMNLP},
  year = {2016},
}"""


class _LocalInfo(tfds.core.DatasetInfo):
    def initialize_from_bucket(self) -> None:
        """Does nothing: tfds would ask its own servers for the set, and leave an empty temporary folder behind."""


class Reqa(tfds.core.GeneratorBasedBuilder):
    """Questions and the pool of sentences that they search: what `reqa.convert` makes of SQuAD, all sentences.

    An example is an article, as `articles.cut` describes it, and not a question or a sentence: tfds has one table of
    features for all splits, so either would leave columns of the other empty; and it takes about as long to read an
    article as ten single rows, which would make reading slower than the conversion itself.

    `info.metadata` tells of each split its counts and the sha256 of the JSON, unpacked, that it was made from.
    """

    # Raise it whenever the conversion gives something else: what is prepared is not made anew otherwise.
    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES: Mapping[str, str] = {"1.0.0": "First version."}
    BUILDER_CONFIGS = (tfds.core.BuilderConfig(name="squad", description="Out of SQuAD 1.1."),)

    def __init__(self, *, sources: tuple[str, str] | None = None, file_format: str = "array_record", **kwargs):
        """Takes the training and the development file; without them they are downloaded."""
        self._sources = sources
        super().__init__(file_format=file_format, **kwargs)

    @property
    def url_infos(self) -> dict[str, UrlInfo]:
        """What tfds holds downloads against."""
        return {file.url: UrlInfo(file.size, file.sha256, file.url.rpartition("/")[2]) for file in PUBLISHED.values()}

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
            homepage="https://rajpurkar.github.io/SQuAD-explorer/",
            citation=CITATIONS,
            license="CC BY-SA 4.0",
            disable_shuffling=True,
            metadata=tfds.core.MetadataDict(),
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Iterator]:
        paths = dict(zip(PUBLISHED, self._sources, strict=True)) if self._sources else self._download(dl_manager)
        return {split: self._generate_examples(split, path) for split, path in paths.items()}

    def _download(self, manager: tfds.download.DownloadManager) -> dict[str, str]:
        reason = _refusal(PUBLISHED["train"].url)
        if reason is None:
            try:
                paths = manager.download({split: file.url for split, file in PUBLISHED.items()})
                return {split: str(path) for split, path in paths.items()}
            except NonMatchingChecksumError:
                reason = "what came does not have the published sha256"
            except (requests.RequestException, tfds.download.DownloadError) as failure:
                reason = type(failure).__name__
        raise EndxError(
            f"reqa/squad is not prepared in {self.data_dir_root}, and SQuAD can't be downloaded from "
            f"{PUBLISHED['train'].url.rpartition('/')[0]} ({reason}): put {' and '.join(squad.FILES)}, or the same as "
            ".gz, into a folder, and prepare it with `endx prepare reqa/squad --source=FOLDER`, or train on it as it "
            "is with --config.data.path=FOLDER"
        )

    def _generate_examples(self, split: str, path: str) -> Iterator[tuple[int, dict[str, Any]]]:
        conversion, sha256 = reqa.convert(path, "sentences"), digest(path)
        records = conversion.records
        self.info.metadata[split] = {
            "sha256": sha256,
            "published": sha256 == PUBLISHED[split].sha256,
            "questions": len(records.questions),
            "candidates": len(records.candidates),
            "pairs": len(records.pairs),
            "unplaced_answers": conversion.unplaced_answers,
            "unplaced_questions": conversion.unplaced_questions,
        }
        titles = [paragraph.article for paragraph in squad.paragraphs(path)]
        # The id of a candidate, `sP.S`, counts the paragraphs of the file.
        homes = [titles[int(name[1:].partition(".")[0])] for name in records.candidate_ids]
        yield from enumerate(articles.cut(records, homes))


def digest(path: str) -> str:
    """sha256 of a text file, unpacked: the same for `.json` and `.json.gz`."""
    found = hashlib.sha256()
    for _, line in files.lines(path):
        found.update(line.encode())
    return found.hexdigest()


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
