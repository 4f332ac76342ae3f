import json

import pytest
from helpers import written
from small_squad import article, asked

from endx_jax.data import read, reqa
from endx_jax.data.formats import read_corpus, squad
from endx_jax.data.sets.paragraphs import AnswerSpan, Question

KEYS = ("text", "answer_start")


def example() -> dict:
    paragraphs = (
        ("A first. ", asked("i1", "What?", 0), asked("i2", " Who? ", 0)),
        ("A second.", asked("i3", "What?", 0)),
    )
    return {"data": [article("One", *paragraphs), article("Two", ("A first.", asked("i4", "Why?", 0)))]}


def write(folder, tree, name="x.json"):
    return written(folder / name, tree if isinstance(tree, str) else json.dumps(tree))


def test_equal_questions_and_equal_paragraphs_are_merged(tmp_path):
    records = read(write(tmp_path, example()))
    assert (records.questions, records.question_ids) == (("What?", "Who?", "Why?"), ("i1", "i2", "i4"))
    assert (records.candidates, records.candidate_ids) == (("A first.", "A second."), ("p0", "p1"))
    assert records.qrels == ((0, 1), (0,), (0,))
    first, second, third = squad.squad_paragraphs(str(write(tmp_path, example())))
    assert (first.context, first.questions[1]) == ("A first. ", Question("i2", " Who? ", (AnswerSpan("A", 0),)))
    assert (second.context, third.context) == ("A second.", "A first.")


def test_an_impossible_question_is_left_out_and_its_paragraph_kept(tmp_path):
    tree = example()
    paragraph = tree["data"][0]["paragraphs"][1]
    paragraph["qas"] = [{"id": "i3", "question": "What else?", "answers": [], "is_impossible": True}]
    of_quac = [{"text": "CANNOTANSWER", "answer_start": 0}]
    paragraph["qas"].append({"id": "i6", "question": "Else?", "answers": of_quac})
    paragraph["qas"].append({**asked("i5", "And?", 0), "is_impossible": False})
    records = read(write(tmp_path, tree))
    assert records.questions == ("What?", "Who?", "And?", "Why?")
    assert records.candidates == ("A first.", "A second.")
    paragraph["qas"].pop()
    assert read(write(tmp_path, tree)).candidates == ("A first.", "A second.")


def test_invalid_questions_can_be_skipped_and_ids_may_be_whole_numbers(tmp_path, caplog):
    tree = example()
    tree["data"][0]["paragraphs"][0]["qas"][1]["id"] = 262
    assert read(write(tmp_path, tree)).question_ids[1] == "262"
    tree = example()
    tree["data"][0]["paragraphs"][0]["qas"][1]["answers"][0]["text"] = ""
    path = write(tmp_path, tree)
    assert "Who?" not in read(path, skip_invalid=True).questions
    reason = f"{path}: data[0].paragraphs[0].qas[1].answers[0]: 'text' is empty"
    assert caplog.messages == [f"{path}: skipped 1 invalid row, the first: {reason}"]


def rows_of(tree: dict, listed: bool = False) -> list[dict]:
    """Returns the questions of a tree as rows, whose answers are a list of objects or an object of lists."""
    return [
        {**item, "title": part["title"], "context": paragraph["context"]}
        | ({} if listed else {"answers": {key: [answer[key] for answer in item["answers"]] for key in KEYS}})
        for part in tree["data"]
        for paragraph in part["paragraphs"]
        for item in paragraph["qas"]
    ]


@pytest.mark.parametrize("listed", [False, True])
def test_rows_of_questions_are_read_as_the_file_of_their_paragraphs(tmp_path, listed):
    rows = rows_of(example(), listed)
    assert read(written(tmp_path / "rows.jsonl", rows)) == read(write(tmp_path, example()))
    rows[1]["answers"] = [] if listed else {"text": [], "answer_start": []}
    del rows[3]["title"], rows[3]["id"]
    first, second, third = squad.squad_rows(str(written(tmp_path / "rows.jsonl", rows)))
    assert (first.article, first.context, second.context) == ("One", "A first. ", "A second.")
    assert first.questions == (Question("i1", "What?", (AnswerSpan("A", 0),)), Question("i2", " Who? ", ()))
    assert (third.article, third.questions[0].id) == ("row 3", "3")
    rows[0]["answers"] = [{"text": "A", "answer_start": "0"}]  # as in TQuAD
    assert next(squad.squad_rows(str(written(tmp_path / "rows.jsonl", rows)))) == first
    rows[0]["answers"] = rows[1]["answers"]
    assert read(written(tmp_path / "rows.jsonl", rows)).question_ids == ("i3", "3")


def test_rows_of_a_split_are_found_in_a_folder(tmp_path):
    for name, part in (("train", rows_of(example())[:1]), ("validation", rows_of(example())[1:])):
        written(tmp_path / f"{name}-00000-of-00001.parquet", part)
    assert read(tmp_path, split="validation").question_ids == ("i2", "i3", "i4")
    assert [document.text for document in read_corpus(tmp_path, split="train")] == ["A first."]
    assert len(reqa.convert(tmp_path, split="validation").records.questions) == 3


def test_broken_rows_can_be_skipped(tmp_path):
    rows = rows_of(example())
    rows[1]["answers"] = "A"
    assert read(written(tmp_path / "rows.jsonl", rows), skip_invalid=True).question_ids == ("i1", "i4")


def test_the_real_development_set_has_its_published_counts(test_data):
    path = test_data / "data" / "squad" / "dev-v1.1.json.gz"
    paragraphs = list(squad.squad_paragraphs(str(path)))
    questions = [question.text for paragraph in paragraphs for question in paragraph.questions]
    assert (len(paragraphs), len(questions), len(set(questions))) == (2067, 10570, 10539)
    records = read(path)
    # Six of the unique strings differ from another one only in white space at the ends.
    assert len(records.questions) == len({text.strip() for text in questions}) == 10533
    assert (len(records.candidates), len(set(records.question_ids))) == (2067, 10533)
