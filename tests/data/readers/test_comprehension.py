import json

import pytest
from helpers import one_line_error
from small_mrqa import HEADER, asked, line
from small_squad import write_squad

from endx_jax.data import reqa
from endx_jax.data.corpus import read_corpus
from endx_jax.data.readers import comprehension

CONTEXT = "Bees fly. They sting."


@pytest.fixture
def mrqa_file(tmp_path):
    rows = [HEADER, line(CONTEXT, asked("b1", "what?", CONTEXT, ("sting",)))]
    (tmp_path / "bees.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "bees.jsonl"


def test_other_data_hold_no_paragraphs(pairs_csv):
    assert not comprehension.holds_paragraphs(str(pairs_csv))
    with one_line_error("pairs.csv: no reading-comprehension data but columns; known are squad, mrqa, natur"):
        comprehension.read(pairs_csv)


def test_files_of_several_formats_are_read_one_after_another(mrqa_file, tmp_path):
    dev = write_squad(tmp_path / "squad") / "dev-v1.1.json"
    found = comprehension.read_unmerged(str(dev), str(mrqa_file))
    assert found.questions == ("who flies?", "lost?", "who walks?", "what?")
    assert found.candidates == ("Bees fly. They sting.", "Ants walk.")
    # "Bees fly. They sting." of both is one candidate.
    assert found.qrels == ((0,), (0,), (1,), (0,))
    conversion = reqa.convert([dev, mrqa_file], "sentences")
    assert conversion.records.candidates == ("Bees fly.", "They sting.", "Ants walk.")
    assert conversion.homes == ("Bees", "Bees", "Ants")


@pytest.mark.parametrize("pool", ["", *reqa.POOLS])
def test_a_corpus_of_it_has_the_ids_that_its_questions_are_judged_by(mrqa_file, pool):
    records = reqa.read(mrqa_file, pool) if pool else comprehension.read(mrqa_file)
    found = list(read_corpus(mrqa_file, pool=pool))
    assert [document.id for document in found] == [*records.candidate_ids]
    assert [document.text for document in found] == [*records.candidates]
    assert {document.metadata["title"] for document in found} == {"context of b1"}
