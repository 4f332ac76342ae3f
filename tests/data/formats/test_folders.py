import os

import pytest

from endx_jax.data.formats import folders


@pytest.fixture
def tree(tmp_path, monkeypatch):
    for name in ("a/1.md", "b/2.md", "b/node_modules/x.md", ".h/3.md", "~$l.docx", "c/part.csv/0.csv"):
        (tmp_path / "r" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "r" / name).touch()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "4.md").touch()
    links = {
        "a/tob": "../b",
        "up": "..",
        "aa": "a",
        "zz": "../out",
        "0.md": "a/1.md",
        "loop": "loop",
        "gone.csv": "nothing",
    }
    for name, target in links.items():
        os.symlink(target, tmp_path / "r" / name)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("path", "base", "found"),
    [
        ("r", "r", "a/1.md b/2.md c/part.csv/0.csv gone.csv loop zz/4.md"),
        ("r/*", "r", "a/1.md b/2.md c/part.csv/0.csv gone.csv loop zz/4.md"),
        ("r/*.md", "r", "0.md"),
        ("r/**/*.md", "r", "a/1.md b/2.md zz/4.md"),
        ("r/**/b/[0-9].md", "r", "b/2.md"),
        ("*/**/2.md", ".", "r/b/2.md"),
        ("r/c/*.csv", "r/c", "part.csv/0.csv"),
        ("r/.h/*", "r/.h", "3.md"),
        ("r/0.md", "r", "0.md"),
        ("r/~$l.docx", "r", "~$l.docx"),
        ("out/*", "out", "4.md"),
        ("*/4.md", ".", "out/4.md"),
        ("r/*.pdf", "r", ""),
        ("none", ".", ""),
    ],
)
def test_files_at_a_path_are_listed_once(tree, path, base, found):
    assert folders.base(path) == base
    assert [os.path.relpath(name, base) for name in folders.files_at(path)] == found.split()


def test_endings_are_counted_without_folders(tree):
    assert folders.endings_in("r") == "3 .md, 2 .csv, 1 without an ending"
