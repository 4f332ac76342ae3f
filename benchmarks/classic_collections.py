"""Classic test collections, from public repositories, as a suite of BEIR folders.

`python benchmarks/classic_collections.py REPOSITORIES FOLDER`, then `endx evaluate --model=NAME --data=FOLDER`

REPOSITORIES has a checkout of each repository of `COLLECTIONS`, as `git clone URL` makes it. Writes FOLDER/NAME with
documents, questions and judgements of each collection that is there, and prints its counts. Documents without a text
stay out, and so do questions without a relevant document. Nothing of the texts is part of this project.
"""

import argparse
import csv
import dataclasses
import itertools
import json
import pathlib
import re
from collections.abc import Callable, Iterator

Texts = dict[str, str]
Judgements = Iterator[tuple[str, str, int]]


def marked(file: pathlib.Path, fields: str) -> Texts:
    """Reads a file of SMART's form: `.I ID` begins an entry, and a line such as `.W` begins a field.

    Args:
      file: the file.
      fields: letters of the fields that make the text, in their order in the file.
    """
    texts = {}
    for entry in re.split(r"^\.I ", file.read_text(errors="replace"), flags=re.MULTILINE)[1:]:
        number, *parts = re.split(r"^\.([A-Z])[ \t]*$", entry, flags=re.MULTILINE)
        found = [text for name, text in zip(parts[::2], parts[1::2], strict=True) if name in fields]
        texts[str(int(number))] = " ".join(" ".join(found).split())
    return texts


def cranfield(folder: pathlib.Path) -> tuple[Texts, Texts, Judgements]:
    """Reads papers on aerodynamics. Codes 1 (a complete answer) to 4 (least interest) become grades 4 to 1.

    A paper's text repeats its title. Judgements number the questions from 1 in the order of their file.
    """
    data = folder / "data" / "cran"
    questions = marked(data / "cran.qry", "W").values()
    numbered = {str(number): text for number, text in enumerate(questions, 1)}
    codes = (line.split() for line in (data / "cranqrel").read_text().splitlines())
    judged = ((question, document, 5 - int(code)) for question, document, code in codes if 1 <= int(code) <= 4)
    return marked(data / "cran.all.1400", "W"), numbered, judged


def smart(documents: str, questions: str, judgements: str, *, document: int) -> Callable:
    """Returns a reader of files in SMART's form with judgements of one grade, whose column `document` has the id."""

    def read(folder: pathlib.Path) -> tuple[Texts, Texts, Judgements]:
        rows = (line.split() for line in (folder / judgements).read_text().splitlines())
        judged = ((str(int(row[0])), str(int(row[document])), 1) for row in rows if row)
        return marked(folder / documents, "TW"), marked(folder / questions, "W"), judged

    return read


def npl(folder: pathlib.Path) -> tuple[Texts, Texts, Judgements]:
    """Reads abstracts on electronics: a number, then lines up to a slash."""

    def entries(name: str) -> Texts:
        parts = re.split(r"^\s*/\s*$", (folder / "npl" / name).read_text(errors="replace"), flags=re.MULTILINE)
        words = (part.split() for part in parts)
        return {number: " ".join(text).lower() for number, *text in filter(None, words)}

    relevant = entries("rlv-ass")
    judged = ((question, document, 1) for question, found in relevant.items() for document in found.split())
    return entries("doc-text"), entries("query-text"), judged


@dataclasses.dataclass(frozen=True)
class Collection:
    """A test collection.

    Attributes:
      source: repository at github.com; its folder in REPOSITORIES has its last name.
      read: reader of the checkout, which returns documents, questions and judgements.
    """

    source: str
    read: Callable[[pathlib.Path], tuple[Texts, Texts, Judgements]]


COLLECTIONS = {
    "cranfield": Collection("valinsogna/IR_BIM_model", cranfield),
    "cisi": Collection(
        "ronancummins/gen_polya",
        smart("data/cisi/CISI.ALL", "data/cisi/CISI.QRY", "data/cisi/CISI.REL", document=1),
    ),
    "medline": Collection(
        "ronancummins/gen_polya",
        smart("data/med/MED.ALL", "data/med/MED.QRY", "data/med/MED.REL", document=2),
    ),
    "cacm": Collection(
        "c00kiemon5ter/LuceneEval",
        smart("data/cacm/cacm.all", "data/cacm/query.text", "data/cacm/qrels.text", document=1),
    ),
    "npl": Collection("stefreschke/Information-Retrieval", npl),
}


def write(collection: Collection, repositories: pathlib.Path, folder: pathlib.Path) -> str:
    """Writes a BEIR folder; returns its counts in words."""
    documents, questions, judged = collection.read(repositories / collection.source.partition("/")[2])
    documents = {name: text for name, text in documents.items() if text}
    kept = [row for row in judged if row[0] in questions and row[1] in documents]
    asked = {question for question, _, _ in kept}
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    for file, texts in (("corpus", documents), ("queries", questions)):
        rows = ({"_id": name, "text": text} for name, text in texts.items() if file == "corpus" or name in asked)
        (folder / f"{file}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with open(folder / "qrels" / "test.tsv", "w", newline="") as file:
        csv.writer(file, delimiter="\t").writerows(itertools.chain([("query-id", "corpus-id", "score")], kept))
    return f"{len(documents):,} documents, {len(asked):,} questions, {len(kept):,} judgements"


def main() -> None:
    """Writes all collections whose repositories are there."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("repositories", type=pathlib.Path, help="folder of checkouts")
    options.add_argument("folder", type=pathlib.Path, help="folder of the suite")
    chosen = options.parse_args()
    for name, collection in COLLECTIONS.items():
        if not (chosen.repositories / collection.source.partition("/")[2]).is_dir():
            print(f"{name}: git clone https://github.com/{collection.source} into {chosen.repositories}")
            continue
        print(f"{name}: {write(collection, chosen.repositories, chosen.folder / name)}")


if __name__ == "__main__":
    main()
