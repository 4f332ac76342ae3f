"""Boundaries and contexts that are written here, laid out as MultiReQA's and MRQA's."""

import gzip
import json
import pathlib

import pytest
from helpers import written
from small_mrqa import HEADER, asked, line

from endx_jax.data.formats import registry, squad
from endx_jax.data.reqa import convert
from endx_jax.data.sets.paragraphs import split_sentences

SEARCH = "[DOC] [TLE] Ann Lee - Songs [PAR] Ann sang; Ann wrote. More by Ann ... [DOC] [TLE] Nobody"
ENDING = ("Ann wrote.", "More by Ann ... [DOC]")
SQUAD = "Bees fly. They sting, e.g. cows. No: wasps do"


def bounds(dataset: str, context: str, names: list[str], *sentences: str) -> list[dict]:
    """Where each sentence first stands in the context."""
    places = [(context.index(sentence), len(sentence)) for sentence in sentences]
    return [
        {"candidate_id": f"{dataset}_{'/'.join(names)}/_{n}", "response_start": at, "response_end": at + length}
        for n, (at, length) in enumerate(places)
    ]


def write(folder: pathlib.Path, candidates: list[dict], *contexts: dict) -> str:
    folder.mkdir(exist_ok=True)
    lines = "".join(json.dumps(row) + "\n" for row in candidates)
    (folder / "candidates.json.gz").write_bytes(gzip.compress(lines.encode()))
    written(folder / "SearchQA.jsonl", [HEADER, *contexts])
    return str(folder)


@pytest.fixture
def folder(tmp_path) -> str:
    """Two contexts; the second's boundaries come first, as the order of the files need not agree."""
    candidates = bounds("SQuAD", SQUAD, ["b1", "b2"], "Bees fly.", "They sting, e.g. cows. No:", "wasps do")
    marked = ("[DOC] [TLE] ", "[TLE] Ann Lee - Songs", "[PAR] Ann sang; ")
    candidates += bounds("SearchQA", SEARCH, ["a1"], *marked, *ENDING)
    first = asked("b1", "what do they do?", SQUAD, ("fly. They sting", "fly. They"), ("cows",))
    return write(
        tmp_path,
        candidates,
        line(SEARCH, asked("a1", "singer", SEARCH, ("Ann", "Ann Lee", "Ann sang", "Ann wrote", "Ann ..."))),
        line(SQUAD, first, asked("b2", "who?", SQUAD, ("Bees",))),
        line("Unknown to MultiReQA.", asked("c1", "what?", "Unknown to MultiReQA.", ("Unknown",))),
    )


def test_the_sentences_are_those_of_the_boundaries_without_marks(folder):
    assert registry.open_data(folder).format.name == "multireqa"
    search, squad = registry.open_data(folder).paragraphs()
    sentences = [search.context[start:end] for start, end in search.sentences]
    assert sentences == ["Ann Lee - Songs", "Ann sang;", "Ann wrote.", "More by Ann ..."]
    # ReQA's rules would cut before "No" and not after its colon.
    sentences = [squad.context[start:end] for start, end in squad.sentences]
    assert sentences == ["Bees fly.", "They sting, e.g. cows. No:", "wasps do"]


def test_right_is_every_sentence_in_which_a_span_starts(folder):
    records = convert(folder, "sentences").records
    rows = zip(records.questions, records.qrels, strict=True)
    right = {question: [records.candidates[n] for n in row] for question, row in rows}
    assert right == {
        "singer": ["Ann Lee - Songs", "Ann sang;", "Ann wrote.", "More by Ann ..."],
        "what do they do?": ["Bees fly.", "They sting, e.g. cows. No:"],
        "who?": ["Bees fly."],
    }
    assert len(records.candidates) == 7


@pytest.mark.slow
def test_squad_with_reqas_own_sentences_as_boundaries_is_what_its_own_reader_gives(test_data, tmp_path):
    """All of the development file, white space and all; 10,250 is the size of the index that ReQA's README prints."""
    source = str(test_data / "data" / "squad" / "dev-v1.1.json.gz")
    found = squad.squad_paragraphs(source)
    candidates, contexts = [], []
    for paragraph in found:
        names = "/".join(question.id for question in paragraph.questions)
        for n, (start, end) in enumerate(split_sentences(paragraph.context)):
            name = f"SQuAD_{names}/_{n}"
            candidates.append({"candidate_id": name, "response_start": start, "response_end": end})
        detected = [
            [{"text": a.text, "char_spans": [[a.start, a.start]], "token_spans": [[0, 0]]} for a in question.answers]
            for question in paragraph.questions
        ]
        rows = zip(paragraph.questions, detected, strict=True)
        questions = [{"qid": q.id, "question": q.text, "detected_answers": a} for q, a in rows]
        contexts.append(line(paragraph.context, *questions))
    assert len(candidates) == 10250
    joined = convert(write(tmp_path / "joined", candidates, *contexts), "sentences")
    plain = convert(source, "sentences")
    for name in ("questions", "candidates", "qrels", "question_ids", "candidate_ids", "hard_negatives"):
        assert getattr(joined.records, name) == getattr(plain.records, name)
    assert joined.rows == plain.rows
