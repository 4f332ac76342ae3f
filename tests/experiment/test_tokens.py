"""Training pairs on disk: the same pairs as in memory, written once, by one or several processes."""

import concurrent.futures.process
import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest
from helpers import one_line_error, raising, times, wait_for, whole_and_resumed, written
from refusals import check_refusal
from several_processes import as_processes
from small_squad import write_squad
from tiny_bert import tiny_recipe

from endx_jax.data.batches.collator import Pairs
from endx_jax.data.batches.token_store import MANIFEST, SIDES, TokenStore, join_parts, write_part
from endx_jax.data.batches.token_tables import TokenTable
from endx_jax.data.formats import FORMATS, Format
from endx_jax.data.formats.beir import HEADER
from endx_jax.data.formats.format import each_row
from endx_jax.data.formats.made import MAKERS
from endx_jax.data.sets.examples import Example
from endx_jax.data.sets.records import RetrievalSet
from endx_jax.data.settings import DataSettings
from endx_jax.data.sources import find_data, read_splits
from endx_jax.data.tokenization import TextProcessor, Tokenizer
from endx_jax.experiment.run import prepare_run
from endx_jax.experiment.tokens import stored
from endx_jax.methods import METHODS, find_method

pa = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402

# Rows with equal questions, equal answers and hard negatives, one of which is right elsewhere.
SAT = [f"the cat sat on {n}" for n in range(41)]
ROWS = [
    {"query": f"where is cat {n % 30}", "pos": [SAT[n % 41]], "neg": [SAT[(n + k) % 41] for k in (1, 2)]}
    for n in range(100)
]


def write(file, rows, groups=25):
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(rows), file, row_group_size=groups)
        return file
    return written(file, rows)


@pytest.fixture(autouse=True)
def blocks_of_three_rows(monkeypatch):
    monkeypatch.setattr("endx_jax.data.batches.token_store.BLOCK", 3)


@pytest.fixture
def processors(tiny_bert):
    tokenizer = Tokenizer(tiny_bert)
    return {"question": TextProcessor(tokenizer, 16), "answer": TextProcessor(tokenizer, 24)}


@pytest.fixture
def settings(tmp_path):
    write_shards(tmp_path, ROWS)
    write(tmp_path / "test.jsonl", [{"query": f"who is dog {n}", "pos": [f"dog {n}"]} for n in range(20)])
    shards, test, tokens = (str(tmp_path / name) for name in ("shards", "test.jsonl", "tokens"))
    more = {"question_length": 16, "answer_length": 24, "tokenizing_processes": 1, "validation_fraction": 0.3}
    return DataSettings(path=shards, test_path=test, tokens=tokens, **more)


def write_shards(folder, rows):
    """Half of the rows in each of two files."""
    for n in range(2):
        part = rows[n * len(rows) // 2 : (n + 1) * len(rows) // 2]
        write(folder / "shards" / f"train-0000{n}-of-00002.parquet", part)


@pytest.fixture
def store(settings, processors):
    """A function that stores the pairs of the settings with some changes."""

    def make(**changes) -> TokenStore:
        given = dataclasses.replace(settings, **changes)
        return stored(given, processors, read_splits(dataclasses.replace(given, mixture=())))

    return make


@pytest.fixture
def store_mixed(store, tmp_path):
    """A function that stores the pairs of the settings mixed with further rows, whose texts may have prompts."""

    def make(rows, *prompts) -> TokenStore:
        other = write(tmp_path / "other.jsonl", rows)
        return store(mixture=((str(other), 1.0, *prompts),))

    return make


@pytest.fixture
def in_memory(settings, processors):
    """A function that reads the pairs of the settings into memory, as texts."""
    return lambda: texts(find_data(settings.path, settings, "train").records().tokenize(processors))


def texts(pairs: Pairs) -> set:
    """Returns right pairs, and questions with lists of right answers, negatives and scores, all as tokens."""

    def of(table, row):
        return tuple(table.ids[table.offsets[row] : table.offsets[row + 1]].tolist())

    found = {(of(pairs.questions, q), of(pairs.answers, a)) for q, a in pairs.index}
    for row in range(len(pairs.questions)):
        for n, listed in enumerate((pairs.positives, pairs.hard_negatives)):
            scores = pairs.scores[n].row(row).tolist() if pairs.scores else [None] * len(listed.row(row))
            names = [of(pairs.answers, answer) for answer in listed.row(row)]
            found.add((of(pairs.questions, row), n, tuple(sorted(zip(names, map(str, scores), strict=True)))))
    return found


ANIMALS = ("cat", "dog"), ("dog", "cat")
BOTH = [{"query": f"{a} {n}", "pos": [f"{b} {n}"], "neg": [f"{a} {n}"]} for a, b in ANIMALS for n in range(50)]
LABELLED = [{"query": f"where is cat {n % 30}", "answer": f"cat {n}", "label": int(n < 30)} for n in range(90)][::-1]


@pytest.mark.parametrize(
    ("rows", "counts", "widths"),
    [
        (ROWS, (100, 30, 41), (4, 8)),
        (LABELLED, (30, 30, 90), (1, 2)),
        (BOTH, (100, 100, 100), (2, 1)),  # a text's directions are in different parts, and no negatives of each other
        ([row | {"pos_scores": [1.5], "neg_scores": [-1.0]} for row in BOTH], (100, 100, 100), (2, 1)),
    ],
    ids=["negatives", "labels", "both directions", "scores"],
)
def test_a_store_holds_the_pairs_of_the_set_in_memory(store, in_memory, tmp_path, rows, counts, widths):
    write_shards(tmp_path, rows)
    made = store()
    pairs = made.pairs()
    assert texts(pairs) == in_memory()
    assert (len(pairs), len(pairs.questions), len(pairs.answers)) == counts
    assert made.counts.largest_score == rows[0].get("pos_scores", [0])[0]
    assert (pairs.positives.width, pairs.hard_negatives.width) == widths
    ascending = [np.diff(pairs.positives.row(question)) > 0 for question in range(len(pairs.questions))]
    assert np.concatenate(ascending).all()
    assert not list(made.folder.glob("part-*"))
    mapped = pairs.answers.ids
    while not isinstance(mapped, np.memmap):
        mapped = mapped.base
    assert TokenStore.open(made.folder).sha256 == made.sha256
    pairs.release()
    assert texts(pairs) == in_memory()


def test_a_format_and_data_that_only_this_program_knows_are_read_in_this_process(store, tmp_path, monkeypatch):
    parse = each_row(lambda row, where: Example(row["ask"], [row["say"]]))
    own = Format("own", lambda place: place.has_keys({"ask", "say"}), examples=parse, in_parts=True)
    FORMATS.insert(2, own)
    write_shards(tmp_path, [{"ask": f"where is cat {n}", "say": f"cat {n}"} for n in range(50)])
    assert len(store(tokenizing_processes=2).pairs()) == 50
    write_shards(tmp_path, ROWS)
    monkeypatch.setitem(MAKERS, "cats", lambda settings: RetrievalSet.from_pairs([("where is cat?", "a cat")]))
    mixed = store(tokens=str(tmp_path / "mixed"), tokenizing_processes=2, mixture=(("cats", 1.0),))
    assert mixed.pairs().sizes == (100, 1)


@pytest.mark.parametrize("names", [("host-0", "host-1", "host-1", "host-1"), ("tokens", "tokens")])
def test_a_host_with_a_folder_of_its_own_writes_it_too(settings, processors, tmp_path, monkeypatch, names):
    hosts = [dataclasses.replace(settings, tokens=str(tmp_path / name)) for name in names]
    splits = read_splits(settings)
    stores = as_processes(monkeypatch, lambda process: stored(hosts[process], processors, splits), count=len(names))
    assert len({store.sha256 for store in stores}) == 1
    assert tuple(store.folder.name for store in stores) == names


def test_scores_prompts_and_sources_are_kept(store_mixed, processors):
    rows = [
        {"query": f"who is cat {n}", "pos": ["a cat"], "neg": ["a dog", "cow"], "pos_scores": [n], "neg_scores": [1, 2]}
        for n in range(5)
    ]
    pairs = store_mixed(rows, "who: ").pairs()
    assert pairs.sizes == (100, 5)
    assert np.isnan(pairs.scores[0][pairs.index[:100, 0]]).all()
    question = pairs.index[100:, 0]
    np.testing.assert_array_equal(np.sort(pairs.scores[0][question][:, 0]), np.arange(5))
    np.testing.assert_array_equal(np.sort(pairs.scores[1][question][:, :2]), [[1, 2]] * 5)
    prompted = processors["question"]([f"who: who is cat {n}" for n in range(5)])
    np.testing.assert_array_equal(pairs.questions.pad(question, 16).ids, prompted.pad(np.arange(5), 16).ids)


def test_a_question_s_own_text_is_stored_beside_other_prompts(store_mixed):
    rows = [{"query": "a cat", "pos": ["a dog"]}, {"query": "a dog", "pos": ["a cat"]}]
    pairs = store_mixed(rows, "query: ", "passage: ").pairs()
    assert [set(pairs.positives.row(row).tolist()) for row in pairs.index[-2:, 0]] == [{*pairs.index[-2:, 1]}] * 2


def test_right_answers_and_known_scores_come_before_others(store_mixed):
    row = {"query": "where is cat 0", "pos": ["the cat sat on 0", "the cat sat on 1"], "neg": ["a cow"]}
    pairs = store_mixed([row | {"pos_scores": [4, 3], "neg_scores": [2]}]).pairs()
    question = pairs.index[-1, 0]
    right, wrong = (set(listed.row(question).tolist()) for listed in (pairs.positives, pairs.hard_negatives))
    assert right.isdisjoint(wrong)
    known = [sorted(score for score in scores.row(question) if score == score) for scores in pairs.scores]
    assert known == [[3, 4], [2]]


def test_ids_of_large_vocabularies_are_kept(tmp_path):
    def table(texts):
        return TokenTable(np.full(len(texts), 1 << 16), np.arange(len(texts) + 1), 0)

    part = tmp_path / "part-0.arrow"
    write_part(part, iter([("q", ["a"], [], None, [])]), dict.fromkeys(SIDES, table))
    join_parts(tmp_path, [[part]], ["x"], {name: dict.fromkeys(SIDES, 4) for name in ("length", "pad_id")})
    assert TokenStore.open(tmp_path).pairs().questions.ids.tolist() == [1 << 16]


def test_held_out_questions_are_left_out_and_missed_if_they_are_not(store, settings, tmp_path):
    write(tmp_path / "test.jsonl", [{"query": f"where is cat {n}", "pos": ["mat"]} for n in range(10)])
    splits = read_splits(settings)
    assert (len(splits.validation.questions) > 0, len(splits.test.candidates)) == (True, 1)
    assert len(store().pairs().questions) == 20
    write(tmp_path / "test.jsonl", [{"query": f"where is cat {n}", "pos": ["mat"]} for n in range(12)])
    check_refusal(store, "2 of", "'where is cat 10'")


def test_held_out_questions_with_prompts_are_missed(store_mixed, tmp_path):
    rows = [{"query": f"who is cat {n}", "pos": ["a cat"]} for n in range(5)]
    store_mixed(rows, "who: ")
    write(tmp_path / "test.jsonl", [{"query": f"who is cat {n}", "pos": ["mat"]} for n in (3, 9)])
    check_refusal(lambda: store_mixed(rows, "who: "), "1 of", "'who is cat 3'")


def test_a_store_with_a_short_or_changed_file_is_refused(store):
    file = store().folder / "answer.ids.npy"
    whole = file.read_bytes()
    for damaged in (whole[:-2], whole[:-1] + bytes([whole[-1] ^ 1])):  # one of them of equal size
        file.write_bytes(damaged)
        check_refusal(store, "answer.ids.npy is damaged or missing", f"remove {file.parent} to write it again")


def test_tokens_that_other_settings_would_change_are_refused(store, settings, processors, tiny_bert, tmp_path):
    splits, cased = read_splits(settings), shutil.copytree(tiny_bert, tmp_path / "cased") / "tokenizer.json"
    store()
    for file in pathlib.Path(settings.path).iterdir():  # without a split in their names, they are of any split
        file.rename(file.with_name(file.name.replace("train", "part")))
    cased.write_text(cased.read_text().replace('"lowercase": true', '"lowercase": false'))
    for changed in ({"prompt": "q: "}, {"tokenizer": Tokenizer(cased.parent)}, {"length": 8}):
        question = dataclasses.replace(processors["question"], **changed)
        with one_line_error(rf"holds tokens of other data \({next(iter(changed))}: "):
            stored(settings, processors | {"question": question}, splits)
    changes = {"question_column": "q", "split": "x", "skip_invalid": True}
    for name, value in changes.items():
        with one_line_error(rf"holds tokens of other data \({name.replace('question_column', 'columns')}: "):
            stored(dataclasses.replace(settings, **{name: value}), processors, splits)


def parts_of(settings) -> dict[str, int]:
    """Returns the times of finished parts."""
    return {file.name: time for file, time in times(pathlib.Path(settings.tokens), "part-*.arrow").items()}


@pytest.mark.parametrize("damage", [None, "shortened", "flipped", "link"])
def test_an_interrupted_tokenization_keeps_its_whole_parts(store, in_memory, settings, monkeypatch, tmp_path, damage):
    broken = write(tmp_path / "shards" / "train-00002-of-00003.parquet", ROWS)
    whole = broken.read_bytes()
    write(broken, [*ROWS[:30], {"query": "", "pos": ["x"], "neg": []}])
    check_refusal(store, "row 31", "'query'", "data.skip_invalid")
    before = parts_of(settings)
    assert len(before) == 2
    part, other = pathlib.Path(settings.tokens) / min(before), tmp_path / "other"
    contents = part.read_bytes()
    flipped = bytearray(contents)
    flipped[len(contents) // 2] ^= 1
    if damage:
        other.write_bytes(flipped)
        part.unlink()
        if damage == "link":
            part.symlink_to(other)
        else:
            part.write_bytes(contents[:-8] if damage == "shortened" else flipped)
    broken.write_bytes(whole)
    kept = {}

    def merge_all(*args):
        kept.update(parts_of(settings))
        join_parts(*args)

    monkeypatch.setattr("endx_jax.experiment.tokens.join_parts", merge_all)
    pairs = store().pairs()
    assert len(kept) == 3
    assert {name for name in before if kept[name] != before[name]} == ({part.name} if damage else set())
    assert texts(pairs) == in_memory()
    assert not damage or other.read_bytes() == flipped


@pytest.mark.parametrize("change", ["held_out", "shards"])
def test_finished_parts_of_other_shards_or_held_out_questions_are_written_again(
    store, in_memory, settings, tmp_path, change
):
    first, shards = {}, tmp_path / "shards"
    if change == "held_out":
        first = {"test_path": str(write(tmp_path / "held_out.jsonl", ROWS))}
    else:  # the second shard is the first part, and the broken one the second
        (shards / "train-00000-of-00002.parquet").unlink()
        write(shards / "train-00002-of-00002.parquet", [{**ROWS[0], "query": ""}])
    with one_line_error(r"no questions with a right passage|is empty"):
        store(**first)
    assert parts_of(settings)
    (shards / "train-00002-of-00002.parquet").unlink(missing_ok=True)
    write(shards / "train-00000-of-00002.parquet", ROWS[:50])
    assert texts(store().pairs()) == in_memory()


def test_a_killed_process_is_one_line(store, monkeypatch):
    pool = concurrent.futures.process
    monkeypatch.setattr(concurrent.futures.ProcessPoolExecutor, "map", raising(pool.BrokenProcessPool))
    check_refusal(lambda: store(tokenizing_processes=2), "data.tokenizing_processes", "below 2")


def test_processes_do_not_run_the_script_and_one_tokenizes_if_none_can_be_started(store, in_memory, monkeypatch):
    def start(*_):
        scripts.append(vars(sys.modules["__main__"]).get("__file__"))
        raise FileNotFoundError  # as without /dev/shm

    scripts, before = [], sys.modules["__main__"]
    monkeypatch.setattr(concurrent.futures.ProcessPoolExecutor, "map", start)
    assert texts(store(tokenizing_processes=2).pairs()) == in_memory()
    assert (scripts, sys.modules["__main__"]) == ([None], before)


def test_a_folder_that_is_a_file_and_sources_without_a_pair_are_refused(store, store_mixed, settings):
    check_refusal(lambda: store(tokens=settings.test_path), "test.jsonl", "data.tokens")
    check_refusal(lambda: store_mixed([{"query": "who?", "pos": [""]}]), "other.jsonl", "leave it out of the data")


def test_a_source_can_be_read_as_a_whole(store, settings, processors, tmp_path):
    folder = write_squad(tmp_path / "squad")
    source = {"path": str(folder), "mixture": ((settings.path, 1.0),)}
    pairs = store(**source, pool="answers").pairs()
    file = str(folder / "train-v1.1.json")
    squad = find_data(file, dataclasses.replace(settings, pool="answers"), "").records().subset(range(4))
    assert pairs.sizes == (len(squad.pairs), 100)
    assert texts(squad.tokenize(processors)) < texts(pairs)
    check_refusal(lambda: store(**source, pool="paragraphs"), "tokens of other data (pool: answers")
    check_refusal(lambda: store(pool="answers"), "leave data.pool empty")


def test_a_document_that_is_excluded_for_a_query_is_no_negative_of_it(store, settings, processors, tmp_path):
    documents = [{"_id": name, "title": "of", "text": f"a {name}"} for name in ("cat", "dog")]
    queries = [{"_id": name, "text": f"a {name}"} for name in ("cat", "dog")]
    for name, rows in (("corpus", documents), ("queries", queries)):
        write(tmp_path / "beir" / f"{name}.jsonl", rows)
    (tmp_path / "beir" / "qrels.tsv").write_text(f"{HEADER}\ncat\tdog\t1\ndog\tcat\t1\n")
    given = {"path": str(tmp_path / "beir"), "split": "test"}
    records = find_data(given["path"], settings, "test").records()
    for pairs in (records.tokenize(processors), store(**given).pairs()):
        assert [pairs.positives.row(row).tolist() for row in range(2)] == [[0, 1], [0, 1]]
    assert records.sha256 != dataclasses.replace(records, excluded=None).sha256


@pytest.mark.parametrize("change", ["edited", "emptied", "removed", "removed shard"])
def test_a_changed_source_is_noticed(store, store_mixed, tmp_path, change):
    store_mixed([{"query": f"who is cat {n}", "pos": ["a cat"]} for n in range(5)])
    other = tmp_path / "other.jsonl"
    before = other.stat()
    if change == "edited":  # at the same size and time
        other.write_text(other.read_text().replace("cat 3", "cow 3"))
        os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    elif change == "emptied":
        other.write_text("")
    else:
        (other if change == "removed" else tmp_path / "shards" / "train-00001-of-00002.parquet").unlink()
    refusals = "no such|does not exist|empty|no "
    with one_line_error(rf"tokens of other data \(sources: .*other.jsonl|other.jsonl.*({refusals})"):
        store(mixture=((str(other), 1.0),))


def test_a_folder_without_the_marker_and_links_in_one_with_it_are_not_touched(store, tmp_path):
    project, precious = tmp_path / "tokens", tmp_path / "precious"
    (project / "parts").mkdir(parents=True)
    (project / "parts" / "mine.txt").write_text("mine")
    check_refusal(store, "data.tokens")
    assert [file.name for file in project.rglob("*")] == ["parts", "mine.txt"]
    (project / MANIFEST).write_text("{}")
    precious.write_text("precious")
    for name in ("answer.ids.npy", "part-0.arrow", ".part-0.arrow.x", ".answer.ids.npy.x"):
        (project / name).symlink_to(precious)
    store()
    assert not [*project.glob(".*.x")]  # as killed processes leave them
    assert precious.read_text() == "precious"
    assert (project / "parts" / "mine.txt").read_text() == "mine"
    assert not (project / "answer.ids.npy").is_symlink()


def test_a_hostile_manifest_is_one_line(store):
    file = store().folder / MANIFEST
    whole = json.loads(file.read_text())
    hashes = [], {"../precious": "0"}, dict.fromkeys(whole["sha256"], 5)
    for hostile in ([], {"pairs": [10**9]}, {"about": []}, *(whole | {"sha256": one} for one in hashes)):
        file.write_text(json.dumps(hostile))
        for opening in (store, lambda: TokenStore.open(file.parent)):
            check_refusal(opening, "tokens")


# Tokenizes in two processes, which never finish a block, so that the parent can be killed meanwhile.
KILLED = """
import os, sys, time
from endx_jax.data.settings import DataSettings
from endx_jax.data.tokenization import TextProcessor, Tokenizer
from endx_jax.data.sources import read_splits
from endx_jax.experiment.tokens import stored

path, test_path, tokens, bert, slow = sys.argv[1:]
settings = DataSettings(path=path, test_path=test_path, tokens=tokens, tokenizing_processes=2)

class Never(TextProcessor):
    def __call__(self, texts):
        open(f"{slow}-{os.getpid()}", "w").close()
        time.sleep(600)

if __name__ == "__main__":
    import killed  # this file, as the processes import it
    processor = killed.Never(Tokenizer(bert), 16)
    stored(settings, dict.fromkeys(("question", "answer"), processor), read_splits(settings))
"""


def test_processes_end_with_a_killed_parent_and_the_next_run_is_right(store, in_memory, settings, tiny_bert, tmp_path):
    program = tmp_path / "killed.py"
    program.write_text(KILLED)
    arguments = [settings.path, settings.test_path, settings.tokens, tiny_bert, tmp_path / "slow"]
    parent = subprocess.Popen([sys.executable, program, *arguments], env=os.environ | {"JAX_PLATFORMS": "cpu"})
    wait_for(lambda: len(list(tmp_path.glob("slow-*"))) == 2)
    workers = [int(file.name.rpartition("-")[2]) for file in tmp_path.glob("slow-*")]
    assert parent.pid not in workers
    parent.kill()
    parent.wait()
    wait_for(lambda: not any(map(is_running, workers)))
    made = store()
    assert texts(made.pairs()) == in_memory()
    assert not [name for name in os.listdir(made.folder) if "part-" in name]


def is_running(process: int) -> bool:
    try:
        return "State:\tZ" not in pathlib.Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return False


@pytest.fixture
def config(tiny_bert, settings):
    config = tiny_recipe(tiny_bert, settings.path)
    for name in ("test_path", "tokens", "question_length", "answer_length", "tokenizing_processes"):
        config.data[name] = getattr(settings, name)
    config.data.hard_negatives = 1
    return config


def test_batches_on_disk_are_a_function_of_seed_and_step_above_any_size(config, tmp_path, monkeypatch):
    monkeypatch.setattr("endx_jax.data.batches.sampler.MOST_DRAWN", 10)
    first, second = (prepare_run(config, tmp_path / "run").plan.stream for _ in range(2))
    for step in (0, 7, 3):
        jax.tree.map(np.testing.assert_array_equal, first[step], second[step])
    steps = -(-100 // len(first.example_ids(0)))
    drawn = np.concatenate([first.example_ids(step) for step in range(steps)])[:100]
    np.testing.assert_array_equal(np.sort(drawn), np.arange(100))


def test_what_needs_texts_is_refused(config, tmp_path):
    config.objective.contrastive.guide = config.model.pretrained
    check_refusal(lambda: prepare_run(config, tmp_path / "run"), "data.tokens", "tokens holds tokens and no texts")
    config.objective.contrastive.guide = ""
    annotating = dataclasses.replace(find_method("dual"), annotate=lambda *_: pytest.fail("called without texts"))
    METHODS["dual"] = annotating
    check_refusal(lambda: prepare_run(config, tmp_path / "run"), "methods'", "`annotate`", "data.tokens")


@pytest.mark.slow
def test_a_run_on_disk_is_resumed_exactly_by_processes(config, tmp_path):
    config.data.tokenizing_processes = 2
    whole, parts = whole_and_resumed(config, tmp_path)
    assert whole == parts
    assert len(whole) > 3
