import csv
import functools
import gzip
import json
import shutil

import helpers
import pytest
from helpers import written
from refusals import check_refusal
from small_beir import write_beir

from endx_jax.data import read
from endx_jax.data.formats import ReadOptions, open_data
from endx_jax.data.formats.beir import default_split, sets_of
from endx_jax.data.formats.mined import REPORT, Negative, write_mined
from endx_jax.data.sets.records import RetrievalSet
from endx_jax.experiment.workdir import check_output

HEADER = "query-id\tcorpus-id\tscore\n"
refusal = functools.partial(helpers.refusal, read)
NEGATIVES = "query-id\tcorpus-id\tscore\trank\n"
TEXTS = ("right", "never used", "wrong", "also\nwrong", "right too")
RECORDS = RetrievalSet(("who?", "wo ist es – dort?"), TEXTS, ((0,), (0, 4)), ("q1", "q2"), (*"abcde",), ("A", "B"))
MINED = [[Negative(2, 0.25, 3), Negative(3, 0.125, 4)], []]


@pytest.fixture
def folder(tmp_path):
    corpus = [{"_id": "d1", "title": "Title", "text": "first"}, {"_id": "d3", "text": "third"}]
    corpus += [{"_id": name, "title": "", "text": text} for name, text in (("d4", " second "), ("d5", ""))]
    corpus.insert(1, {"_id": "d2", "title": "", "text": "second"})
    queries = [{"_id": "q1", "text": "one"}, {"_id": "q2", "text": "two"}, {"_id": "q3", "text": "one"}]
    queries.append({"_id": "q4", "text": "never judged"})
    written(tmp_path / "corpus.jsonl", corpus)
    written(tmp_path / "queries.jsonl", queries)
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_text(f"{HEADER}q2\td4\t2\nq1\td1\t1\nq2\td3\t0\nq3\td3\t1\nq4\td2\t-1\n")
    return tmp_path


def test_equal_texts_are_merged_under_the_first_id_and_their_judgements_united(folder):
    records = read(folder)
    assert records.candidates == ("Title first", "second", "third", "")
    assert (records.candidate_ids, records.questions) == (("d1", "d2", "d3", "d5"), ("one", "two"))
    assert (records.question_ids, records.qrels) == (("q1", "q2"), ((0, 2), (1,)))


def test_training_reads_only_the_documents_that_are_named(folder):
    (folder / "negatives").mkdir()
    (folder / "negatives" / "test.tsv").write_text(f"{NEGATIVES}q2\td1\t0.5\t1\n")
    with open(folder / "corpus.jsonl", "a") as corpus:
        corpus.write('{"_id": "d6", "text": "nobody names this"}\n')
    whole, named = read(folder), read(folder, whole=False)
    assert "nobody names this" in whole.candidates
    # d2 is named by a judgement below 0, and has d4's text; d5 is named by none.
    assert named.candidates == ("Title first", "second", "third")
    rows = range(len(whole.questions))
    assert named.subset(rows) == whole.subset(rows)


def test_corpus_and_queries_may_be_packed(folder):
    whole = read(folder)
    for name in ("corpus.jsonl", "queries.jsonl"):
        (folder / f"{name}.gz").write_bytes(gzip.compress((folder / name).read_bytes()))
        (folder / name).unlink()
    assert read(folder) == whole


def test_one_of_several_splits_is_read_by_its_name(folder):
    (folder / "qrels" / "train.tsv").write_text(f"{HEADER}q4\td1\t1\n")
    assert read(folder, split="train").questions == ("never judged",)
    assert read(folder, split="test").questions == ("one", "two")


def test_one_file_of_judgements_and_other_names_of_keys_are_read(folder):
    whole = read(folder)
    header, rows = (folder / "qrels" / "test.tsv").read_text().split("\n", maxsplit=1)
    shutil.rmtree(folder / "qrels")
    (folder / "qrels.tsv").write_text(f"{header}\n{rows}")
    assert (read(folder), read(folder, split="test"), default_split(folder)) == (whole, whole, "test")
    for name, keys in (("corpus", ("doc_id", "content")), ("queries", ("query_id", "query"))):
        path = folder / f"{name}.jsonl"
        path.write_text(path.read_text().replace('"_id"', f'"{keys[0]}"').replace('"text"', f'"{keys[1]}"'))
    (folder / "qrels.tsv").write_text(f"query_id\tdoc_id\trelevance\n{rows}")
    assert read(folder) == whole


def test_invalid_rows_can_be_skipped(folder, caplog):
    path = written(folder / "qrels" / "test.tsv", f"{HEADER}q1\td1\t1\nq9\td1\t1\nq2\td5\t1\nq2\td2\tyes\n")
    records = read(folder, skip_invalid=True)
    assert records.question_ids == ("q1",)
    said = f"skipped 3 invalid rows, the first: {path}, line 3: query 'q9' is not in queries.jsonl"
    assert caplog.messages == [f"{folder}: {said}"]


def test_hard_negatives_stand_beside_the_judgements_and_right_ones_are_none(folder):
    (folder / "negatives").mkdir()
    rows = "q1\td2\t0.5\t1\nq1\td4\t0.4\t2\nq2\td1\t3\t7\nq2\td2\t-3\t8\nq4\td1\t1\t1\n"
    (folder / "negatives" / "test.tsv").write_text(NEGATIVES + rows)
    records = read(folder)
    assert records.qrels == ((0, 2), (1,))
    assert records.hard_negatives == ((1,), (0,))  # d2 and d4 are one text, which is right for q2; q4 is no question
    (folder / "negatives" / "test.tsv").rename(folder / "negatives" / "other.tsv")
    assert read(folder).hard_negatives is None


def test_scores_of_a_teacher_are_written_and_read_and_the_first_of_two_counts(tmp_path):
    records = RetrievalSet(("a", "b"), ("x", "y", "z"), ((0,), (1,)), ("q0", "q1"), ("d0", "d1", "d2"))
    negatives, scores = [[Negative(2, 0.5, 1)], []], ({0: 2.5, 2: -1.0}, {1: 0.25})
    write_mined(tmp_path / "out", records, negatives, about={}, scores=scores)
    assert read(tmp_path / "out").scores == scores
    path = tmp_path / "out" / "scores" / "train.tsv"
    assert path.read_text() == f"{HEADER}q0\td0\t2.5\nq0\td2\t-1\nq1\td1\t0.25\n"
    more = {"queries.jsonl": '{"_id": "q2", "text": "a"}', "corpus.jsonl": '{"_id": "d3", "text": "x"}'}
    for name, lines in {**more, "scores/train.tsv": "q0\td3\t7\nq2\td0\t8"}.items():
        with open(tmp_path / "out" / name, "a") as file:
            file.write(f"{lines}\n")
    assert read(tmp_path / "out").scores == scores


def test_grades_and_own_documents(tmp_path):
    corpus, queries = dict(zip("123456", "aabcde", strict=True)), dict(zip("1347", "QQRS", strict=True))
    rows = ("151", "152", "151", "351", "361", "443", "710", "721")
    records = read(write_beir(tmp_path / "set", corpus, queries, test=rows))
    assert (records.candidates, records.qrels) == (("a", "b", "c", "d", "e"), ((3, 4), (2,), (0,)))
    assert (records.grades, records.gains) == (({3: 2, 4: 1}, {2: 3}, {0: 1}), ((2, 1), (3,), (1,)))
    assert records.excluded == ((0, 1), (), ())  # query 4 is judged to be answered by its own document
    assert read(tmp_path / "set", whole=False) == records  # with document 3, which nothing judges
    part = records.subset([1, 0])
    assert (part.candidates, part.gains, part.excluded) == (("c", "d", "e"), ((3,), (2, 1)), ((), ()))
    back = records.reversed()
    assert (back.gains, back.excluded) == (((1,), (3,), (2,), (1,)), ((0,), (), (), ()))
    write_mined(tmp_path / "out", records, [[], [], []], about={})
    assert read(tmp_path / "out").gains == records.gains


def test_groups_count_where_every_question_has_one(folder):
    texts = enumerate(("", "one", "two"))
    queries = [{"_id": f"q{n}", "text": text, "metadata": {"group": f"g{n}"}} for n, text in texts]
    queries += [{"_id": "q3", "text": "one"}, {"_id": "q4", "text": "never right", "metadata": {"group": 4}}]
    written(folder / "queries.jsonl", queries[1:])
    assert read(folder).groups == ("g1", "g2")  # of the first of equal questions
    del queries[2]["metadata"]
    written(folder / "queries.jsonl", queries[1:])
    assert read(folder).groups is None


def test_older_ones_are_replaced_as_a_whole_and_anything_else_is_left_alone(tmp_path):
    write_mined(tmp_path / "out", RECORDS, MINED, split="old", about={})
    check_output(tmp_path / "out", REPORT, "mine")
    write_mined(tmp_path / "out", RECORDS, MINED, about={})
    assert [file.name for file in (tmp_path / "out" / "qrels").iterdir()] == ["train.tsv"]
    assert [file.name for file in tmp_path.iterdir()] == ["out"]
    check_refusal(lambda: check_output(tmp_path, REPORT, "mine"), "`endx mine`", "name a new folder")
    check_refusal(lambda: check_output(tmp_path / "out" / REPORT, REPORT, "mine"), "mining.json", "name a folder")


def test_the_reader_finds_what_was_written_and_a_break_half_way_leaves_nothing(tmp_path):
    with pytest.raises(TypeError):
        write_mined(tmp_path / "out", RECORDS, MINED, about={"the last file": object()})
    assert not any(tmp_path.iterdir())
    write_mined(tmp_path / "out", RECORDS, MINED, about={"by": "hand"})
    records = read(tmp_path / "out", split="train")
    assert records.questions == RECORDS.questions
    assert records.candidates == ("right", "wrong", "also\nwrong", "right too")
    assert (records.candidate_ids, records.qrels) == (("a", "c", "d", "e"), ((0,), (0, 3)))
    assert (records.hard_negatives, records.groups) == (((1, 2), ()), RECORDS.groups)
    lines = (tmp_path / "out" / "negatives" / "train.tsv").read_text()
    assert lines == f"{NEGATIVES}q1\tc\t0.25\t3\nq1\td\t0.125\t4\n"
    assert json.loads((tmp_path / "out" / "mining.json").read_text()) == {"by": "hand"}


@pytest.mark.parametrize("name", ["a\tb", " a", "a\nb", ""])
def test_an_id_that_a_table_cannot_hold_is_refused(tmp_path, name):
    records = RetrievalSet(("q",), ("c",), ((0,),), (name,), ("d",))
    check_refusal(lambda: write_mined(tmp_path / "out", records, [[]], about={}), "a line break or white space")
    assert not any(tmp_path.iterdir())


def test_ids_with_quotes_are_read_as_beir_and_pandas_write_them(tmp_path):
    names = ('"', 'd"3"', '"d"', "it's")
    (tmp_path / "qrels").mkdir()
    written(tmp_path / "corpus.jsonl", [{"_id": name, "title": None, "text": name * 2} for name in names])
    written(tmp_path / "queries.jsonl", [{"_id": name, "text": f"find {name}"} for name in names])
    with open(tmp_path / "qrels" / "test.tsv", "w", newline="") as file:
        rows = csv.writer(file, delimiter="\t", quoting=csv.QUOTE_MINIMAL)
        rows.writerows([HEADER.split(), *((name, name, "1.0") for name in names)])
    records = read(tmp_path)
    assert records.question_ids == records.candidate_ids == names
    assert records.qrels == ((0,), (1,), (2,), (3,))
    write_mined(tmp_path / "out", records, [[Negative(1, 0.5, 1)], [], [], []], about={})
    assert read(tmp_path / "out").qrels == records.qrels
    # A line that is no CSV, as of other tools, is read as it is.
    (tmp_path / "qrels" / "test.tsv").write_text(f'{HEADER}"\t"\t1\n"\td"3"\t1\n')
    assert read(tmp_path).question_ids == ('"',)
    (tmp_path / "qrels" / "test.tsv").write_text(f'{HEADER}q"1\td\r1\t1\n', newline="")
    check_refusal(lambda: read(tmp_path), "test.tsv", "line 2", "'q\"1'", "queries.jsonl")


def test_an_empty_query_or_text_stops_nothing_unless_it_is_judged_right(folder):
    for text in ("", None):
        with open(folder / "queries.jsonl", "a") as queries:
            queries.write(json.dumps({"_id": f"empty {text}", "text": text}) + "\n")
        with open(folder / "corpus.jsonl", "a") as corpus:
            corpus.write(json.dumps({"_id": f"empty {text}", "title": None, "text": text}) + "\n")
    assert read(folder).question_ids == ("q1", "q2")
    path = folder / "qrels" / "test.tsv"
    path.write_text(f"{path.read_text()}empty None\td1\t0\n")
    assert read(folder).question_ids == ("q1", "q2")
    path.write_text(f"{path.read_text()}empty None\td1\t1\n")
    assert refusal(folder) == f"{folder / 'queries.jsonl'}, line 6: 'text' is empty"


def write_hub(folder, judged=("query-id", "corpus-id")):
    """Writes the hub's form of a BEIR folder, as of NanoBEIR."""
    parts = {
        "corpus": [{"_id": "d1", "text": "first"}, {"_id": "d2", "text": "second"}, {"_id": "d3", "text": "third"}],
        "queries": [{"_id": "q1", "text": "one"}, {"_id": "q2", "text": "two"}],
        "qrels": [dict(zip(judged, pair, strict=True)) for pair in (("q1", "d1"), ("q1", "d3"), ("q2", "d2"))],
    }
    for part, rows in parts.items():
        (folder / part).mkdir()
        written(folder / part / "train-00000-of-00001.parquet", rows)
    return folder


def test_a_folder_of_the_hub_is_read_from_parquet(tmp_path):
    records = read(write_hub(tmp_path))
    assert records.candidates == ("first", "second", "third")
    assert (records.question_ids, records.qrels) == (("q1", "q2"), ((0, 2), (1,)))
    # Two splits of judgements share a corpus and queries of one split.
    (tmp_path / "qrels" / "train-00000-of-00001.parquet").rename(tmp_path / "qrels" / "dev.parquet")
    assert read(tmp_path, split="dev").qrels == records.qrels
    assert "no split 'test'" in refusal(tmp_path, split="test")


def sets(path, split=None) -> dict:
    return {name: (one.path, one.split) for name, one in open_data(path, ReadOptions(split=split)).sets().items()}


def test_a_suite_is_of_folders_with_one_split_or_of_splits_with_a_corpus_each(tmp_path):
    for name in ("NanoA", "NanoB"):
        (tmp_path / name).mkdir()
        write_hub(tmp_path / name)
    names = ("NanoA", "NanoB")
    assert sets(tmp_path) == {name: (str(tmp_path / name), "train") for name in names}
    assert sets(tmp_path, "dev") == {name: (str(tmp_path / name), "dev") for name in names}
    whole = tmp_path / "NanoA"
    for part in ("corpus", "queries", "qrels"):
        table = whole / part / "train-00000-of-00001.parquet"
        for name in names:
            shutil.copy(table, whole / part / f"{name}-00000-of-00001.parquet")
        table.unlink()
    assert sets(whole) == {name: (str(whole), name) for name in names}
    assert read(whole, split="NanoB").question_ids == ("q1", "q2")
    assert sets(whole, "NanoB") == {}  # one set
    (whole / "qrels" / "NanoA-00000-of-00001.parquet").rename(whole / "qrels" / "test.parquet")
    assert sets(whole) == {}
    assert (default_split(str(whole)), default_split(str(tmp_path / "NanoB"))) == ("test", "train")


def test_damaged_folders_of_the_hub_are_refused(tmp_path):
    for name in ("judged", "shards", "missing"):
        (tmp_path / name).mkdir()
    assert "row 1: no 'query-id'" in refusal(write_hub(tmp_path / "judged", judged=("query", "document")))
    shards = write_hub(tmp_path / "shards") / "corpus"
    (shards / "train-00001-of-00002.parquet").write_bytes(b"")
    assert "train has several files" in refusal(tmp_path / "shards")
    missing = write_hub(tmp_path / "missing")
    (missing / "queries" / "train-00000-of-00001.parquet").unlink()
    assert "no queries.jsonl in the folder" in refusal(missing)


def test_a_folder_of_sets_is_a_suite(tmp_path):
    assert sets_of(str(tmp_path)) == sets_of(str(tmp_path / "nowhere")) == {}
    for name in ("b", "a", ".git"):
        (tmp_path / name).mkdir()
    assert sets_of(str(tmp_path)) == {}  # folders without data
    write_hub(tmp_path / "b")
    (tmp_path / "about.txt").write_text("x")
    # All folders are sets, so that one without data is noticed.
    assert sets_of(str(tmp_path)) == {"a": str(tmp_path / "a"), "b": str(tmp_path / "b")}
    assert sets_of(str(tmp_path / "b")) == {}  # a set, whose parts are folders
    check_refusal(lambda: open_data(tmp_path).records(), "holds several data sets (a")
    (tmp_path / "corpus.jsonl").write_text("")
    assert sets_of(str(tmp_path)) == {}
