"""What the prepared sets are made from: which files, under which names, how they are read."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

from endx_jax.data import published
from endx_jax.data.paragraphs import Paragraph
from endx_jax.data.published import Published
from endx_jax.data.readers import mrqa, multireqa, natural_questions, squad

SPLITS = ("train", "validation")

MRQA_PAPER = "Fisch et al. 2019, MRQA 2019 Shared Task: Evaluating Generalization in Reading Comprehension"
UNSTATED = "none is stated for the files; the terms of those whose texts they hold apply"


@dataclasses.dataclass(frozen=True)
class Origin:
    """The files of a set.

    Attributes:
      title: what they are called.
      homepage: where they are described.
      paper: on the data.
      licence: theirs.
      names: for each of `SPLITS` the files, as `folders.find` finds them in a folder.
      published: gives for each of `SPLITS` the files that are downloaded.
      read: makes paragraphs of the files of a split, in the order of `names`.
    """

    title: str
    homepage: str
    paper: str
    licence: str
    names: tuple[tuple[str, ...], tuple[str, ...]]
    published: Callable[[], tuple[tuple[Published, ...], tuple[Published, ...]]]
    read: Callable[[Sequence[str]], Iterator[Paragraph]]


def _each(reader: Callable[[str], Iterable[Paragraph]]) -> Callable[[Sequence[str]], Iterator[Paragraph]]:
    """Reads files one after another."""
    return lambda paths: itertools.chain.from_iterable(map(reader, paths))


def _mrqa(name: str, paper: str) -> Origin:
    train, dev = f"train/{name}", f"dev/{name}"
    return Origin(
        title=f"MRQA's {name}",
        homepage="https://github.com/mrqa/MRQA-Shared-Task-2019",
        paper=f"{paper}; {MRQA_PAPER}",
        licence=UNSTATED,
        names=((f"{train}.jsonl",), (f"{dev}.jsonl",)),
        published=lambda: ((published.MRQA[train],), (published.MRQA[dev],)),
        read=_each(mrqa.paragraphs),
    )


def _multireqa(name: str, texts: str = "") -> Origin:
    def names(split: str) -> tuple[str, ...]:
        return f"{split}/{name}/candidates.json", f"{split}/{texts or name}.jsonl"

    def files(split: str) -> tuple[Published, ...]:
        return published.MULTIREQA[f"{split}/{name}"], published.MRQA[f"{split}/{texts or name}"]

    return Origin(
        title=f"MultiReQA's {name}",
        homepage="https://github.com/google-research-datasets/MultiReQA",
        paper=f"Guo et al. 2021, MultiReQA: A Cross-Domain Evaluation for Retrieval Question Answering; {MRQA_PAPER}",
        licence=UNSTATED,
        names=(names("train"), names("dev")),
        published=lambda: (files("train"), files("dev")),
        read=lambda paths: multireqa.join(paths[0], paths[1:]),
    )


ORIGINS: dict[str, Origin] = {
    "reqa/squad": Origin(
        title="SQuAD",
        homepage="https://rajpurkar.github.io/SQuAD-explorer/",
        paper="Rajpurkar et al. 2016, SQuAD: 100,000+ Questions for Machine Comprehension of Text",
        licence="CC BY-SA 4.0",
        names=((squad.FILES[0],), (squad.FILES[1],)),
        published=lambda: ((published.SQUAD["train-v1.1"],), (published.SQUAD["dev-v1.1"],)),
        read=_each(squad.paragraphs),
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
        published=lambda: (published.natural_questions("train"), published.natural_questions("dev")),
        read=_each(natural_questions.paragraphs),
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
