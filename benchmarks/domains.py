"""Pairs of many domains, from public repositories, in forms that endx reads.

`python benchmarks/domains.py REPOSITORIES FOLDER`

REPOSITORIES has a checkout of each repository of `DOMAINS`, as `git clone URL` makes it; SQuAD's official files and
those of other publishers lie there in a folder of their name. Writes FOLDER/NAME.jsonl for each domain that is there,
one pair a line with `question` and `answer`, and prints its counts. Equal pairs count once. Nothing of the texts is
part of this project: their licences are those of their publishers.

`half` was written down before any recipe was tried: recipes are chosen on `choose` and reported on `report`. SQuAD,
PolicyQA and MedQuAD had been looked at before.
"""

import argparse
import csv
import dataclasses
import gzip
import html
import io
import json
import pathlib
import re
import statistics
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator

Pairs = Iterator[tuple[str, str]]
UNANSWERED = "ANSWERNOTFOUND"
# SQuAD has a train file of 87,599 questions; every N-th paragraph leaves about 2,000.
EVERY_PARAGRAPH = 43


def squad(*names: str, every: int = 1) -> Callable[[pathlib.Path], Pairs]:
    """Returns a reader of files in SQuAD's form, each also as NAME.gz: each question with its paragraph."""

    def read(folder: pathlib.Path) -> Pairs:
        number = 0
        for name in names:
            file = folder / name
            content = file.read_bytes() if file.exists() else gzip.decompress((folder / f"{name}.gz").read_bytes())
            for article in json.loads(content)["data"]:
                for paragraph in article["paragraphs"]:
                    number += 1
                    if number % every == 0:
                        yield from ((one["question"], paragraph["context"]) for one in paragraph["qas"])

    return read


def medquad(folder: pathlib.Path) -> Pairs:
    """Reads the pages of health institutes; some sets have had their answers removed by the publisher."""
    for file in sorted(folder.glob("*_QA*/*.xml")):
        for pair in ElementTree.parse(file).iter("QAPair"):
            yield pair.findtext("Question") or "", pair.findtext("Answer") or ""


def pubmedqa(folder: pathlib.Path) -> Pairs:
    """Reads titles that are questions, with the conclusion of the abstract."""
    for article in json.loads((folder / "data" / "ori_pqal.json").read_text()).values():
        yield article["QUESTION"], article["LONG_ANSWER"]


def cosqa(folder: pathlib.Path) -> Pairs:
    """Reads web searches with the Python function that people judged to answer them."""
    for pair in json.loads((folder / "data" / "qa" / "cosqa-dev.json").read_text()):
        if pair["label"] == 1:
            yield pair["doc"], pair["code"]
    functions = json.loads((folder / "data" / "search" / "code_idx_map.txt").read_text())
    by_number = {number: function for function, number in functions.items()}
    for part in ("dev", "test"):
        for search in json.loads((folder / "data" / "search" / f"cosqa-retrieval-{part}-500.json").read_text()):
            yield search["doc"], by_number[search["retrieval_idx"]]


def covid_faq(folder: pathlib.Path) -> Pairs:
    """Reads the English questions and answers of health authorities."""
    text = (folder / "data" / "faqs" / "faq_200327.tsv").read_text()
    for row in csv.DictReader(io.StringIO(text), delimiter="\t"):
        if row["lang"] == "en":
            yield row["question"] or "", row["answer"] or ""


def covid_qa(folder: pathlib.Path) -> Pairs:
    """Reads questions about papers, with the passage that annotators marked."""
    data = json.loads((folder / "data" / "question-answering" / "200423_covidQA.json").read_text())["data"]
    for paper in data:
        for paragraph in paper["paragraphs"]:
            for question in paragraph["qas"]:
                yield from ((question["question"], answer["text"]) for answer in question["answers"])


def subjqa(folder: pathlib.Path) -> Pairs:
    """Reads questions about products, with the span of a review that answers them."""
    for file in sorted((folder / "SubjQA").glob("*/splits/*.csv")):
        for row in csv.DictReader(io.StringIO(file.read_text())):
            if UNANSWERED not in row["human_ans_spans"]:
                yield row["question"], row["human_ans_spans"]


def stack_faq(folder: pathlib.Path) -> Pairs:
    """Reads threads of Stack Exchange: the question and its ten rephrasings, with the best answer."""
    for thread in json.loads((folder / "data" / "StackFAQ" / "stackExchange-FAQ.json").read_text())["root"]["qapair"]:
        answers = thread.get("answer") or []
        answer = answers if isinstance(answers, str) else next(iter(answers), "")
        rephrased = thread.get("rephr") or []
        rephrased = [rephrased] if isinstance(rephrased, str) else rephrased
        for question in (thread["question"], *rephrased):
            if question and question != "*":
                yield question, html.unescape(re.sub(r"<[^>]+>", " ", answer))


@dataclasses.dataclass(frozen=True)
class Domain:
    """Domain of questions and answers.

    Attributes:
      folder: folder of its checkout or files in REPOSITORIES.
      source: address of the repository or publisher.
      half: `choose` or `report`.
      read: reader of the checkout.
      language: language of the texts.
    """

    folder: str
    source: str
    half: str
    read: Callable[[pathlib.Path], Pairs]
    language: str = "english"


DOMAINS = {
    "squad": Domain(
        "squad", "rajpurkar.github.io/SQuAD-explorer", "choose", squad("train-v1.1.json", every=EVERY_PARAGRAPH)
    ),
    "policyqa": Domain(
        "PolicyQA", "github.com/wasiahmad/PolicyQA", "choose", squad("data/dev.json", "data/test.json", every=4)
    ),
    "medquad": Domain("MedQuAD", "github.com/abachaa/MedQuAD", "choose", medquad),
    "stack_faq": Domain("BERT-FAQ", "github.com/ML-Recipes/BERT-FAQ", "choose", stack_faq),
    "covid_faq": Domain("COVID-QA", "github.com/deepset-ai/COVID-QA", "choose", covid_faq),
    "squad_it": Domain(
        "squad-it", "github.com/crux82/squad-it", "choose", squad("SQuAD_it-test.json"), language="italian"
    ),
    "pubmedqa": Domain("pubmedqa", "github.com/pubmedqa/pubmedqa", "report", pubmedqa),
    "cosqa": Domain("CoCLR", "github.com/Jun-jie-Huang/CoCLR", "report", cosqa),
    "covid_qa": Domain("COVID-QA", "github.com/deepset-ai/COVID-QA", "report", covid_qa),
    "subjqa": Domain("SubjQA", "github.com/megagonlabs/SubjQA", "report", subjqa),
    "cmrc2018": Domain(
        "cmrc2018", "github.com/ymcui/cmrc2018", "report", squad("squad-style-data/cmrc2018_dev.json"), "chinese"
    ),
    "squad_es": Domain(
        "TranslateAlignRetrieve",
        "github.com/ccasimiro88/TranslateAlignRetrieve",
        "report",
        squad("SQuAD-es-v1.1/dev-v1.1-es_small.json"),
        language="spanish",
    ),
}


def convert(domain: Domain, repositories: pathlib.Path) -> list[tuple[str, str]]:
    """Returns the pairs of a domain, each once, without empty texts."""
    pairs = ((question.strip(), answer.strip()) for question, answer in domain.read(repositories / domain.folder))
    return list(dict.fromkeys(pair for pair in pairs if all(pair)))


def main() -> None:
    """Converts the domains whose repository is there, and prints their counts."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("repositories", type=pathlib.Path, help="folder of the checkouts")
    options.add_argument("folder", type=pathlib.Path, help="folder for the pairs")
    chosen = options.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    print("| domain | half | language | pairs | questions | answers | characters of an answer, median |")
    print("|---|---|---|---|---|---|---|")
    for name, domain in DOMAINS.items():
        if not (chosen.repositories / domain.folder).is_dir():
            print(f"| {name} | {domain.half} | {domain.language} | missing: {domain.source} | | | |")
            continue
        pairs = convert(domain, chosen.repositories)
        rows = (json.dumps({"question": question, "answer": answer}, ensure_ascii=False) for question, answer in pairs)
        (chosen.folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
        questions, answers = map(set, zip(*pairs, strict=True))
        characters = statistics.median(map(len, answers))
        counts = f"{len(pairs):,} | {len(questions):,} | {len(answers):,} | {characters:.0f}"
        print(f"| {name} | {domain.half} | {domain.language} | {counts} |")


if __name__ == "__main__":
    main()
