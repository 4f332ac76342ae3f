import pytest

from endx_jax.data import RetrievalSet
from endx_jax.data.judged import Judged, read_judged
from endx_jax.errors import EndxError


def refusal(call) -> str:
    with pytest.raises(EndxError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_ms_marco_and_beir_are_judged_without_their_corpus(tmp_path):
    marco, beir = tmp_path / "marco", tmp_path / "beir"
    (beir / "qrels").mkdir(parents=True)
    marco.mkdir()
    (marco / "collection.tsv").touch()
    (marco / "queries.dev.tsv").write_text("1\tone\n2\ttwo\n3\tone\n")
    (marco / "qrels.dev.tsv").write_text("2 0 b 1\n1 0 a 1\n1 0 b 0\n2 0 c 1\n3 0 a 1\n")
    (beir / "corpus.jsonl").touch()
    queries = ['{"_id": "1", "text": "one"}', '{"_id": "2", "text": "two"}', '{"_id": "3", "text": "one"}']
    (beir / "queries.jsonl").write_text("\n".join(queries))
    qrels = "query-id\tcorpus-id\tscore\n2\tb\t1\n1\ta\t1\n1\tb\t0\n2\tc\t1\n2\tb\t1\n3\ta\t1\n"
    (beir / "qrels" / "dev.tsv").write_text(qrels)
    expected = Judged(("2", "1", "3"), ("two", "one", "one"), (("b", "c"), ("a",), ("a",)))
    assert read_judged(str(marco), "dev") == read_judged(str(beir), None) == expected
    (beir / "qrels" / "dev.tsv").write_text(qrels + "9\ta\t1\n")
    assert refusal(lambda: read_judged(str(beir), "dev")).endswith("dev.tsv, line 8: query '9' is not in queries.jsonl")


def test_any_set_is_judged_by_the_ids_of_its_candidates():
    records = RetrievalSet(("q", "r"), ("x", "y"), ((0, 1), (1,)), ("a", "b"), ("s0.0", "s1.3"))
    assert Judged.of_records(records) == Judged(("a", "b"), ("q", "r"), (("s0.0", "s1.3"), ("s1.3",)))
