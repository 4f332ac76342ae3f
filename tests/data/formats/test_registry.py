import gzip
import json

import pytest
from helpers import written
from refusals import check_refusal
from small_mrqa import HEADER, asked, line
from small_squad import write_squad

from endx_jax.data import read, reqa
from endx_jax.data.formats.registry import open_data, path_and_split
from endx_jax.data.sets.paragraphs import whole_paragraphs

PASSAGES = {"positive_ctxs": [], "hard_negative_ctxs": []}


@pytest.mark.parametrize("packed", ["", ".gz"])
@pytest.mark.parametrize(
    ("ending", "text", "found"),
    [
        (".json", '{"version": "1.1", "data": []}', "squad"),
        (".json", '[{"question": "q", "answer": "a"}]', "columns"),
        (".json", '[{"question": "q", "answers": ["a"]}]', "answers"),
        (".json", '[{"query": "q", "pos": ["a"]}]', "flag_embedding"),
        (".jsonl", '{"question": "q {\\" [", "x": {"answers": []}, "answer": "a"}', "columns"),
        (".json", "\n [\n" + json.dumps({"question": "q", **PASSAGES}) + "]", "dpr"),
        (".json", json.dumps([{"question": "q", "answers": [], **PASSAGES}]), "dpr"),
        (".jsonl", '\n{"header": {"dataset": "HotpotQA"}}\n', "mrqa"),
        (".jsonl", '{"id": "", "context": "c", "qas": []}', "mrqa"),
        (".jsonl", '{"id": "0", "header": "Intro", "text": "a chunk"}', "columns"),
        (".jsonl", '{"document_text": "x", "annotations": []}', "natural_questions"),
        (".jsonl", '{"document_tokens": [], "document_html": "", "annotations": []}', "natural_questions"),
        (".jsonl", '{"query_id": "1", "query": "q", "positive_passages": []}', "tevatron"),
        (".jsonl", '{"query": "q", "pos": ["p"]}', "flag_embedding"),
        (".jsonl", '{"question": "q", "answer": ["a"]}', "answers"),
        (".jsonl", '{"question": "q", "answer": "a"}', "columns"),
        (".jsonl", '{"query": "q", "positive": "p", "negative": "n"}', "columns"),
        (".csv", "who wrote it\t['A', \"B's\"]\n", "answers"),
        (".tsv", 'who wrote it\t"[""A""]"\n', "answers"),
        (".tsv", "question\tanswer\nq\t[a]\n", "columns"),
        (".CSV", "question,answer\nq,[a]\n", "columns"),
        (".jsonl", 'broken\n{"query": "q", "pos": ["p"]}', "flag_embedding"),
    ],
)
def test_the_content_of_a_file_decides_its_format(tmp_path, ending, text, found, packed):
    path = written(tmp_path / f"any{ending}{packed}", gzip.compress(text.encode()) if packed else text.encode())
    assert open_data(path).format.name == found


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("collection.tsv", "msmarco"),
        ("collection.tsv.gz", "msmarco"),
        ("candidates.json", "multireqa"),
        ("corpus.jsonl", "beir"),
    ],
)
def test_the_content_of_a_folder_decides_its_format(tmp_path, name, found):
    (tmp_path / name).touch()
    assert open_data(tmp_path).format.name == found


def test_questions_without_passages_are_sent_where_they_can_be_used(tmp_path, caplog):
    (tmp_path / "nq.csv").write_text("q\t['a']\n")
    check_refusal(lambda: read(tmp_path / "nq.csv"), "`endx evaluate --index=FILE --data=...`", "and no passages")
    (tmp_path / "nq.jsonl").write_text('{"question": "q", "answer": ["a"]}')
    assert read(tmp_path / "nq.jsonl").candidates == ("a",)
    assert "each text of a list of answers is a right answer of its question; `endx evaluate --index" in caplog.text


def test_a_folder_of_squad_needs_a_pool_or_a_file(tmp_path):
    folder = write_squad(tmp_path / "squad")
    check_refusal(lambda: read(folder), "SQuAD's", "data.pool")
    (folder / "corpus.jsonl").touch()
    check_refusal(lambda: read(folder), "no qrels", "which is read as BEIR")


def test_files_of_several_formats_are_read_one_after_another(tmp_path):
    context = "Bees fly. They sting."
    rows = [HEADER, line(context, asked("b1", "what?", context, ("sting",)))]
    mrqa_file = written(tmp_path / "bees.jsonl", rows)
    dev = write_squad(tmp_path / "squad") / "dev-v1.1.json"
    parts = [*open_data(dev).paragraphs(), *open_data(mrqa_file).paragraphs()]
    found = whole_paragraphs(parts, "both", merge=False)
    assert found.questions == ("who flies?", "lost?", "who walks?", "what?")
    assert found.candidates == ("Bees fly. They sting.", "Ants walk.")
    # "Bees fly. They sting." of both is one candidate.
    assert found.qrels == ((0,), (0,), (1,), (0,))
    conversion = reqa.convert([dev, mrqa_file], "sentences")
    assert conversion.records.candidates == ("Bees fly.", "They sting.", "Ants walk.")
    assert conversion.articles == ("Bees", "Bees", "Ants")


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("beir/nfcorpus:dev", ("beir/nfcorpus", "dev")),
        ("gs://bucket/nfcorpus:dev", ("gs://bucket/nfcorpus", "dev")),
        ("hf://datasets/o/n@v1/sets:dev", ("hf://datasets/o/n@v1/sets", "dev")),
        ("s3://bucket/nfcorpus", ("s3://bucket/nfcorpus", None)),
        ("reqa/squad:validation", ("reqa/squad:validation", None)),
        ("reqa/other:validation", ("reqa/other", "validation")),
        ("at 10:30.csv", ("at 10:30.csv", None)),
    ],
)
def test_a_path_may_end_in_a_split(path, found, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "at 10:30.csv").touch()
    assert path_and_split(path) == found


def test_a_path_that_begins_as_the_names_of_prepared_sets_is_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_squad(tmp_path / "reqa" / "squadd")
    assert read("reqa/squadd/dev-v1.1.json").questions[:1] == ("who flies?",)
    check_refusal(lambda: read("reqa/sqad"), "reqa/sqad", "no such file or folder")
