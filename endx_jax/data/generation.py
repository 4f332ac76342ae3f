"""Generation of questions for passages by a language model, with a journal so that no answer is paid for twice."""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from endx_jax import json_files
from endx_jax.data.chat import MOST_TOKENS, Chat, NoAnswer, Reply
from endx_jax.data.sets.documents import Document
from endx_jax.errors import EndxError
from endx_jax.files import AppendOnlyFile

PROMPT = """Here is a passage of a document:

{passage}

Write {count} questions that people would type into a search engine and that this passage answers. Each has to be
understood without the passage, and none may copy a sentence of it. Reply with a JSON list of {count} strings only."""

TRIES = 3  # answers of the model for a passage, before it is skipped
LONGEST = 1000  # characters of a question
GIVE_UP = 20  # passages in a row without an answer of the server

Result = TypeVar("Result")

_THOUGHT = re.compile(r"(?s).*</think>")


class GeneratedQuestions(NamedTuple):
    """Answer of the model for a passage: its questions, or the reason for which there are none; tokens both ways."""

    questions: tuple[str, ...]
    bad: str
    sent: int
    received: int


def key_of(text: str) -> str:
    """Returns the key of a passage in the journal."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Journal:
    """File with a line for each answer, in the order in which they came; what it holds is never asked again.

    Attributes:
      questions: questions of each passage that has some, by its key.
      bad: reasons of the bad answers for each passage, by its key.
      sent: tokens of all prompts.
      received: tokens of all answers.
      torn: numbers of lines that are not JSON, such as those a full disk cut off; their answers are asked for again.
    """

    def __init__(self, path: pathlib.Path, about: Mapping[str, Any]):
        """Reads a journal, or begins one; `about` is what determines the answers, such as model and prompt."""
        self.questions: dict[str, tuple[str, ...]] = {}
        self.bad: dict[str, list[str]] = {}
        self.sent = self.received = 0
        self.torn: list[int] = []
        self._lock = threading.Lock()
        *lines, unfinished = path.read_bytes().split(b"\n") if path.exists() else [b""]
        self._read(path, lines, json.loads(json.dumps(about)))
        self._file = AppendOnlyFile(path)
        if unfinished:  # by a process that was killed
            os.truncate(path, path.stat().st_size - len(unfinished))
        if not lines:
            self._write({"about": about})

    def _read(self, path: pathlib.Path, lines: Iterable[bytes], about: Mapping[str, Any]) -> None:
        for number, line in enumerate(lines, start=1):
            where = f"{path}, line {number}"
            try:
                entry = json_files.parse(line.decode(errors="replace"), where, dict)
            except EndxError:
                if number == 1:
                    raise
                self.torn.append(number)
                continue
            if number == 1:
                stored = json_files.as_object(entry.get("about"), f"{where}: 'about'")
                if changed := [name for name in {**stored, **about} if stored.get(name) != about.get(name)]:
                    raise EndxError(
                        f"{path} holds answers for other {', '.join(changed)}: name another --output, or delete it to "
                        "pay for new answers"
                    )
                continue
            questions = json_files.list_at(entry, "questions", where)
            answer = GeneratedQuestions(
                tuple(json_files.as_text(question, f"{where}: a question") for question in questions),
                json_files.text_at(entry, "bad", where, may_be_empty=True),
                json_files.as_whole(entry.get("sent"), f"{where}: 'sent'", most=MOST_TOKENS),
                json_files.as_whole(entry.get("received"), f"{where}: 'received'", most=MOST_TOKENS),
            )
            self._keep(json_files.text_at(entry, "passage", where), answer)

    def _keep(self, key: str, answer: GeneratedQuestions) -> None:
        if answer.bad:
            self.bad.setdefault(key, []).append(answer.bad)
        else:
            self.questions[key] = answer.questions
        self.sent, self.received = self.sent + answer.sent, self.received + answer.received

    def add(self, key: str, answer: GeneratedQuestions) -> None:
        """Adds an answer, which is on disk when this returns; threads may call it."""
        with self._lock:
            self._write({"passage": key, **answer._asdict()})
            self._keep(key, answer)

    def _write(self, entry: Mapping[str, Any]) -> None:
        self._file.add(json.dumps(entry, ensure_ascii=False).encode() + b"\n", sync=True)

    def tries_left(self, key: str) -> int:
        """Returns how many answers may still be asked for a passage."""
        return 0 if key in self.questions else TRIES - len(self.bad.get(key, ()))

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def parse_reply(reply: Reply, count: int) -> tuple[tuple[str, ...], str]:
    """Returns the questions in a reply, at most `count`, and an empty string; or no questions and the reason."""
    text = _THOUGHT.sub("", reply.text)
    if not reply.complete:
        return (), "cut off at max_tokens"
    if not (listed := re.search(r"(?s)\[.*\]", text)):
        return (), "no JSON list"
    questions: dict[str, str] = {}
    try:
        for item in json_files.parse(listed[0], "the list", list):
            question = " ".join(json_files.as_text(item, "a question").split())
            if len(question) <= LONGEST:
                questions.setdefault(question.casefold(), question)
    except EndxError as failure:
        return (), str(failure)[:200]
    return tuple(questions.values())[:count], "" if questions else "no questions in the list"


def generate(
    prompts: Mapping[str, str], chat: Chat, journal: Journal, count: int, concurrency: int
) -> Iterator[tuple[str, str]]:
    """Asks for questions of passages that the journal has none of, several at a time.

    Args:
      prompts: prompt of each passage.
      chat: client of the model, which is stopped by an error.
      journal: journal, which gets every answer as it comes.
      count: number of questions for a passage.
      concurrency: number of requests at a time.

    Yields:
      (passage, reason) for each passage that was done; the reason is empty unless it has no questions.

    Raises:
      EndxError: the server refuses all requests, or it gave no answer for `GIVE_UP` passages in a row.
    """

    def ask(text: str) -> tuple[str, str, bool]:
        key = key_of(text)
        for _ in range(journal.tries_left(key)):
            try:
                reply = chat.ask(prompts[text])
            except NoAnswer as failure:
                return text, str(failure), False
            journal.add(key, GeneratedQuestions(*parse_reply(reply, count), *reply.tokens))
            if key in journal.questions:
                break
        return text, "" if key in journal.questions else journal.bad[key][-1], True

    failed = 0
    with concurrent.futures.ThreadPoolExecutor(concurrency) as pool:
        try:
            for text, reason, answered in _as_done(pool, ask, prompts, 2 * concurrency):
                failed = 0 if answered else failed + 1
                if failed == GIVE_UP:
                    raise EndxError(f"no answer for {GIVE_UP} passages in a row, for the last: {reason}")
                yield text, reason
        except BaseException:
            chat.stop.set()  # requests in flight are still waited for, since they are paid
            raise


def _as_done(
    pool: concurrent.futures.Executor, function: Callable[[str], Result], items: Iterable[str], most: int
) -> Iterator[Result]:
    """Yields the function's results as they come, with at most `most` items in the pool."""
    waiting: set[concurrent.futures.Future] = set()
    for item in items:
        waiting.add(pool.submit(function, item))
        if len(waiting) == most:
            done, waiting = concurrent.futures.wait(waiting, return_when=concurrent.futures.FIRST_COMPLETED)
            yield from (future.result() for future in done)
    yield from (future.result() for future in concurrent.futures.as_completed(waiting))


def distinct(documents: Iterable[Document]) -> Iterator[Document]:
    """Yields documents of different texts that are not empty."""
    seen: set[str] = set()
    for document in documents:
        if document.text and (key := key_of(document.text)) not in seen:
            seen.add(key)
            yield document


def pairs_of(documents: Iterable[Document], journal: Journal) -> tuple[list[tuple[str, Document]], int]:
    """Returns the (question, passage) pairs of different passages, and the number of pairs that are left out.

    Questions of several passages, such as "What is this passage about?", are left out, since they tell no passage from
    the others.
    """
    pairs = [
        (question, passage) for passage in documents for question in journal.questions.get(key_of(passage.text), ())
    ]
    times = Counter(question.casefold() for question, _ in pairs)
    unique = [(question, passage) for question, passage in pairs if times[question.casefold()] == 1]
    return unique, len(pairs) - len(unique)
