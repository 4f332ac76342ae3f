import functools
import gzip
import itertools
import json

import pytest
import small_squad
from helpers import written
from refusals import check_refusal

from endx_jax.data import reqa
from endx_jax.data.formats import read_corpus, registry
from endx_jax.data.sets.documents import Document
from endx_jax.data.sets.paragraphs import POOLS


def read(folder, name, text, **options):
    path = folder / name
    data = text.encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return list(read_corpus(path, **options))


@pytest.mark.parametrize("packed", ["", ".gz"])
@pytest.mark.parametrize(
    ("name", "text", "documents"),
    [
        (
            "a.jsonl",
            '{"id": "x", "text": " one "}\n\n{"_id": 7, "text": "two", "title": "T", "url": "u", "n": 1.5, "old": true}'
            '\n{"text": "", "list": [1], "no": null, "nan": NaN, "empty": " ", "metadata": {"pages": 3, "deep": {}}}\n'
            '{"id": 5, "text": null, "title": null}\n{"id": 6, "text": NaN, "title": NaN}\n',
            [
                Document("x", "one"),
                Document("7", "T two", {"title": "T", "url": "u", "n": 1.5, "old": True}),
                Document("4", "", {"pages": 3}),
                Document("5", ""),
                Document("6", ""),
            ],
        ),
        ("a.jsonl", '{"_id": {"$oid": "x"}, "text": "one"}\n', [Document("1", "one")]),  # as MongoDB exports it
        (
            "a.csv",
            'id,text,title\n"a,1","say ""hi""\nthere",\nb,two,T\n',
            [Document("a,1", 'say "hi"\nthere'), Document("b", "T two", {"title": "T"})],
        ),
        (
            "a.json",
            '[{"id": 4, "course": "x", "faqs": [{"q": "r", "a": "one", "_id": 5}, {"q": "s", "a": "two", "_id": 6}]}]',
            [Document("5", "one", {"course": "x"}, ("r",)), Document("6", "two", {"course": "x"}, ("s",))],
        ),
        ("a.csv", "text\none\n\ntwo\n", [Document("2", "one"), Document("4", "two")]),
        ("a.tsv", "text\t_id\none\t5\n", [Document("5", "one")]),
        ("a.tsv", '0\tsay "hi\n1\t"so"\n\nx\t\n', [Document("0", 'say "hi'), Document("1", '"so"'), Document("x", "")]),
        ("a.txt", "\ufeffone\n \n two\tthree \n", [Document("1", "one"), Document("3", "two\tthree")]),
    ],
)
def test_each_format_is_read_as_documents(tmp_path, name, text, documents, packed):
    assert read(tmp_path, name + packed, text) == documents


def test_folders_of_beir_ms_marco_and_dpr_are_their_collections(tmp_path):
    for name in ("marco", "dpr", "beir"):
        (tmp_path / name).mkdir()
    (tmp_path / "marco" / "collection.tsv.gz").write_bytes(gzip.compress(b'0\tsay "hi\n7\tseven\n'))
    assert list(read_corpus(tmp_path / "marco")) == [Document("0", 'say "hi'), Document("7", "seven")]
    text = 'id\ttext\ttitle\n1\t"Aaron ( ""the tall"" ) spoke"\tAaron\n2\tAfter that.\tAaron\n'
    (tmp_path / "dpr" / "psgs_w100.tsv").write_text(text)
    spoken, after = list(read_corpus(tmp_path / "dpr"))
    assert spoken == Document("1", 'Aaron Aaron ( "the tall" ) spoke', {"title": "Aaron"})
    assert after == Document("2", "Aaron After that.", {"title": "Aaron"})
    row = '{"_id": "d", "title": "T", "text": "x", "metadata": {"url": "u"}}\n'
    (tmp_path / "beir" / "corpus.jsonl").write_text(row)
    assert list(read_corpus(tmp_path / "beir")) == [Document("d", "T x", {"title": "T", "url": "u"})]
    (tmp_path / "beir" / "corpus.jsonl").rename(tmp_path / "beir" / "documents.doc")
    expected = "no file can be read as ", ", or as documents; it has 1 .doc: write ", ", or documents ", ".md"
    check_refusal(lambda: read_corpus(tmp_path / "beir"), *expected)


@pytest.mark.parametrize(
    ("ending", "texts", "found"),
    [
        (".md", ("one", "two"), [("0.md", "0 one"), ("1.md", "1 two")]),
        (".html", ("<p>one", "<p>two"), [("0.html", "0 one"), ("1.html", "1 two")]),
        (".txt", ("one", "two"), [("0.txt", "0 one"), ("1.txt", "1 two")]),
        (".txt.gz", ("one\n\nx", "two"), [("1", "one"), ("3", "x"), ("4", "two")]),
        (".jsonl", ('{"text": "one"}\n\n', '{"text": "two"}'), [("1", "one"), ("2", "two")]),
        (
            ".json",
            ('[{"text": "one"}, {"text": "x"}]', '{"a": [{"text": "two"}]}'),
            [("1", "one"), ("2", "x"), ("3", "two")],
        ),
        (".csv", ("text\none\n", "text\ntwo\n"), [("2", "one"), ("4", "two")]),
        (".tsv", ("a1\tone\n", "a2\ttwo\n"), [("a1", "one"), ("a2", "two")]),
    ],
)
def test_folders_and_patterns_are_read_as_each_of_their_files(tmp_path, ending, texts, found):
    for n, text in enumerate(texts):
        data = text.encode()
        (tmp_path / f"{n}{ending}").write_bytes(gzip.compress(data) if ending.endswith(".gz") else data)
    for path in (tmp_path, f"{tmp_path}/*{ending}", f"{tmp_path}/**/*{ending}")[ending.startswith(".txt.") :]:
        assert [(d.metadata.get("source", d.id), d.text) for d in read_corpus(path)] == found


def test_patterns_of_other_endings_are_refused_by_their_ending(tmp_path):
    (tmp_path / "a.xml").write_text("text: one\n")
    words = {"xml": "a.xml: unknown ending '.xml'; known are .json", "csv": "*.csv: no files match this pattern"}
    for read_path, ending in itertools.product((read_corpus, registry.read), words):
        check_refusal(functools.partial(read_path, f"{tmp_path}/*.{ending}"), words[ending])


def test_columns_by_other_names_or_left_out(tmp_path):
    found = read(tmp_path, "a.csv", "question,answer,id\nq,a,k\n", text_column="answer")
    assert found == [Document("k", "a", questions=("q",))]
    found = read(tmp_path, "b.csv", "id,q_en,a_en\nk,q,a\n", text_column="a_en", question_column="q_en")
    assert found == [Document("k", "a", questions=("q",))]
    text = "question,answer,doc_id,number,heading\nq1,a1,7,1,A\nq2,a2,7,2,B\n"
    by_line = read(tmp_path, "pairs.csv", text, id_column="", title_column="heading")
    assert [(one.id, one.text, one.questions) for one in by_line] == [("d0", "A a1", ("q1",)), ("d1", "B a2", ("q2",))]
    assert [one.id for one in read(tmp_path, "pairs.csv", text, id_column="number")] == ["1", "2"]
    text = '{"text": "a", "id": 1}\n{"text": "b", "id": 2, "head": "T"}\n'
    assert [one.text for one in read(tmp_path, "some.jsonl", text, title_column="head")] == ["a", "T b"]


def test_texts_of_other_tools_are_found_and_a_text_column_metadata_is_kept(tmp_path):
    for name in ("contents", "page_content", "body", "answer"):
        (document,) = read(tmp_path, "c.csv", f"id,{name},metadata\n7,a,kept\n")
        assert (document.id, document.text, document.metadata) == ("7", "a", {"metadata": "kept"})


def test_empty_columns_of_a_spreadsheet_are_left_out(tmp_path):
    assert read(tmp_path, "a.csv", "text,title,,\na,T,,\n") == [Document("2", "T a", {"title": "T"})]


def test_pairs_are_answers_with_their_known_questions(tmp_path):
    rows = "Query,Answer,title,lang,label\nhow,by card,Pay,en,1\nwith,by card,Pay,de,1\nwho,she,,en,1\nhow,it,,en,0\n"
    said = []
    first, *others = read(tmp_path, "faq.csv", rows, say=said.append)
    assert said == ["repeated answers with other metadata keep those of their first row: 1 row"]
    assert first == Document("d0", "Pay by card", {"title": "Pay", "lang": "en"}, ("how", "with"))
    assert others == [Document("d1", "she", {"lang": "en"}, ("who",)), Document("d2", "it", {"lang": "en"})]
    (found,) = read(tmp_path, "faq.csv", "question,answer,text\nq,a,t\n")
    assert found == Document("2", "t", {"question": "q", "answer": "a"})


@pytest.mark.parametrize("name", ["_id", "id", "doc_id", "DocID", "docno", "pid", "chunk_id", "document_id", "uuid"])
def test_ids_are_found_by_the_names_that_corpora_use(tmp_path, name):
    said = []
    found = read(tmp_path, "a.csv", f'{name},text\n0630,"one\nline"\n0187,two\n', say=said.append)
    assert (found, said) == ([Document("0630", "one\nline"), Document("0187", "two")], [])


def test_columns_of_ids_and_titles_can_be_named(tmp_path):
    text, said = "doc_id,pid,Head,text\na,1,T,x\na,2,,y\n", []
    found = read(tmp_path, "a.csv", text, title_column="head")
    assert found == [Document("1", "T x", {"doc_id": "a", "title": "T"}), Document("2", "y", {"doc_id": "a"})]
    assert [d.id for d in read(tmp_path, "a.csv", text, id_column="", say=said.append)] == ["2", "3"]
    assert said == ["the corpus has no column of ids: its texts are numbered; name yours with id_column"]


def test_lists_of_questions_are_known_ones_and_other_lists_and_objects_are_named(tmp_path):
    said = []
    row = {"id": 1, "text": "a", "Questions": ["how", " ", "why"], "tags": ["x"], "metadata": {"deep": {"n": 1}}}
    found = read(tmp_path, "a.jsonl", "".join(json.dumps(row | {"id": n}) + "\n" for n in (1, 2)), say=said.append)
    assert found == [Document(name, "a", questions=("how", "why")) for name in ("1", "2")]
    assert [line.split()[0] for line in said] == ["'tags'", "'deep'"]
    found = read(tmp_path, "b.jsonl", '{"question": "q", "answer": "a", "questions": ["p"], "id": 1}')
    assert found == [Document("1", "a", questions=("q", "p"))]


def test_tags_of_html_in_texts_are_reported(tmp_path):
    said = []
    (found,) = read(tmp_path, "a.json", '{"articles": [{"id": 1, "body": "<p>Pay here.</p>"}]}', say=said.append)
    assert found.text == "<p>Pay here.</p>"
    assert said == ["texts begin with tags of HTML, which are kept; of .html files they are left out"]
    read(tmp_path, "b.csv", "question,answer\nq,<p>Pay here.</p>\n", say=said.append)
    assert said[1:] == said[:1]


def test_squad_has_the_ids_that_evaluation_gives(tmp_path):
    file = small_squad.write_squad(tmp_path) / "train-v1.1.json"
    paragraphs = list(read_corpus(file))
    assert [d.metadata["title"] for d in paragraphs] == ["Cats", "Cats", "Dogs", "Birds", "Fish"]
    records = registry.read(file)
    assert [(d.id, d.text) for d in paragraphs] == [*zip(records.candidate_ids, records.candidates, strict=True)]
    for pool in POOLS:
        records, found = reqa.from_squad(file, pool), list(read_corpus(file, pool=pool))
        assert [(d.id, d.text) for d in found] == [*zip(records.candidate_ids, records.candidates, strict=True)]
        assert {d.text: d.metadata["title"] for d in found}["Dogs bark."] == "Dogs"


def test_documents_come_one_at_a_time(tmp_path):
    path = written(tmp_path / "a.jsonl", "".join(json.dumps({"text": f"t{n}"}) + "\n" for n in range(100)) + "broken\n")
    documents = read_corpus(path)
    assert [d.text for d in itertools.islice(documents, 100)] == [f"t{n}" for n in range(100)]
    check_refusal(lambda: next(documents), "line 101", "column 1")
    check_refusal(lambda: read_corpus(tmp_path / "none.txt"), "no such file or folder")
