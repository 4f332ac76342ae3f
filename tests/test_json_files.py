import pytest
from helpers import refused, written

from endx_jax import json_files
from endx_jax.data.formats import read, read_corpus
from endx_jax.errors import EndxError
from endx_jax.index.index import Index
from endx_jax.pretrained.static import read_word_vectors
from endx_jax.pretrained.stored import open_file


@pytest.mark.parametrize(
    ("contents", "reason"),
    [
        ('{"a": 1', "f, column 8: broken JSON: Expecting ',' delimiter"),
        ('{"a":\n 1', "f, line 2, column 3: broken JSON: Expecting ',' delimiter"),
        ("", "f, column 1: broken JSON: Expecting value"),
        (b'"\xff"', "f, byte 2: 0xff is not UTF-8"),
        ("[" * 100_000, "f: the JSON is nested too deeply"),
        ("9" * 5_000, "f: a whole number has more than 4,300 digits"),
        ("[]", "f must be an object, not a list"),
        ("null", "f must be an object, not null"),
    ],
)
def test_json_that_is_not_an_object_is_refused_in_one_line(contents, reason):
    with pytest.raises(EndxError) as refused:
        json_files.parse(contents, "f", dict)
    assert str(refused.value) == reason


def test_a_file_is_read_up_to_its_limit(tmp_path):
    file = written(tmp_path / "x.json", '{"a": 1}')
    assert json_files.read_json_file(file, most_bytes=8) == {"a": 1}
    refused(r"x\.json is larger than 7 bytes", json_files.read_json_file, file, most_bytes=7)
    refused(r"none\.json can't be read: No such file", json_files.read_json_file, tmp_path / "none.json")
    refused("can't be read: Is a directory", json_files.read_json_file, tmp_path)
    assert json_files.read_optional(tmp_path / "none.json") == {}


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0a1b\nsize 133466304\n"
PAGE = "\n<!DOCTYPE html>\n<html lang=en><head><title>Sign in</title></head></html>\n"


@pytest.mark.parametrize(
    ("name", "reader"),
    [
        *((f"x{ending}", read) for ending in (".csv", ".tsv", ".json", ".jsonl", ".jsonl.gz", ".parquet", ".arrow")),
        ("x.txt", lambda path: list(read_corpus(path))),
        ("glove.txt", read_word_vectors),
        ("config.json", json_files.read_json_file),
        ("model.safetensors", open_file),
        ("index.sqlite", Index),
    ],
)
@pytest.mark.parametrize(("contents", "found"), [(POINTER, "a Git LFS pointer.*: run git lfs"), (PAGE, "a web page")])
def test_a_file_that_a_download_left_in_place_of_another_is_named(tmp_path, name, reader, contents, found):
    file = written(tmp_path / name, contents)
    refused(rf"{name} is {found}", reader, file)


def test_a_text_that_begins_with_a_tag_is_no_web_page(tmp_path):
    for n, text in enumerate(("<head> tag meaning", "<html> or <xhtml>", "<!doctype html> explained")):
        (tmp_path / f"{n}.txt").write_text(text)
        assert next(read_corpus(tmp_path / f"{n}.txt")).text == text
