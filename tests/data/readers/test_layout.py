import gzip
import json

import pytest

from endx_jax.data import read
from endx_jax.data.readers.layout import layout
from endx_jax.errors import EndxError

PASSAGES = {"positive_ctxs": [], "hard_negative_ctxs": []}


@pytest.mark.parametrize("packed", ["", ".gz"])
@pytest.mark.parametrize(
    ("ending", "text", "found"),
    [
        (".json", '{"version": "1.1", "data": []}', "squad"),
        (".json", "\n [\n" + json.dumps({"question": "q", **PASSAGES}) + "]", "dpr"),
        (".jsonl", '\n{"header": {"dataset": "HotpotQA"}}\n', "mrqa"),
        (".jsonl", '{"id": "", "context": "c", "qas": []}', "mrqa"),
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
        (".csv", "question,answer\nq,[a]\n", "columns"),
    ],
)
def test_what_is_in_a_file_decides(tmp_path, ending, text, found, packed):
    path = tmp_path / f"any{ending}{packed}"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    assert layout(str(path)) == found


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("collection.tsv", "msmarco"),
        ("collection.tsv.gz", "msmarco"),
        ("candidates.json.gz", "multireqa"),
        ("x", "beir"),
    ],
)
def test_what_is_in_a_folder_decides(tmp_path, name, found):
    (tmp_path / name).touch()
    assert layout(str(tmp_path)) == found


def test_questions_without_passages_are_sent_where_they_can_be_used(tmp_path):
    path = tmp_path / "nq.jsonl"
    path.write_text('{"question": "q", "answer": ["a"]}')
    with pytest.raises(EndxError, match="and no passages: rank an encoded corpus for them with `endx evaluate --index"):
        read(path)
