"""`endx generate` against a stub of a chat server that misbehaves, and killed."""

import json
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
from chat_server import ChatServer, questions, reply
from helpers import wait_for, written

from endx_jax.data import generation
from endx_jax.data.chat import Reply
from endx_jax.data.formats import read
from endx_jax.data.generation import Journal, key_of, parse_reply
from endx_jax.experiment.saved_model import load_pair_scorer
from endx_jax.files import locked

KEY = "sk-secret-456"
BAD_REPLIES = ["I cannot do that", '["what is', "[]", "[1, 2]", '[{"question": "x"}]', '["", " "]', f'["{"x" * 1001}"]']
# Lines of a journal.
DAMAGED = ["{}", '{"passage": "k", "questions": [1], "bad": "", "sent": 1, "received": 1}']
DAMAGED += [
    f'{{"passage": "k", "questions": ["q"], "bad": "", "sent": {n}, "received": 1}}' for n in ("null", "-1", "1e9")
]


@pytest.fixture
def corpus(tmp_path) -> pathlib.Path:
    """Eight different passages; one of them twice, and an empty one."""
    rows = [{"id": f"d{n}", "text": f"This is passage {n}."} for n in range(8)]
    rows += [{"id": "again", "text": "This is passage 3."}, {"id": "empty", "text": ""}]
    return written(tmp_path / "docs.jsonl", rows)


def arguments(server, corpus, *more) -> list[str]:
    given = [f"--corpus={corpus}", f"--output={corpus.parent / 'pairs.jsonl'}", "--retries=1", "--timeout=5"]
    return ["generate", *given, f"--endpoint={server.address}", "--model=m", *more]


@pytest.fixture
def generate(endx, corpus):
    """Function that runs the verb against a server."""
    return lambda server, *more, status=0: endx(*arguments(server, corpus, *more), status=status)


def pairs(corpus) -> list[tuple[str, str]]:
    lines = (corpus.parent / "pairs.jsonl").read_text().splitlines()
    return [(found["question"], found["answer"]) for found in map(json.loads, lines)]


def expected(*numbers) -> list[tuple[str, str]]:
    return [(question, f"This is passage {n}.") for n in numbers for question in json.loads(questions(n))]


def test_pairs_are_written_in_the_order_of_the_corpus_and_nothing_is_asked_twice(corpus, generate, variables):
    variables(OPENAI_API_KEY=KEY)
    with ChatServer(delay=0.05) as server:
        printed = generate(server, "--concurrency=3", "--price=1,2")
        assert server.paid == {str(n): 1 for n in range(8)}
        assert 1 < server.most <= 3
        body = server.seen[0][2]
        assert (body["model"], body["max_tokens"]) == ("m", 500)
        assert "Write 3 questions" in body["messages"][0]["content"]
        again = generate(server, "--concurrency=3", "--price=1,2")
        assert sum(server.asked.values()) == 8
    assert pairs(corpus) == expected(*"01234567")
    assert re.match(r"asking m about 8 passages: about \d+ tokens in and 480 out, 0.00 at --price\n", printed.out)
    assert "pairs.jsonl holds 24 pairs of 8 passages; 0 of several passages and 0 by --filter-with" in printed.out
    assert "pairs.jsonl.journal: 800 tokens in and 240 out" in printed.out
    assert again.out.startswith("asking m about 0 passages (8 answered before): about 0 tokens in and 0 out")
    assert len(read(corpus.parent / "pairs.jsonl").questions) == 24
    assert KEY not in printed.out + printed.err + (corpus.parent / "pairs.jsonl.journal").read_text()


def test_an_estimate_asks_for_nothing(corpus, generate):
    with ChatServer() as server:
        said = generate(server, "--limit=0", "--price=1000000").out
        assert not server.seen
    tokens = 8 * (len(generation.PROMPT.replace("{count}", "3")) + len("This is passage 0.")) // 4
    assert (
        said == f"asking m about 8 passages: about {tokens:,} tokens in and 480 out, {tokens + 480:,}.00 at --price\n"
    )
    assert [file.name for file in corpus.parent.iterdir()] == ["docs.jsonl"]


def test_a_template_with_examples_and_more_passages_later(corpus, generate):
    template = corpus.parent / "prompt.txt"
    template.write_text('Passage: passage x y\nQuestions: ["a {b}?"]\n\n{count} for this one: {passage}\n')
    flags = f"--prompt={template}", "--questions=2", '--fields={"n": null}'
    with ChatServer() as server:
        generate(server, *flags, "--limit=1")
        ((_, _, body),) = server.seen
        assert body["messages"][0]["content"].endswith('["a {b}?"]\n\n2 for this one: This is passage 0.\n')
        assert body["n"] is None
        assert pairs(corpus) == expected("0")[:2]
        generate(server, *flags, "--limit=3")
        assert server.asked == {"0": 1, "1": 1, "2": 1}


@pytest.mark.parametrize("said", ["I cannot do that", None])
def test_an_answer_without_questions_is_asked_again_then_skipped_and_named(said, corpus, generate):
    act = lambda number, times: reply(said if number == "3" or (number == "5" and times == 1) else questions(number))  # noqa: E731
    with ChatServer(act) as server:
        printed = generate(server).out
        assert server.asked == {str(n): {3: 3, 5: 2}.get(n, 1) for n in range(8)}
        again = generate(server).out
        assert server.asked["3"] == 3  # paid three times, and not again
    assert pairs(corpus) == expected(*"0124567")
    for text in (printed, again):
        assert "4 answers held no questions; a passage with three of them is not asked again" in text
        assert re.search(r"skipped 1 passages \(.+\): 'd3'\n", text)
        assert "again to ask" not in text
    assert "1,100 tokens in and 330 out" in printed  # of bad answers too


def test_an_answer_that_is_cut_off_counts_as_bad_and_without_any_pair_nothing_is_written(corpus, generate):
    with ChatServer(lambda *_: reply("[]")) as server:
        assert "no pairs are left: " in generate(server, "--limit=2", status=2).err
    assert not (corpus.parent / "pairs.jsonl").exists()
    act = lambda number, times: reply(questions(number), finish="length" if number == "3" else "stop")  # noqa: E731
    with ChatServer(act) as server:
        assert "skipped 1 passages (cut off at max_tokens): 'd3'" in generate(server).out


@pytest.mark.parametrize("failure", [(429, {"Retry_After_Ms": "1"}, b""), (400, {}, b"too long"), "break"])
def test_passages_without_an_answer_are_named_and_asked_by_the_next_run(failure, corpus, generate):
    with ChatServer(lambda number, _: failure if number in "36" else reply(questions(number))) as server:
        printed = generate(server).out
    assert pairs(corpus) == expected(*"012457")
    assert re.search(r"skipped 2 passages \(.+\): 'd3', 'd6'\nrun the same command again to ask for those", printed)
    with ChatServer() as server:
        generate(server)
        assert server.asked == {"3": 1, "6": 1}
    assert pairs(corpus) == expected(*"01234567")


def test_a_wrong_key_ends_at_once_in_one_line(corpus, generate, variables):
    variables(OPENAI_API_KEY=KEY)
    with ChatServer(lambda *_: (401, {}, f"wrong key {KEY}".encode())) as server:
        assert "answers with status 401: wrong key ***" in generate(server, "--concurrency=1", status=2).err
        assert sum(server.asked.values()) < 4
    assert not (corpus.parent / "pairs.jsonl").exists()


def test_a_server_that_is_down_ends_the_run(generate, monkeypatch):
    monkeypatch.setattr(generation, "GIVE_UP", 4)
    with ChatServer(lambda number, _: (503, {}, b"") if number > "1" else reply(questions(number))) as server:
        said = generate(server, "--retries=0", "--concurrency=1", status=2).err
    assert "no answer for 4 passages in a row, for the last: http://127.0.0.1:" in said
    assert "answers with status 503" in said
    with ChatServer() as server:
        generate(server)
        assert set(server.asked) == set("234567")


def test_questions_of_several_passages_are_left_out(corpus, generate):
    act = lambda n, _: ["What is it about?", f"what is {n}?", f"What  is {n}?", "what is it about?"]  # noqa: E731
    with ChatServer(lambda *asked: reply(json.dumps(act(*asked)))) as server:
        said = generate(server).out
    assert pairs(corpus) == [(f"what is {n}?", f"This is passage {n}.") for n in range(8)]
    assert "8 of several passages and 0 by --filter-with are left out" in said


def test_questions_that_do_not_find_their_passage_are_left_out(corpus, trained_workdir, generate):
    texts = [f"the {word} sat. This is passage {n}." for n, word in enumerate(["cat", "dog"] * 4)]
    written(corpus, [{"id": f"d{n}", "text": text} for n, text in enumerate(texts)])
    with ChatServer(lambda number, _: reply(json.dumps([texts[int(number) // 2 * 2] + " ?" * int(number)]))) as server:
        generate(server, f"--filter-with={trained_workdir}", "--filter-top=1")
    kept = [answer for _, answer in pairs(corpus)]
    assert texts[0] in kept
    assert texts[1] not in kept


def test_a_reranker_filters_too(corpus, pair_workdir, generate):
    with ChatServer() as server:
        said = generate(server, f"--filter-with={pair_workdir}", "--filter-top=8").out
        everything = pairs(corpus)
        assert len(everything) == 24  # BM25 finds every passage, and each is among the best eight
        assert "0 by --filter-with are left out" in said
        generate(server, f"--filter-with={pair_workdir}", "--filter-top=1")
        assert sum(server.asked.values()) == 8  # the journal has all of them
    kept = pairs(corpus)
    assert len(kept) == len({question for question, _ in kept}) < 24
    ranked = load_pair_scorer(pair_workdir)([one for one, _ in everything], [f"This is passage {n}." for n in range(8)])
    scores = ranked(np.stack(np.mgrid[:24, :8], axis=-1).reshape(-1, 2)).reshape(24, 8)
    assert kept == [everything[n] for n in range(24) if scores[n].argmax() == n // 3]


def test_a_journal_of_another_model_or_prompt_in_use_or_damaged_is_refused(corpus, generate):
    journal = corpus.parent / "pairs.jsonl.journal"
    with ChatServer() as server:
        generate(server)
        said = generate(server, "--model=other", "--questions=2", status=2).err
        assert "pairs.jsonl.journal holds answers for other fields, prompt, questions: name another --output" in said
        with locked(corpus.parent / ".pairs.jsonl.lock"):
            assert "is in use by process" in generate(server, status=2).err
        whole = journal.read_text()
        for line in DAMAGED:
            journal.write_text(f"{whole}{line}\n")
            assert "pairs.jsonl.journal, line 10" in generate(server, status=2).err, line
        assert sum(server.asked.values()) == 8


def test_torn_lines_inside_a_journal_are_skipped_with_their_numbers(corpus, generate):
    file = corpus.parent / "pairs.jsonl.journal"
    with ChatServer() as server:
        generate(server)
        first, *lines = file.read_bytes().splitlines(keepends=True)
        torn = b'{"passage": "k", "questions": ["\xc3'  # a character that is cut in two
        file.write_bytes(first + lines[0] + torn + b"".join(lines[1:5]) + b"\0\0\n" + b"".join(lines[5:]))
        said = generate(server).out
        assert sum(server.asked.values()) == 9  # the answer in the torn line is asked for again
    assert "pairs.jsonl.journal: 2 broken lines are skipped: 3, 7\n" in said
    assert pairs(corpus) == expected(*"01234567")


def test_the_end_of_a_line_that_a_kill_cut_is_dropped(tmp_path):
    def opened(add=False):
        journal = Journal(tmp_path / "journal", {"model": "m", "prompt": ["a"]})
        known = {**journal.questions}
        if add:
            journal.add("k1", generation.GeneratedQuestions(("q",), "", 1, 2))
        journal.close()
        return known, (journal.sent, journal.received)

    opened(add=True)
    whole = (tmp_path / "journal").read_bytes()
    for cut in range(1, len(whole)):
        (tmp_path / "journal").write_bytes(whole[:-cut])
        assert opened(add=True)[0] == {}
        assert (tmp_path / "journal").read_bytes() == whole
    assert opened()[1] == (1, 2)


def test_a_reply_is_searched_for_its_list_and_has_a_reason_if_it_has_none():
    text = '<think>["not", "these"]</think>\nHere:\n```json\n["One?", " two  words? ", "one?", "Three?", "Four?"]\n```'
    assert parse_reply(Reply(text, True, (0, 0)), 3) == (("One?", "two words?", "Three?"), "")
    for text in BAD_REPLIES:
        found, reason = parse_reply(Reply(text, True, (0, 0)), 3)
        assert (found, bool(reason)) == ((), True), text


@pytest.mark.slow
def test_killed_five_times_no_answer_in_the_journal_is_asked_again_and_none_is_lost(corpus, tmp_path):
    """What the server answered and a killed process had not yet written is paid twice, at most one for each thread."""
    corpus.write_text("".join(json.dumps({"id": f"d{n}", "text": f"This is passage {n}."}) + "\n" for n in range(120)))
    with ChatServer(delay=0.02) as server:
        command = [sys.executable, "-m", "endx_jax", *arguments(server, corpus, "--concurrency=4")]
        environment = os.environ | {"JAX_PLATFORMS": "cpu"}
        snapshots: list[dict[str, int]] = []  # how often what the journal held at a kill had been asked by then
        for kill in range(1, 6):
            process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
            wait_for(lambda goal=10 * kill: sum(server.paid.values()) >= goal)
            process.kill()
            process.wait()
            journal = (tmp_path / "pairs.jsonl.journal").read_text().rpartition("\n")[0]
            known = [str(n) for n in range(120) if key_of(f"This is passage {n}.") in journal]
            snapshots.append({number: server.asked[number] for number in known})
        finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        for snapshot in snapshots:
            assert {number: server.asked[number] for number in snapshot} == snapshot
    assert 0 < len(snapshots[0]) <= len(snapshots[-1])
    assert 120 <= sum(server.paid.values()) <= 120 + 4 * 5
    assert pairs(corpus) == expected(*map(str, range(120)))
    assert f"({len(snapshots[-1])} answered before)" in finished.stdout
