import json
import os

import pytest
import small_squad
from helpers import written
from refusals import check_refusal

from endx_jax.data import read, reqa
from endx_jax.data.formats import folders, read_corpus


def test_a_folder_of_json_or_yaml_files_is_read(tmp_path):
    for ending in ("yml", "json"):  # JSON goes before YAML
        for name in ("a", "b"):
            written(tmp_path / f"{name}.{ending}", json.dumps([{"question": f"q{name}", "answer": name}]))
        assert read(tmp_path).questions == ("qa", "qb")
    written(tmp_path / "dataset_infos.json", "{}")
    assert read(tmp_path).questions == read(f"{tmp_path}/[ab].json").questions == ("qa", "qb")
    written(tmp_path / "c.jsonl", '{"question": "qc", "answer": "c"}')
    assert read(tmp_path).questions == ("qc",)


def test_squad_is_read_from_folders_and_patterns(tmp_path):
    (small_squad.write_squad(tmp_path) / "train-v1.1.json").rename(tmp_path / "train-0.json")
    (tmp_path / "dev-v1.1.json").rename(tmp_path / "dev-0.json")
    for split in ("train", "dev"):
        expected = read(tmp_path / f"{split}-0.json")
        assert read(tmp_path, split=split) == expected
        assert [d.text for d in read_corpus(tmp_path, split=split)] == [*expected.candidates]
    both = reqa.convert([tmp_path / "dev-0.json", tmp_path / "train-0.json"], "sentences")
    assert reqa.convert(f"{tmp_path}/*.json", "sentences") == both
    check_refusal(lambda: read(tmp_path), "choose one with split")
    untitled = small_squad.article("", ("A first.", small_squad.asked("i1", "What?", 0)))
    written(tmp_path / "train-0.json", json.dumps({"data": [untitled]}))
    written(tmp_path / "train-1.json", json.dumps({"data": [untitled]}).replace("i1", "i2").replace("What", "Who"))
    assert read(tmp_path, split="train").groups == ("article 0", "article 1")


@pytest.mark.parametrize("name", ["c.xlsx", "a.json", "pipe.csv"])
def test_files_of_other_types_are_named(tmp_path, caplog, name):
    for part in ("b.csv", ".hidden.csv", "~$b.csv", "node_modules/d.csv"):
        (tmp_path / part).parent.mkdir(exist_ok=True)
        (tmp_path / part).write_text("question,answer\nq,a\n")
    (tmp_path / "README.md").touch()
    (os.mkfifo if name.startswith("pipe") else os.mknod)(tmp_path / name)
    assert len(read(tmp_path).pairs) == 1
    assert caplog.messages == [f"{tmp_path}: files of other types are left out: 1, such as {tmp_path}/{name}"]
    os.symlink("nothing", tmp_path / "gone.csv")
    check_refusal(lambda: read(tmp_path), "gone.csv", "no such file")


def test_tables_of_several_folders_are_not_joined_in_silence(tmp_path, caplog):
    for name in ("pair", "more/pair"):
        (tmp_path / name).mkdir(parents=True)
        written(tmp_path / name / "train.csv", f"anchor,positive\nq {name},a\n")
    assert len(read(tmp_path / "pair").questions) == len(read(f"{tmp_path}/*/*.csv").questions) == 1
    assert not caplog.text
    assert len(read(tmp_path).questions) == 2
    (line,) = caplog.messages
    assert line.endswith(f"are read as one table: 2, such as {tmp_path}/more/pair, {tmp_path}/pair; name one of them")


@pytest.mark.parametrize(
    ("names", "splits", "warned"),
    [
        ("Test.csv Train.csv", ["test", "train"], ""),
        ("data/Dev/0.csv data/Train/0.csv", ["dev", "train"], ""),
        ("faq_test.csv faq_train.csv", ["test", "train"], ""),
        ("WikiQA-dev.tsv WikiQA-test-0.tsv WikiQA-train.tsv", ["dev", "test", "train"], ""),
        ("test-bank/faq_dev.csv test-bank/faq_train.csv", ["dev", "train"], ""),
        ("how_to_build.csv how_to_test.csv", [""], "how_to_test.csv"),
        ("test/how_to.csv train/how_to_test.csv", ["test", "train"], ""),
        ("about_testing.csv about_training.csv", [""], ""),
    ],
)
def test_splits_are_words_of_the_names_in_any_case(tmp_path, caplog, names, splits, warned):
    for name in names.split():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = folders.files_by_split(str(tmp_path))
    files = [f"{tmp_path}/{name}" for name in names.split()]
    assert found == (dict(zip(splits, ([file] for file in files), strict=True)) if all(splits) else {"": files})
    assert [warned in line for line in caplog.messages] == [True] * bool(warned)
