"""SQuAD in small, as a folder of its two files and as a server of them."""

import gzip
import hashlib
import json
import pathlib
import threading

import numpy as np
from loopback import Handler, LoopbackServer

from endx_jax.data.formats.squad import FILES


def asked(name: str, text: str, *starts: int, **more) -> dict:
    """A question with an answer at each of `starts`."""
    return {"id": name, "question": text, "answers": [{"text": "A", "answer_start": n} for n in starts], **more}


def article(title: str, *paragraphs: tuple) -> dict:
    """An article of paragraphs, each a context and its questions."""
    return {"title": title, "paragraphs": [{"context": context, "qas": list(qas)} for context, *qas in paragraphs]}


# "They eat." and "who eats?" stand in both; the article "Birds" has no sentence of its own, "Fish" no question.
TRAIN = [
    article(
        "Cats",
        ("Cats sleep. They eat. Mäuse – nicht.", asked("c0", "who sleeps?", 0), asked("c1", "who eats?", 12)),
        ("Nobody asks here. Nothing at all.",),
    ),
    article("Dogs", ("Dogs bark. They eat.", asked("d0", "who barks?", 0, 11), asked("d1", "who eats?", 15))),
    article("Birds", ("They eat.", asked("b0", "¿quién come? ", 0))),
    article("Fish", ("Fish swim. They float.", {"id": "f0", "question": "?", "answers": [], "is_impossible": True})),
]
DEV = [
    article("Bees", ("Bees fly. They sting.", asked("e0", "who flies?", 0), asked("e1", "lost?", 9))),
    article("Ants", ("Ants walk.", asked("a0", "who walks?", 5))),
]


def write_squad(folder: pathlib.Path, *, packed: bool = False) -> pathlib.Path:
    """Writes the two files into `folder`, each `.json`, or `.json.gz` when packed."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, articles in zip(FILES, (TRAIN, DEV), strict=True):
        data = json.dumps({"data": articles}).encode()
        (folder / f"{name}.gz").write_bytes(gzip.compress(data)) if packed else (folder / name).write_bytes(data)
    return folder


def regular(articles: int, first: int = 0) -> str:
    """Articles of two questions on one paragraph of three sentences, the last of which answers nothing."""
    data = []
    for n in range(first, first + articles):
        context = f"Cats number {n}. Dogs number {n}. Nothing of {n}."
        questions = [
            {"id": f"{n}-{k}", "question": f"{animal} {n}?", "answers": [{"text": animal, "answer_start": start}]}
            for k, (animal, start) in enumerate((("Cats", 0), ("Dogs", context.index("Dogs"))))
        ]
        data.append({"title": f"T{n}", "paragraphs": [{"context": context, "qas": questions}]})
    return json.dumps({"data": data})


def write_words(file: pathlib.Path) -> pathlib.Path:
    """Writes word vectors of the words of `regular`."""
    draw, known = np.random.default_rng(0), ["cats", "dogs", "number", "nothing", "of", "?", ".", *map(str, range(70))]
    file.write_text("".join(f"{word} {' '.join(map(str, draw.normal(size=6)))}\n" for word in known))
    return file


def write_regular(folder: pathlib.Path) -> pathlib.Path:
    """Writes the two files into an existing folder, of 30 and of 40 articles of `regular`."""
    for name, data in zip(FILES, (regular(30), regular(40, first=30)), strict=True):
        (folder / name).write_text(data)
    return folder


def sha256(file: pathlib.Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


class Publisher(LoopbackServer):
    """Serves the files of a folder on this machine; `fetched` has the names that were asked for and found.

    If `silent` is set, requests are taken and not answered, until the event `closing`.
    """

    def __init__(self, folder: pathlib.Path):
        self.fetched: list[str] = []
        self.silent = False
        self.closing = threading.Event()
        publisher = self

        class Files(Handler):
            def do_GET(self):
                file = folder / self.path.rpartition("/")[2]
                if publisher.silent:
                    publisher.closing.wait()
                elif file.is_file():
                    publisher.fetched.append(file.name)
                    self.reply(file.read_bytes())
                else:
                    self.reply(b"", 404)

        super().__init__(Files)

    def __exit__(self, *failure):
        self.closing.set()
        super().__exit__(*failure)
