import pytest
from helpers import written
from refusals import check_refusal

from endx_jax import json_files
from endx_jax.data.formats import read, read_corpus
from endx_jax.index.index import Index
from endx_jax.pretrained.static import read_word_vectors
from endx_jax.pretrained.stored import open_file


@pytest.mark.parametrize(
    ("contents", "named"),
    [
        ('{"a": 1', "f, column 8: broken JSON"),
        ('{"a":\n 1', "f, line 2, column 3: broken JSON"),
        ("", "f, column 1: broken JSON"),
        (b'"\xff"', "f, byte 2: 0xff is not UTF-8"),
        ("[" * 100_000, "f: the JSON is nested too deeply"),
        ("9" * 5_000, "4,300 digits"),
        ("[]", "an object, not a list"),
        ("null", "an object, not null"),
    ],
)
def test_json_that_is_not_an_object_is_refused_in_one_line(contents, named):
    check_refusal(lambda: json_files.parse(contents, "f", dict), named)


def test_a_file_is_read_up_to_its_limit(tmp_path):
    file = written(tmp_path / "x.json", '{"a": 1}')
    assert json_files.read_json_file(file, most_bytes=8) == {"a": 1}
    check_refusal(lambda: json_files.read_json_file(file, most_bytes=7), "x.json", "7 bytes")
    check_refusal(lambda: json_files.read_json_file(tmp_path / "none.json"), "none.json", "No such file")
    check_refusal(lambda: json_files.read_json_file(tmp_path), "can't be read")
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
@pytest.mark.parametrize(("contents", "found"), [(POINTER, "a Git LFS pointer"), (PAGE, "a web page")])
def test_a_file_that_a_download_left_in_place_of_another_is_named(tmp_path, name, reader, contents, found):
    file = written(tmp_path / name, contents)
    check_refusal(lambda: reader(file), name, found)


def test_a_text_that_begins_with_a_tag_is_no_web_page(tmp_path):
    for n, text in enumerate(("<head> tag meaning", "<html> or <xhtml>", "<!doctype html> explained")):
        (tmp_path / f"{n}.txt").write_text(text)
        assert next(read_corpus(tmp_path / f"{n}.txt")).text == text
