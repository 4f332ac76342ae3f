"""Which data a config names, and what its questions are ranked against."""

import dataclasses
import functools
import gzip
import pathlib
import re

import pytest
from helpers import one_line_error, written
from refusals import check_refusal
from small_squad import regular, write_squad

from endx_jax.data import reqa
from endx_jax.data.formats import registry, reqa_dataset
from endx_jax.data.settings import DataSettings
from endx_jax.data.sources import find_data, pools, read_splits
from endx_jax.methods.config import load_config
from reproduction.counts import counts_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """SQuAD as its authors publish it, one file packed."""
    folder = tmp_path_factory.mktemp("squad")
    (folder / "train-v1.1.json").write_text(regular(20))
    (folder / "dev-v1.1.json.gz").write_bytes(gzip.compress(regular(3, first=19).encode()))
    return folder


def read(path, **changes):
    return read_splits(DataSettings(**({"path": str(path), "pool": "answers", "validation_fraction": 0.5} | changes)))


def test_a_folder_of_squad_is_trained_on_and_its_dev_file_reported(folder):
    found = read(folder)
    assert found.test == reqa.from_squad(folder / "dev-v1.1.json.gz", "sentences")
    assert found == read(folder / "train-v1.1.json", test_path=str(folder / "dev-v1.1.json.gz"))
    assert len(read(folder, max_test_questions=3).test.questions) == 3
    trained = found.train.questions + found.validation.questions
    assert not set(trained) & set(found.test.questions)
    assert len(trained) == 38  # 40, but for the two of article 19, which are reported on
    assert not set(found.train.groups) & set(found.validation.groups)


def test_the_prepared_set_is_the_same_as_the_folder(folder, tmp_path, monkeypatch):
    reqa_dataset.prepare("reqa/squad", source=folder, data_dir=tmp_path)
    for name in ("ensure", "prepare", "read_prepared", "summary"):
        monkeypatch.setattr(reqa_dataset, name, functools.partial(getattr(reqa_dataset, name), data_dir=tmp_path))
    assert read("reqa/squad") == read(folder)
    assert read("reqa/squad", pool="paragraphs") == read(folder, pool="paragraphs")
    alone = read("reqa/squad:validation", test_path=str(folder / "train-v1.1.json"))
    assert len(alone.train.questions + alone.validation.questions) == 4
    for pool in ("answers", "sentences"):
        assert counts_of("reqa/squad", pool) == counts_of(str(folder / "train-v1.1.json"), pool)


@pytest.mark.parametrize(("primary", "size"), [("answers", 6), ("sentences", 9)])
def test_questions_after_reqa_are_ranked_against_both_pools_the_chosen_one_first(folder, primary, size):
    test = read(folder).test
    found = pools(test, DataSettings(pool=primary))
    assert next(iter(found)) == primary
    assert len(found[primary].candidates) == size
    assert set(found["answers"].candidates) < set(found["sentences"].candidates)
    for part in found.values():
        assert part.questions == test.questions
        right = [{part.candidates[n] for n in row} for row in part.qrels]
        assert right == [{test.candidates[n] for n in row} for row in test.qrels]


OWN_DATA = """
from endx_jax.data import RetrievalSet

def get_config():
    return {"data": {"path": "numbers"}}

def numbers(settings):
    count = settings.question_length
    return RetrievalSet.from_pairs((f"what is {n}?", f"{n}") for n in range(count))

DATA = {"numbers": numbers}
"""


def test_a_config_file_can_make_its_data(tmp_path):
    (tmp_path / "own.py").write_text(OWN_DATA)
    config = load_config(str(tmp_path / "own.py"))
    settings = DataSettings(**config.data, question_length=40, validation_fraction=0.3, test_fraction=0.3)
    splits = read_splits(settings)
    assert sum(len(part.questions) for part in (splits.train, splits.validation, splits.test)) == 40
    with one_line_error("numbers is not reading-comprehension data .* but made; leave data.pool empty"):
        find_data("numbers", dataclasses.replace(settings, pool="answers"), strict=True)


def test_questions_held_out_one_by_one_may_share_their_answers_with_the_train_set(tmp_path):
    file = written(tmp_path / "pairs.csv", "question,answer\n" + "".join(f"q{n},a{n % 20}\n" for n in range(200)))
    settings = DataSettings(path=str(file), validation_fraction=0.0, test_fraction=0.4)
    by = {unit: read_splits(dataclasses.replace(settings, held_out_by=unit)) for unit in ("answers", "questions")}
    assert not set(by["answers"].train.candidates) & set(by["answers"].test.candidates)
    assert set(by["questions"].train.candidates) & set(by["questions"].test.candidates)
    assert not set(by["questions"].train.questions) & set(by["questions"].test.questions)


@pytest.mark.parametrize("unit", ["answers", "questions"])
@pytest.mark.parametrize(("validation", "test"), [(-0.1, 0.0), (0.0, 1.0), (0.5, 0.5), (float("nan"), 0.0)])
def test_shares_that_leave_nothing_for_training_are_refused(pairs_csv, unit, validation, test):
    shares = {"validation_fraction": validation, "test_fraction": test}
    named = [f"data.{name}" for name, share in shares.items() if validation == test or not 0 <= share < 1]
    check_refusal(lambda: read(pairs_csv, pool="", held_out_by=unit, **shares), *named)


def test_a_pool_is_for_whichever_of_two_paths_has_paragraphs(folder, pairs_csv):
    found = read(pairs_csv, test_path=str(folder / "dev-v1.1.json.gz"))
    assert found.test == reqa.from_squad(folder / "dev-v1.1.json.gz", "sentences")
    assert set(found.train.questions) <= set(registry.read(pairs_csv).questions)
    found = read_splits(DataSettings(path=str(pairs_csv))).test
    assert pools(found, DataSettings()) == {"all": found}


def write_documents(folder) -> pathlib.Path:
    rows = [{"title": f"T{n}", "body": f"This is the text of number {n}. More of {n}."} for n in range(20)]
    return written(folder / "docs.jsonl", rows)


def test_documents_are_texts_and_questions_of_a_test_set_are_ranked(folder, tmp_path):
    dev, documents = str(folder / "dev-v1.1.json.gz"), write_documents(tmp_path)
    settings = DataSettings(path=str(documents), format="documents", answer_column="body", test_path=dev)
    found = read_splits(dataclasses.replace(settings, pool="answers"))
    assert found.test == reqa.from_squad(dev, "sentences")
    sets = found.train, found.validation
    assert {text for part in sets for text in part.questions} == {f"T{n}" for n in range(20)}
    passages = {f"T{n} This is the text of number {n}. More of {n}." for n in range(20)}
    assert {text for part in sets for text in part.candidates} == passages
    documents.write_text(documents.read_text().replace("title", "name"))
    untitled = read_splits(dataclasses.replace(settings, test_path="")).train.questions
    assert all(re.fullmatch(r"This is the text of number \d+\.", question) for question in untitled)


def test_whole_paragraphs_are_retrieved_for_every_question_apart(tmp_path):
    found = read(write_squad(tmp_path), pool="paragraphs", validation_fraction=0.0)
    assert found.train.questions == ("who sleeps?", "who eats?", "who barks?", "who eats?", "¿quién come?")
    assert found.train.qrels == ((0,), (0,), (1,), (1,), (2,))
    assert found.train.question_ids == ("c0", "c1", "d0", "d1", "b0")
    assert found.test.candidates == ("Bees fly. They sting.", "Ants walk.")
    assert pools(found.test, DataSettings(pool="paragraphs")) == {"paragraphs": found.test}


def test_the_train_file_of_squad_s_folder_is_read_with_other_test_data(folder, tmp_path):
    other = write_squad(tmp_path / "other") / "dev-v1.1.json"
    found = read(folder, pool="paragraphs", test_path=str(other))
    assert found == read(folder / "train-v1.1.json", pool="paragraphs", test_path=str(other))


def test_both_files_of_squad_are_one_set_that_is_split_by_question(folder, pairs_csv):
    whole = {"pool": "paragraphs", "merge": True, "test_fraction": 0.3}
    found = read(folder, **whole, validation_fraction=0.3)
    parts = (found.train, found.validation, found.test)
    assert sum(len(part.questions) for part in parts) == 22 * 2  # one article is in both files, under its ids
    assert all(part.questions for part in parts)
    assert set(found.train.candidates) & set(found.test.candidates)  # a paragraph's questions are parted
    assert {found.test.candidates[n] for (n,) in found.test.qrels} == set(found.test.candidates)
    assert read(folder, **whole, validation_fraction=0.1).test == found.test
    mixed = read(folder, pool="paragraphs", merge=True, mixture=((str(pairs_csv), 1.0),))
    assert {number for row in mixed.train.sources for number in row.values()} == {(0,), (1,)}


def test_the_other_direction_asks_with_answers(tmp_path):
    (tmp_path / "pairs.csv").write_text("question,answer\na?,x\nb?,y\nc?,x\nb?,x\n")
    records = registry.read(tmp_path / "pairs.csv")
    back = records.reversed()
    assert (back.questions, back.candidates) == (("x", "y"), ("a?", "b?", "c?"))
    assert back.qrels == ((0, 1, 2), (1,))
    assert back.question_ids == records.candidate_ids
    alone = records.subset([2])
    among = {"candidates": ("z", *alone.candidates), "candidate_ids": ("d9", "d0"), "qrels": ((1,),)}
    assert dataclasses.replace(alone, **among).reversed().questions == ("x",)


def test_a_mixture_is_trained_on_without_what_is_held_out(folder, tmp_path):
    plain = read(folder)
    asked = plain.train.questions[0], plain.validation.questions[0], plain.test.questions[0]
    rows = [*((question, f"answer to {question}") for question in asked), ("Fish?", "Fish number 1.")]
    (tmp_path / "more.csv").write_text("question,answer\n" + "".join(f"{q},{a}\n" for q, a in rows))
    mixed = read(folder, mixture=((str(tmp_path / "more.csv"), 0.5),))
    assert (mixed.validation, mixed.test) == (plain.validation, plain.test)
    assert mixed.train.questions == (*plain.train.questions, "Fish?")
    assert [mixed.train.candidates[n] for n in mixed.train.qrels[0]][-1] == f"answer to {asked[0]}"
    new = mixed.train.qrels[0][-1], mixed.train.qrels[-1][0]
    own = [dict.fromkeys(right, (0,)) for right in plain.train.qrels]
    assert mixed.train.sources == (own[0] | {new[0]: (1,)}, *own[1:], {new[1]: (1,)})
    assert mixed.train.sha256 != dataclasses.replace(mixed.train, sources=None).sha256
    other = dataclasses.replace(plain.train, questions=("another?", *plain.train.questions[1:]))
    assert plain.train.sha256 != other.sha256
    assert len(plain.train.sha256) == 64


def test_splits_have_the_language_of_all_texts(tmp_path):
    rows = ["¿Cómo abro una cuenta?,Para abrir una cuenta es necesario el documento y no se paga por la tarjeta."]
    rows += [f"¿Dónde está la sucursal {n}?,Sucursal {n} Nord." for n in range(30)]
    file = written(tmp_path / "faq.csv", "\n".join(["question,answer", *rows]))
    splits = read_splits(DataSettings(path=str(file)))
    assert {part.text_language for part in (splits.train, splits.validation, splits.test)} == {"spanish"}
    assert pools(splits.test, DataSettings(path=str(file))).primary.text_language == "spanish"
    given = DataSettings(path=str(file), language="german")
    assert pools(read_splits(given).test, given).primary.text_language == "german"
