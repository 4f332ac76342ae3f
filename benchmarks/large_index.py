"""An index of a million documents: `python benchmarks/large_index.py --data=SQUAD_FOLDER --folder=FOLDER`.

The documents are the sentences of SQuAD's paragraphs, and the same sentences with their words in random order, until
there are enough. The first `--encoded` of them are encoded; the others have the embeddings of these with the dimensions
rotated, which have unit norm too. The index is kept in the folder, and a later call uses it.

Each figure is of processes of their own: `encode` the rate of encoding; `first` the seconds from the start of a process
that loads the model to its first answer, with memory; `anew` the same without caches beside the index; `rate` questions
per second, one at a time, in a process that has answered some; `change` the seconds to add and delete documents, and of
the next answer. The median of `--repeats`. Prints a table and, with --json=FILE, writes it with the machine and the
versions.
"""

import argparse
import functools
import itertools
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

import common
import numpy as np

import endx_jax
from endx_jax.data import reqa
from endx_jax.data.formats import squad
from endx_jax.data.sets.documents import Document
from endx_jax.index.corpus_encoding import begin_index, encode_missing
from endx_jax.index.index_file import IndexInfo, metric_of

MODES = ("dense", "bm25", "hybrid")
PARTS = ("make", "encode", "anew", "first", "rate", "change")
TEXTS = 2048  # that `encode` encodes
FILE = "large.sqlite"


def documents(sentences: Sequence[str], count: int, seed: int) -> Iterator[Document]:
    """Yields the sentences, then the same with their words in random order."""
    draw = np.random.default_rng(seed)
    for n in range(count):
        words = sentences[n % len(sentences)].split()
        text = " ".join(words) if n < len(sentences) else " ".join(draw.permutation(words))
        yield Document(f"d{n}", text, {"copy": n // len(sentences)})


def make(options: argparse.Namespace, path: pathlib.Path) -> list[dict]:
    """Makes the index; returns the size of its file and the rate of writing."""
    records = reqa.from_squad(squad.files_of(options.data)[0], "sentences")
    (path.parent / "questions.json").write_text(json.dumps(records.questions[:: len(records.questions) // 500][:500]))
    sentences, model = records.candidates, endx_jax.load(options.model)
    vectors = model.encode_document([*sentences[: options.encoded]])
    corpus = {"path": "SQuAD", "documents": options.documents, "sha256": f"{options.seed} {options.documents}"}
    about = {"metric": metric_of(cosine=model.cosine), "model": model.description, "corpus": corpus}
    info = IndexInfo(vectors.shape[1], options.precision, complete=False, **about)
    position = begin_index(path, info)

    def encode(texts: Sequence[str]) -> np.ndarray:
        nonlocal position
        rows = np.arange(position, position + len(texts))
        position += len(texts)
        columns = (np.arange(info.width) + rows[:, None] // len(vectors)) % info.width
        return vectors[rows[:, None] % len(vectors), columns]

    started = time.monotonic()
    for _ in encode_missing(path, info, documents(sentences, options.documents, options.seed), encode):
        pass
    rate = options.documents / (time.monotonic() - started)
    return [{"what": "index, GB", "value": path.stat().st_size / 1e9}, {"what": "written, documents/s", "value": rate}]


def memory() -> dict[str, float]:
    """Returns private, mapped and peak memory of this process in MB."""
    values = common.memory()
    return {"private MB": values["RssAnon"], "mapped MB": values["RssFile"], "peak MB": values["VmHWM"]}


def encode(path: pathlib.Path, mode: str, questions: Sequence[str], started: float) -> dict[str, float]:
    """Encodes the first documents of the index, after a compilation."""
    index = endx_jax.open_index(path)
    texts = [document.text for document in index.snapshot.documents(range(TEXTS)).values()]
    index.encoder.encode_document(texts)
    started = time.monotonic()
    index.encoder.encode_document(texts)
    return {"encoding, texts/s": len(texts) / (time.monotonic() - started)}


def first(path: pathlib.Path, mode: str, questions: Sequence[str], started: float) -> dict[str, float]:
    """Opens the index and asks one question, in a process of its own."""
    index = endx_jax.open_index(path)
    opened = time.time()
    index.search(questions[0], mode=mode)
    return {"opened, s": opened - started, "first answer, s": time.time() - started, **memory()}


def rate(path: pathlib.Path, mode: str, questions: Sequence[str], started: float) -> dict[str, float]:
    """Asks questions one at a time, whose embeddings are known, for some seconds."""
    index = endx_jax.open_index(path)
    embeddings = [index.encoder.encode_query([question]) for question in questions]  # together they take more memory
    ask = [
        functools.partial(index.search, [q], mode=mode, embeddings=e)
        for q, e in zip(questions, embeddings, strict=True)
    ]
    for one in ask[:20]:
        one()
    started, count = time.monotonic(), 0
    for one in itertools.islice(itertools.cycle(ask[20:]), 1000):
        one()
        count += 1
        if time.monotonic() - started > 5:
            break
    return {"questions/s": count / (time.monotonic() - started), **memory()}


def change(path: pathlib.Path, mode: str, questions: Sequence[str], started: float) -> dict[str, float]:
    """Adds and deletes documents in one process, with an answer after each change."""
    index, vector = endx_jax.open_index(path), np.eye(1, 384, dtype=np.float32)
    ask = functools.partial(index.search, questions[:1], mode=mode, embeddings=vector)
    ask()
    seconds: dict[str, list[float]] = {"add one": [], "delete one": [], "answer after it": []}
    for n in range(6):
        new = [Document(f"new{n}", questions[n])]
        for what, action in (
            ("add one", functools.partial(index.add, new, vector)),
            ("answer after it", ask),
            ("delete one", functools.partial(index.delete, [f"new{n}"])),
            ("answer after it", ask),
        ):
            begin = time.monotonic()
            action()
            seconds[what].append(time.monotonic() - begin)
    return {f"{what}, s": common.median(times) for what, times in seconds.items()} | memory()


PROCESSES = {"encode": encode, "anew": first, "first": first, "rate": rate, "change": change}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with SQuAD's files, for the part `make`")
    parser.add_argument("--folder", type=pathlib.Path, required=True, help="folder of the index")
    parser.add_argument("--model", default="all-MiniLM-L6-v2")
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--encoded", type=int, default=8192, help="documents that are encoded")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--repeats", type=int, default=5, help="processes of each mode")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", help="file of the results")
    parser.add_argument("--process", nargs=3, help=argparse.SUPPRESS)  # part, mode and start of a process of its own
    options = parser.parse_args()
    path = options.folder / FILE
    if options.process:
        part, mode, started = options.process
        questions = json.loads((options.folder / "questions.json").read_text())
        print(json.dumps(PROCESSES[part](path, mode, questions, float(started))))
        return
    rows = []
    if "make" in options.parts:
        options.folder.mkdir(parents=True, exist_ok=True)
        rows += make(options, path)
    for part, mode in itertools.product([part for part in options.parts if part != "make"], options.modes):
        if part == "encode" and mode != options.modes[0]:
            continue
        found = []
        for _ in range(options.repeats):
            for cache in path.parent.glob(f"{FILE}.*") if part == "anew" else ():
                cache.unlink()
            command = [sys.executable, __file__, f"--folder={options.folder}", "--process", part, mode]
            done = subprocess.run([*command, str(time.time())], check=True, stdout=subprocess.PIPE, env=os.environ)
            found.append(json.loads(done.stdout))
        rows += [
            {"what": f"{mode}: {key}", "part": part, "value": common.median([one[key] for one in found])}
            for key in found[0]
        ]
    print(common.table(rows))
    common.write(options.json, vars(options), rows)


if __name__ == "__main__":
    main()
