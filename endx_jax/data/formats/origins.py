"""Data sets of `endx prepare`, such as `reqa/squad` or, with a split, `reqa/squad:validation`.

For each: published URLs, sizes and hashes, file names, and the reader of the files.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

from endx_jax.data.formats import mrqa, natural_questions, squad
from endx_jax.data.sets.paragraphs import Paragraph


@dataclasses.dataclass(frozen=True)
class PublishedFile:
    """Published file, with its size in bytes and sha256."""

    url: str
    size: int
    sha256: str


def _files(base: str, end: str, *rows: tuple[str, int, str]) -> dict[str, PublishedFile]:
    return {name: PublishedFile(f"{base}{name}{end}", size, sha256) for name, size, sha256 in rows}


# As tensorflow-datasets lists them, in datasets/squad/checksums.tsv.
SQUAD = _files(
    "https://rajpurkar.github.io/SQuAD-explorer/dataset/",
    ".json",
    ("train-v1.1", 30_288_272, "3527663986b8295af4f7fcdff1ba1ff3f72d07d61a20f487cb238a6ef92fd955"),
    ("dev-v1.1", 4_854_279, "95aa6a52d5d6a735563366753ca50492a658031da74f301ac5238b03966972c9"),
)

# Version 2 of MRQA 2019. As tensorflow-datasets lists them, in text/mrqa/checksums.tsv of its repository, and Hugging
# Face's datasets, in datasets/mrqa/dataset_infos.json; the two agree.
MRQA = _files(
    "https://s3.us-east-2.amazonaws.com/mrqa/release/v2/",
    ".jsonl.gz",
    ("train/SQuAD", 27_621_835, "b094703b9c6f740cc2dfd70b3201b833553fcec0c8a522f22c2c6ff82ce2cc78"),
    ("train/NewsQA", 56_451_248, "f1ccbf2d259ce1094aacde21a53592894248e5778814205dac94f0b086dbe968"),
    ("train/TriviaQA-web", 356_784_923, "61fad6884370408282ad3ed0b5f25a9e932d9a724b6929ea03ea5344ff0cd3f7"),
    ("train/SearchQA", 641_332_495, "32cda932667b7b65ab3079a8271d4e5726b4b989d0b862b25c77eb03a661b609"),
    ("train/HotpotQA", 107_394_872, "3a94712c073dc9f29d88ac149faa01ef9c7c089f97ee25d9cbac39387550825d"),
    ("train/NaturalQuestionsShort", 116_612_493, "6cdac324664b94b60be3203a077bf361d0bfa68a17af9b71def1186a6958a68c"),
    ("dev/SQuAD", 3_474_262, "5afa4b088adf297fc29374ddf2d44d974b8837380e2554e62edf258fee5c32ee"),
    ("dev/NewsQA", 3_142_984, "66bfb10cab2029bbc7d1afaece20c35fac341b1c179d15b70fde22a207f096ae"),
    ("dev/TriviaQA-web", 44_971_198, "faf8add436de5a5fa81071a4e7190850d7e9a20acc811439e8a127ba8ec25640"),
    ("dev/SearchQA", 92_526_612, "c84d2cc02cac5aa9d576ce1cd22900e9d75fe8a37bc795901c36cae6ef9e5ff0"),
    ("dev/HotpotQA", 10_029_807, "43bb9291525d8b59229ba327b67cca42f0a9c23798c455f6fbe813e9979cca84"),
    ("dev/NaturalQuestionsShort", 10_424_248, "2ba8b2181b520f81b49d62c0e4a23819f33d5dec0e8cf4a623edcda0feb73530"),
)

# As Hugging Face's datasets lists them, in datasets/multi_re_qa/dataset_infos.json.
MULTIREQA = _files(
    "https://github.com/google-research-datasets/MultiReQA/raw/master/data/",
    "/candidates.json.gz",
    ("train/SearchQA", 32_368_716, "adf6fe37aff7929b7be33fb105571b80db89adc3cee2093c8357b678c1b4c76c"),
    ("train/TriviaQA", 19_336_595, "ff43a7ec9243f4c5631ec50fa799f0dfbcf4dec2b4116da3aaacffe0b7fe22ee"),
    ("train/HotpotQA", 5_760_488, "1e19145a13aea9101edaaa3e79f19518b9bf0b1539e1912f5a4bec8c406bcbbc"),
    ("train/SQuAD", 2_685_384, "efdcc6576283194be5ce8cb1cc51ffc15200e8b116479b4eda06b2e4b6b77bd0"),
    ("train/NaturalQuestions", 5_794_887, "dc39392d7a4995024a3d8fc127607e2cdea9081ed17c7c014bb5ffca220474da"),
    ("dev/SearchQA", 4_623_243, "00c361a17babd40b9144a570bbadacba37136b638f0a1f55c49fe58fca1606a9"),
    ("dev/TriviaQA", 2_413_807, "bf2f41e4f85fcdc163a6cb2ad7f1f711c185463ee701b4e29c9da5c19d5da641"),
    ("dev/HotpotQA", 582_901, "f359dde781dc7772d817c81d1f1c28fcdedb8858b4502a7bd7234d1da5e10395"),
    ("dev/SQuAD", 318_262, "dc0fa9e536afa6969212cc5547dced39147ac93e007438464575ef4038dfd512"),
    ("dev/NaturalQuestions", 329_600, "4e9a422272d399206bc20438435fb60d4faddd4dc901db760d97b614cc082dd5"),
)


def natural_questions_files(split: str) -> tuple[PublishedFile, ...]:
    """Returns the full files of Natural Questions 1.0 as listed by tensorflow-datasets: 50 `train`, 5 `dev`, 45 GB.

    The simplified files have no published hash and are not downloaded.
    """
    from tensorflow_datasets.core.download.checksums import load_url_infos
    from tensorflow_datasets.core.utils.resource_utils import tfds_path

    listed = load_url_infos(tfds_path() / "datasets" / "natural_questions" / "checksums.tsv")
    files = (PublishedFile(url, info.size, info.checksum) for url, info in listed.items() if f"/{split}/" in url)
    return tuple(sorted(files, key=lambda file: file.url))


SPLITS = ("train", "validation")

MRQA_PAPER = "Fisch et al. 2019, MRQA 2019 Shared Task: Evaluating Generalization in Reading Comprehension"
UNSTATED = "none is stated for the files; the terms of those whose texts they hold apply"


@dataclasses.dataclass(frozen=True)
class Origin:
    """Source files of a prepared set.

    Attributes:
      title: name of the data.
      homepage: URL of their description.
      paper: citation.
      licence: licence of the files.
      names: for each of `SPLITS` the files, as `folders.find` finds them in a folder.
      published: returns the files to download for each of `SPLITS`.
      read: yields the paragraphs of a split's files, given in the order of `names`.
    """

    title: str
    homepage: str
    paper: str
    licence: str
    names: tuple[tuple[str, ...], tuple[str, ...]]
    published: Callable[[], tuple[tuple[PublishedFile, ...], tuple[PublishedFile, ...]]]
    read: Callable[[Sequence[str]], Iterator[Paragraph]]


def _each(reader: Callable[[str], Iterable[Paragraph]]) -> Callable[[Sequence[str]], Iterator[Paragraph]]:
    """Returns a reader of several files, one after another."""
    return lambda paths: itertools.chain.from_iterable(map(reader, paths))


def _mrqa(name: str, paper: str) -> Origin:
    train, dev = f"train/{name}", f"dev/{name}"
    return Origin(
        title=f"MRQA's {name}",
        homepage="https://github.com/mrqa/MRQA-Shared-Task-2019",
        paper=f"{paper}; {MRQA_PAPER}",
        licence=UNSTATED,
        names=((f"{train}.jsonl",), (f"{dev}.jsonl",)),
        published=lambda: ((MRQA[train],), (MRQA[dev],)),
        read=_each(mrqa.mrqa_paragraphs),
    )


def _multireqa(name: str, texts: str = "") -> Origin:
    def names(split: str) -> tuple[str, ...]:
        return f"{split}/{name}/candidates.json", f"{split}/{texts or name}.jsonl"

    def files(split: str) -> tuple[PublishedFile, ...]:
        return MULTIREQA[f"{split}/{name}"], MRQA[f"{split}/{texts or name}"]

    return Origin(
        title=f"MultiReQA's {name}",
        homepage="https://github.com/google-research-datasets/MultiReQA",
        paper=f"Guo et al. 2021, MultiReQA: A Cross-Domain Evaluation for Retrieval Question Answering; {MRQA_PAPER}",
        licence=UNSTATED,
        names=(names("train"), names("dev")),
        published=lambda: (files("train"), files("dev")),
        read=lambda paths: mrqa.join_multireqa(paths[0], paths[1:]),
    )


ORIGINS: dict[str, Origin] = {
    "reqa/squad": Origin(
        title="SQuAD",
        homepage="https://rajpurkar.github.io/SQuAD-explorer/",
        paper="Rajpurkar et al. 2016, SQuAD: 100,000+ Questions for Machine Comprehension of Text",
        licence="CC BY-SA 4.0",
        names=((squad.FILES[0],), (squad.FILES[1],)),
        published=lambda: ((SQUAD["train-v1.1"],), (SQUAD["dev-v1.1"],)),
        read=_each(squad.squad_paragraphs),
    ),
    "reqa/nq": Origin(
        title="Natural Questions",
        homepage="https://ai.google.com/research/NaturalQuestions",
        paper="Kwiatkowski et al. 2019, Natural Questions: A Benchmark for Question Answering Research",
        licence="CC BY-SA 3.0",
        names=(
            (
                "simplified-nq-train.jsonl|v1.0-simplified_simplified-nq-train.jsonl|nq-train-*.jsonl"
                "|train/nq-train-*.jsonl",
            ),
            ("nq-dev-all.jsonl|v1.0-simplified_nq-dev-all.jsonl|nq-dev-*.jsonl|dev/nq-dev-*.jsonl",),
        ),
        published=lambda: (natural_questions_files("train"), natural_questions_files("dev")),
        read=_each(natural_questions.natural_paragraphs),
    ),
    "reqa/hotpotqa": _mrqa("HotpotQA", "Yang et al. 2018, HotpotQA"),
    "reqa/newsqa": _mrqa("NewsQA", "Trischler et al. 2017, NewsQA: A Machine Comprehension Dataset"),
    "reqa/triviaqa": _mrqa("TriviaQA-web", "Joshi et al. 2017, TriviaQA"),
    "reqa/searchqa": _mrqa("SearchQA", "Dunn et al. 2017, SearchQA"),
    "multireqa/squad": _multireqa("SQuAD"),
    "multireqa/nq": _multireqa("NaturalQuestions", texts="NaturalQuestionsShort"),
    "multireqa/hotpotqa": _multireqa("HotpotQA"),
    "multireqa/triviaqa": _multireqa("TriviaQA", texts="TriviaQA-web"),
    "multireqa/searchqa": _multireqa("SearchQA"),
}


def name_and_split(path: str) -> tuple[str, str]:
    """Returns name and split of a prepared data set such as `reqa/squad:validation`; the default split is `train`."""
    name, _, part = path.partition(":")
    return name, part or "train"
