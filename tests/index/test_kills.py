"""Two processes change and search one index and are killed: each acknowledged change is there, whole, and is found."""

import json
import subprocess
import sys
import time

import numpy as np
import pytest

from endx_jax.data.sets.documents import Document
from endx_jax.index import cache
from endx_jax.index.index import Index, write_index

CHILD = """
import json, sys
import numpy as np
from endx_jax.data.sets.documents import Document, passages_of
from endx_jax.errors import InUse
from endx_jax.index import cache
from endx_jax.index.index import Index

cache.FEWEST, cache.MISSING = 1, 0  # caches are made anew again and again
path, name, version = sys.argv[1], sys.argv[2], int(sys.argv[3])
index = Index(path)
while True:
    version += 1
    one, count = f"{name}{version % 5}", version * 7 % 9
    texts = passages_of(Document(one, "", {"version": version}), [f"text {version}"] * count) if count else []
    try:
        if texts:
            index.add(texts, np.ones((count, 8), "f4"), replace=True)
        else:
            index.delete([one], missing_ok=True)
    except InUse:  # nothing was changed, since the other writer's lock lasted too long
        version -= 1
        continue
    print(json.dumps([one, version]), flush=True)
    if version % 7 == 0:
        index = Index(path)
    index.search("text", 3, mode="hybrid", embeddings=np.ones((1, 8), "f4"))
"""


@pytest.mark.slow  # 30 s
def test_nothing_acknowledged_is_lost_by_kills_of_two_writers(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "FEWEST", 1)
    path = tmp_path / "i"
    about = {"metric": "cosine", "model": {"name": "m", "identity": "1"}}
    write_index(path, np.eye(1, 8, dtype="f4"), [Document("other", "other")], **about)
    draw, writers, begun = np.random.default_rng(0), {}, {"a": 0, "b": 0}  # the version before a writer's first
    acknowledged: dict[str, int] = {}

    def lines(name):
        text = (tmp_path / f"{name}{begun[name]}.txt").read_text()
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def begin(name):
        with open(tmp_path / f"{name}{begun[name]}.txt", "w") as output:
            command = [sys.executable, "-c", CHILD, str(path), name, str(begun[name])]
            writers[name] = subprocess.Popen(command, stdout=output)

    def kill(name):
        while len(lines(name)) < 3:
            assert writers[name].poll() is None
            time.sleep(0.05)
        time.sleep(draw.uniform(0, 0.2))
        writers[name].kill()
        writers[name].wait()
        acknowledged.update(lines(name))
        begun[name] = lines(name)[-1][1] + 1  # which may have been made, and is not made again

    def check(name):
        stored: dict[str, list[Document]] = {}
        index, other = Index(path), "b" if name == "a" else "a"
        for row, document in index.snapshot:
            stored.setdefault(document.id, []).append(document)
            if not document.id.startswith(other):  # which may delete it meanwhile, and then erases its vectors
                assert index.snapshot.vectors(row, row + 1).any()
        own = {id: of[0].text for id, of in stored.items() if id.startswith(name)}
        for id, answers in zip(own, index.search([*own.values()], 99, mode="bm25"), strict=True):
            assert id in [answer.document.id for answer in answers]
        assert "other" in stored
        for number in range(5):
            texts, version = stored.get(f"{name}{number}", []), acknowledged.get(f"{name}{number}", 0)
            possible = {version, begun[name]} if begun[name] % 5 == number else {version}
            found = {one.metadata["version"] for one in texts} | {int(one.text.split()[1]) for one in texts}
            assert found in [{one} if count(one) else set() for one in possible]
            assert len(texts) == sum(map(count, found))
            if begun[name] in found:  # it was made, and its writer was killed before it could say so
                acknowledged[f"{name}{number}"] = begun[name]

    begin("a")
    begin("b")
    try:
        for number in range(10):
            name = "ab"[number % 2]
            kill(name)
            check(name)
            begin(name)
    finally:
        for writer in writers.values():
            writer.kill()
            writer.wait()
    assert len(acknowledged) == 10


def count(version: int) -> int:
    """Number of passages of a version; 0: the document is deleted."""
    return version * 7 % 9
