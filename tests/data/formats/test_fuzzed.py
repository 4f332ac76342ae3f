import io
import json
import pathlib

import pytest
from fuzzing import damaged_bytes, damaged_json, damaged_json_lines, fuzzed, only_user_errors
from hypothesis import given
from hypothesis import strategies as st

from endx_jax.cli.questions import read_questions
from endx_jax.data import read, reqa
from endx_jax.data.formats import read_corpus, registry
from endx_jax.data.formats.answer_strings import read_answered

PASSAGES = [{"title": "T", "text": "a passage", "psg_id": "7", "docid": "7"}]
ROWS = [{"question": "q1", "answer": "a", "negative": ["b", "c"]}, {"query": "q2", "positive": "b", "id": 2, "x": 1.5}]
CONTEXT = "Cats sat. [PAR] Dogs ran. <P> Birds sang."
MRQA = {
    "context": CONTEXT,
    "qas": [{"qid": "b1", "question": "who", "detected_answers": [{"text": "Cats", "char_spans": [[0, 3]]}]}],
}
SQUAD = {"qas": [{"id": 1, "question": "q", "answers": [{"text": "Cats", "answer_start": 0}], "is_impossible": False}]}
NQ = {
    "example_id": 5,
    "question_text": "who",
    "document_url": "https://en.wikipedia.org/w/index.php?title=Cat&amp;x=1",
    "document_text": "<P> Cats sat ( down ) </P>",
    "annotations": [
        {"long_answer": {"start_token": 0, "end_token": 7}, "short_answers": [{"start_token": 1, "end_token": 2}]}
    ],
}
FULL_NQ = {
    **{key: value for key, value in NQ.items() if key != "document_text"},
    "document_html": "<P>Cats sat</P>",
    "document_tokens": [
        {"token": token, "html_token": token[0] == "<", "start_byte": start, "end_byte": start + len(token)}
        for token, start in (("<P>", 0), ("Cats", 3), ("sat", 8), ("</P>", 11))
    ],
    "annotations": [
        {"long_answer": {"start_token": 0, "end_token": 4}, "short_answers": [{"start_token": 1, "end_token": 2}]}
    ],
}
HEADER = "query-id\tcorpus-id\tscore"


def lines(*rows) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


# Files of each format, of which one is damaged, by their names in a folder. A folder of one file is read as that file.
FORMATS: dict[str, dict[str, bytes]] = {
    "csv": {"x.csv": b'question,answer,negative\nq1,"a, b\n""c""",d\nq2,b,\n'},
    "tsv": {"x.tsv": b"anchor\tpositive\nq1\ta\nq2\tb\n"},
    "jsonl": {"x.jsonl": lines(*ROWS)},
    "list": {"x.json": json.dumps(ROWS, indent=1).encode()},
    "squad": {"x.json": json.dumps({"data": [{"title": "T", "paragraphs": [{"context": CONTEXT, **SQUAD}]}]}).encode()},
    "mrqa": {"x.jsonl": lines({"header": {"dataset": "x"}}, MRQA)},
    "nq": {"x.jsonl": lines(NQ)},
    "full-nq": {"x.jsonl": lines(FULL_NQ)},
    "dpr": {"x.json": json.dumps([{"question": "q", "positive_ctxs": PASSAGES, "hard_negative_ctxs": []}]).encode()},
    "tevatron": {
        "x.jsonl": lines({"query_id": "1", "query": "q", "positive_passages": PASSAGES, "negative_passages": []})
    },
    "flag": {"x.jsonl": lines({"query": "q", "pos": ["a"], "neg": ["b"], "pos_scores": [1.0], "neg_scores": [0.5]})},
    "answers": {"x.jsonl": lines({"question": "q", "answer": ["a", "b"]})},
    "dpr-answers": {"x.csv": b"who wrote it\t['A', \"B's\\u00e9\"]\n"},
    "text": {"x.txt": b"one\n two\n\nthree"},
    "ids": {"x.tsv": b"1\tone\n2\ttwo\n"},
    "questions": {"x.jsonl": lines({"text": "q1", "_id": "a"}, {"question": "q2", "id": 7})},
    "documents": {"x.jsonl": lines({"_id": 7, "text": "a", "title": "T", "metadata": {"url": "u"}}, {"text": "b"})},
    "beir": {
        "corpus.jsonl": lines({"_id": "d1", "title": "T", "text": "a"}, {"_id": "d2", "text": "b"}),
        "queries.jsonl": lines({"_id": "q1", "text": "q", "metadata": {"group": "g"}}),
        "qrels/test.tsv": f"{HEADER}\nq1\td1\t1\n".encode(),
        "negatives/test.tsv": f"{HEADER}\trank\nq1\td2\t0.5\t1\n".encode(),
    },
    "msmarco": {"collection.tsv": b"7\tone\n8\ttwo\n", "queries.dev.tsv": b"1\tq\n", "qrels.dev.tsv": b"1\t0\t7\t1\n"},
    "multireqa": {
        "candidates.jsonl": lines({"candidate_id": "SQuAD_b1/_0", "response_start": 0, "response_end": 9}),
        "mrqa.jsonl": lines(MRQA),
    },
}


def arrow_files() -> dict[str, dict[str, bytes]]:
    """Tables of every kind, where pyarrow is at hand."""
    try:
        import pyarrow as pa
        from pyarrow import feather, parquet
    except ImportError:
        return {}
    table = pa.Table.from_pylist([{"question": "q", "answer": "a", "negative": ["b"], "n": 1}] * 3)
    written: dict[str, io.BytesIO] = {"x.parquet": io.BytesIO(), "x.feather": io.BytesIO(), "x.arrow": io.BytesIO()}
    parquet.write_table(table, written["x.parquet"])
    feather.write_feather(table, written["x.feather"], compression="uncompressed")
    with pa.ipc.new_stream(written["x.arrow"], table.schema) as writer:
        writer.write_table(table)
    found = {name: {name: stream.getvalue()} for name, stream in written.items()}
    state = json.dumps({"_data_files": [{"filename": "data.arrow"}]}).encode()
    return found | {"save_to_disk": {"state.json": state, "data.arrow": written["x.arrow"].getvalue()}}


FORMATS |= arrow_files()


def damaged(name: str, contents: bytes) -> st.SearchStrategy[bytes]:
    if name.endswith(".json"):
        return damaged_json(contents)
    return damaged_json_lines(contents) if name.endswith(".jsonl") else damaged_bytes(contents)


def everything(path: str) -> None:
    """Reads a path in every way that takes one; each may refuse it."""

    def corpus() -> None:
        for document in read_corpus(path):
            json.dumps([document.id, document.text, dict(document.metadata)], ensure_ascii=False).encode()

    readers = [
        lambda: read(path),
        lambda: read(path, whole=False, skip_invalid=True),
        lambda: list(registry.open_data(path).paragraphs()),
        lambda: reqa.from_squad(path),
        corpus,
        lambda: read_answered(path),
    ]
    if pathlib.Path(path).is_dir():
        if (pathlib.Path(path) / "qrels").is_dir() or (pathlib.Path(path) / "collection.tsv").is_file():
            readers.append(lambda: registry.open_data(path).judgements())
    else:
        readers.append(lambda: read_questions(path))
    for reader in readers:
        with only_user_errors():
            reader()


@pytest.mark.parametrize("name", FORMATS)
def test_a_damaged_file_is_read_or_refused_in_one_line(tmp_path, name):
    parts = FORMATS[name]
    for part, contents in parts.items():
        (tmp_path / part).parent.mkdir(exist_ok=True)
        (tmp_path / part).write_bytes(contents)
    is_folder = len(parts) > 1
    everything(str(tmp_path if is_folder else tmp_path / next(iter(parts))))

    @fuzzed
    @given(changed=st.sampled_from([*parts]).flatmap(lambda part: st.tuples(st.just(part), damaged(part, parts[part]))))
    def check(changed):
        part, contents = changed
        (tmp_path / part).write_bytes(contents)
        try:
            everything(str(tmp_path if is_folder else tmp_path / part))
        finally:
            (tmp_path / part).write_bytes(parts[part])

    check()
