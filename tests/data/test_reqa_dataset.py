import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from helpers import one_line_error
from small_squad import write_squad

from endx_jax.data import articles, reqa, reqa_builder
from endx_jax.data.readers.squad import FILES
from endx_jax.data.reqa_dataset import SPLITS, prepare, read, summary


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> pathlib.Path:
    return write_squad(tmp_path_factory.mktemp("squad"))


@pytest.fixture
def data(tmp_path, source) -> pathlib.Path:
    """A data directory with the small set prepared."""
    prepare(source=source, data_dir=tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def no_conversion(monkeypatch):
    def refuse(*_):
        raise AssertionError("converted again")

    return lambda: monkeypatch.setattr(reqa, "convert", refuse)


def test_what_is_read_is_what_was_converted(data, source):
    for split, name in zip(SPLITS, FILES, strict=True):
        assert read("squad", split, data_dir=data) == reqa.from_squad(source / name, "sentences")


def test_it_is_where_tfds_keeps_things_and_tfds_can_read_it(data):
    tfds = pytest.importorskip("tensorflow_datasets")
    assert (data / "reqa" / "squad" / "1.0.0" / "features.json").is_file()
    rows = tfds.data_source("reqa/squad", split="validation", data_dir=data)
    assert [row["title"] for row in rows] == [b"Bees", b"Ants"]
    assert rows[1]["questions"]["text"] == [b"who walks?"]


def test_its_counts_and_what_was_left_out_are_kept(data):
    train, validation = summary("squad", data_dir=data).values()
    # Candidates: 3 of Cats, 1 more of Dogs, none more of Birds, 2 of Fish; pairs: "who barks?" has two.
    assert (train["questions"], train["candidates"], train["pairs"]) == (4, 6, 5)
    assert (validation["questions"], validation["candidates"], validation["pairs"]) == (2, 3, 2)
    assert (validation["unplaced_answers"], validation["unplaced_questions"]) == (1, 1)
    assert not train["published"]


def test_progress_is_shown_where_it_is_wanted(source, tmp_path, capfd):
    prepare(source=source, data_dir=tmp_path / "quiet")
    assert capfd.readouterr() == ("", "")
    prepare(source=source, data_dir=tmp_path / "shown", progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "Generating train examples" in err


def test_a_second_time_nothing_is_converted(data, source, no_conversion):
    no_conversion()
    folder = data / "reqa" / "squad" / "1.0.0"
    assert prepare(data_dir=data) == prepare(source=source, data_dir=data) == folder


def test_a_source_that_was_packed_is_the_same_source(data, tmp_path, no_conversion):
    no_conversion()
    prepare(source=write_squad(tmp_path / "packed", packed=True), data_dir=data)


def test_another_source_than_was_prepared_is_refused(data, tmp_path):
    other = write_squad(tmp_path / "other")
    (other / FILES[1]).write_text((other / FILES[1]).read_text().replace("Bees", "Wasps"))
    with one_line_error(r"1\.0\.0 was made from another file than .*dev-v1\.1\.json \(sha256 .*--data-dir=DIR"):
        prepare(source=other, data_dir=data)


@pytest.mark.parametrize("damage", [lambda text: text[:-20], lambda text: text.replace('"context"', '"content"', 1)])
def test_a_damaged_source_is_refused_by_name_and_leaves_nothing(source, tmp_path, damage):
    folder = shutil.copytree(source, tmp_path / "damaged")
    (folder / FILES[1]).write_text(damage((folder / FILES[1]).read_text()))
    with one_line_error(r"dev-v1\.1\.json"):
        prepare(source=folder, data_dir=tmp_path / "data")
    assert not any((tmp_path / "data" / "reqa" / "squad").iterdir())


def test_an_interrupted_preparation_is_never_taken_for_whole(source, tmp_path, monkeypatch):
    def interrupted(*_):
        yield from list(whole(*_))[:1]
        raise KeyboardInterrupt

    whole = articles.cut
    monkeypatch.setattr(articles, "cut", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepare(source=source, data_dir=tmp_path / "data")
    assert not any((tmp_path / "data" / "reqa" / "squad").iterdir())
    monkeypatch.setattr(articles, "cut", whole)
    prepare(source=source, data_dir=tmp_path / "data")
    assert len(read("squad", "train", data_dir=tmp_path / "data").questions) == 4


def test_of_two_that_prepare_at_once_both_find_it_whole(source, tmp_path, monkeypatch):
    def overtaken(*arguments):
        monkeypatch.setattr(articles, "cut", whole)
        prepare(source=source, data_dir=tmp_path / "data")
        return whole(*arguments)

    whole = articles.cut
    monkeypatch.setattr(articles, "cut", overtaken)
    prepare(source=source, data_dir=tmp_path / "data")
    assert [file.name for file in (tmp_path / "data" / "reqa" / "squad").iterdir()] == ["1.0.0"]
    assert len(read("squad", "train", data_dir=tmp_path / "data").questions) == 4


def test_a_folder_that_is_not_whole_is_refused(data, source):
    (data / "reqa" / "squad" / "1.0.0" / "dataset_info.json").unlink()
    with one_line_error(r"1\.0\.0 is there but is no whole data set; remove the folder"):
        prepare(source=source, data_dir=data)


def test_damaged_records_are_refused(data):
    (records,) = (data / "reqa" / "squad" / "1.0.0").glob("reqa-train.array_record*")
    # Past the header of the file: within the first article.
    contents = bytearray(records.read_bytes())
    contents[200] ^= 4
    records.write_bytes(contents)
    with one_line_error(r"1\.0\.0 is damaged \(.*hash mismatch.*\); remove the folder and prepare it again"):
        read("squad", "train", data_dir=data)


def test_a_data_directory_that_cannot_be_written_is_refused(source, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with one_line_error(r"can't write .*/file/reqa/squad/1\.0\.0: "):
        prepare(source=source, data_dir=tmp_path / "file")


def test_unknown_names_are_answered_with_the_known_ones(tmp_path):
    with one_line_error("the config of reqa is 'squid', which is none of squad; did you mean 'squad'"):
        prepare("squid", data_dir=tmp_path)
    with one_line_error("the split of reqa/squad is 'test', which is none of train, validation"):
        read("squad", "test", data_dir=tmp_path)


def test_the_splits_are_those_that_are_published():
    assert tuple(reqa_builder.PUBLISHED) == SPLITS


def test_importing_costs_nothing():
    heavy = ("tensorflow", "tensorflow_datasets", "grain")
    program = f"import endx_jax.data.reqa_dataset, sys; print([name for name in {heavy} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "[]"


def test_tensorflow_is_never_asked_for(source, tmp_path):
    (tmp_path / "traps").mkdir()
    (tmp_path / "traps" / "tensorflow.py").write_text("raise AssertionError('TensorFlow was imported')")
    program = (
        "from endx_jax.data.reqa_dataset import read, prepare\n"
        f"prepare(source={str(source)!r}); print(len(read('squad', 'train').questions))"
    )
    paths = [str(tmp_path / "traps"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "TFDS_DATA_DIR": str(tmp_path / "data")}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert (run.stdout, run.stderr, run.returncode) == ("4\n", "", 0)
    assert (tmp_path / "data" / "reqa").is_dir()


@pytest.mark.slow
def test_the_counts_of_squad(test_data, tmp_path):
    prepare(source=test_data / "data" / "squad", data_dir=tmp_path)
    counts = {
        split: (len(found.questions), len(found.candidates), len(found.pairs))
        for split in SPLITS
        for found in [read("squad", split, data_dir=tmp_path)]
    }
    # As tests/data/test_reqa.py counts the files.
    assert counts == {"train": (87355, 91617, 87446), "validation": (10539, 10246, 11388)}
    told = summary("squad", data_dir=tmp_path)
    assert {split: (t["questions"], t["candidates"], t["pairs"]) for split, t in told.items()} == counts
    assert read("squad", "validation", data_dir=tmp_path) == reqa.from_squad(
        test_data / "data" / "squad" / "dev-v1.1.json.gz", "sentences"
    )
