"""Tables of Arrow, held against JSONL of the same rows."""

import json
import time

import pytest
from helpers import written
from refusals import check_refusal

from endx_jax.data import read
from endx_jax.data.formats import folders, read_corpus, row_files
from endx_jax.data.formats.text_files import ARROW_ENDINGS
from endx_jax.data.sets.documents import Document

pa = pytest.importorskip("pyarrow")
feather = pytest.importorskip("pyarrow.feather")
parquet = pytest.importorskip("pyarrow.parquet")

ROWS = [{"Question": f"q{n // 2}", "answer": f"a{n}", "negative": [f"a{n + 1}"]} for n in range(200)]
FILES = ([{"filename": "../x.arrow"}], [{"filename": "x" * 1001}], [])


def write(path, rows, schema=None, **columns):
    table = pa.Table.from_pylist(rows, schema)
    for name, values in columns.items():
        table = table.append_column(name, values)
    if path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=70)
    elif path.suffix == ".feather":
        feather.write_feather(table, path)
    else:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=30)
    return path


def save_to_disk(folder, rows, shards=2):
    """Writes a folder as `datasets.Dataset.save_to_disk` does."""
    folder.mkdir(parents=True)
    names = [f"data-{n:05}-of-{shards:05}.arrow" for n in range(shards)]
    size = -(-len(rows) // shards)
    for n, name in enumerate(names):
        write(folder / name, rows[n * size : (n + 1) * size])
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    return folder


def expected(tmp_path):
    return read(written(tmp_path / "expected.jsonl", ROWS))


@pytest.mark.parametrize("ending", ARROW_ENDINGS)
def test_files_read_as_lines_do(tmp_path, ending, caplog):
    assert read(write(tmp_path / f"x{ending}", ROWS, image=pa.array([b"\xff"] * 200))) == expected(tmp_path)
    assert caplog.text.count("not read, such as bytes: 'image'") == 1


@pytest.mark.parametrize("ending", ARROW_ENDINGS)
def test_dates_times_and_decimals_are_texts(tmp_path, ending):
    values = {
        "day": pa.array([20_787], pa.date32()),
        "time": pa.array([3_661_000], pa.time32("ms")),
        "seen": pa.array([86_400_000], pa.timestamp("ms", "Europe/Berlin")),
        "price": pa.array([1], pa.int8()).cast(pa.decimal128(5, 2)),
    }
    (found,) = read_corpus(write(tmp_path / f"x{ending}", [{"text": "one"}], **values))
    seen = {"day": "2026-11-30", "time": "01:01:01.000", "seen": "1970-01-02 00:00:00.000", "price": "1.00"}
    assert found.metadata == seen


def test_folders_of_save_to_disk(tmp_path):
    assert read(save_to_disk(tmp_path / "one", ROWS)) == expected(tmp_path)
    save_to_disk(tmp_path / "several" / "train", ROWS)
    save_to_disk(tmp_path / "several" / "test", [{"question": "q", "answer": "a"}])
    (tmp_path / "several" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert read(tmp_path / "several", split="train") == expected(tmp_path)
    assert read(tmp_path / "several", split="test").questions == ("q",)
    check_refusal(lambda: read(tmp_path / "several", split="dev"), "'dev'", "choose with split from train")


@pytest.mark.reference
def test_folders_written_by_datasets_are_read(tmp_path):
    import datasets

    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved", num_shards=3)
    assert read(tmp_path / "saved") == expected(tmp_path)


@pytest.mark.parametrize("ending", ARROW_ENDINGS)
def test_empty_shards_have_columns(tmp_path, ending):
    (tmp_path / "shards").mkdir()
    write(tmp_path / "shards" / f"part-0{ending}", [], pa.Table.from_pylist(ROWS).schema)
    write(tmp_path / "shards" / f"part-1{ending}", ROWS)
    assert read(tmp_path / "shards") == expected(tmp_path)


def test_files_of_no_split_are_left_out_beside_splits(tmp_path, caplog):
    (tmp_path / "a" / "b").mkdir(parents=True)
    for name in ("train-0", "test-0", "notes", "a/b/test-1"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"question": name, "answer": "a"}))
    (tmp_path / "a" / "circle").symlink_to(tmp_path)
    assert folders.table_files(str(tmp_path), "test") == [f"{tmp_path}/a/b/test-1.jsonl", f"{tmp_path}/test-0.jsonl"]
    assert read(tmp_path, split="test").questions == ("a/b/test-1", "test-0")
    assert f"1, such as {tmp_path}/notes.jsonl; to read all of them, give the pattern {tmp_path}/*.jsonl" in caplog.text


def test_corpora_and_training_files_of_other_tools_are_read(tmp_path):
    rows = [{"id": 7, "text": "one", "title": "T"}, {"id": 8, "text": "two", "title": None}]
    for path in (write(tmp_path / "x.parquet", rows), save_to_disk(tmp_path / "saved", rows)):
        assert list(read_corpus(path)) == [Document("7", "T one", {"title": "T"}), Document("8", "two")]
    rows = [{"query": "q", "pos": ["a"], "neg": ["b"]}]
    assert read(write(tmp_path / "x.parquet", rows)).candidates == ("a", "b")


def test_a_column_that_is_there_twice_is_refused(tmp_path):
    parquet.write_table(pa.table([["q"], ["a"], ["b"]], ["question", "answer", "answer"]), tmp_path / "two.parquet")
    check_refusal(lambda: read(tmp_path / "two.parquet"), "two.parquet", "two columns", "'question', 'answer'")


@pytest.mark.parametrize("ending", ARROW_ENDINGS)
def test_rows_are_numbered_through_all_batches_and_parts(tmp_path, ending):
    rows = [*ROWS[:170], {"Question": "q", "answer": "", "negative": []}, *ROWS[171:]]
    path = write(tmp_path / f"x{ending}", rows)
    check_refusal(lambda: read(path), f"x{ending}", "row 171", "'answer'")
    parts = row_files.file_parts(str(path), None, 70)
    assert [part.before for part in parts] == ([0, 70, 140] if ending == ".parquet" else [0])
    places = [where for part in parts for _, where, _ in row_files.read_rows(str(path), part=part)]
    assert places == [f"{path}, row {n + 1}" for n in range(200)]


def test_tables_of_many_columns_are_read_in_linear_time_or_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(row_files, "MOST_COLUMNS", 4_000)
    names = [f"c{n}" for n in range(3_998)]
    path = write(tmp_path / "x.parquet", [dict.fromkeys(names, 1) | {"question": "q", "answer": "a"}])
    began = time.process_time()
    assert read(path).candidates == ("a",)
    assert time.process_time() - began < 1.5  # 0.2 s; with a list of names for each column 3 s
    monkeypatch.setattr(row_files, "MOST_COLUMNS", 3_999)
    check_refusal(lambda: read(path), "x.parquet", "4,000 columns", "over 3,999")


@pytest.mark.parametrize("ending", ARROW_ENDINGS)
def test_broken_files_are_refused(tmp_path, ending):
    path = write(tmp_path / f"x{ending}", ROWS)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    check_refusal(lambda: read(path), f"x{ending} can't be read")


@pytest.mark.parametrize("state", [*(json.dumps({"_data_files": files}) for files in FILES), "[]", "{}"])
def test_broken_folders_are_refused(tmp_path, state):
    folder = save_to_disk(tmp_path / "x", ROWS)
    (folder / "state.json").write_text(state)
    check_refusal(lambda: read(folder), "state.json")
