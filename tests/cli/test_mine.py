import functools
import json

import numpy as np
import pytest
from helpers import refused, written
from small_squad import regular
from tiny_bert import tiny_recipe

import endx_jax
from endx_jax.data.formats import read
from endx_jax.data.settings import DataSettings
from endx_jax.data.sources import pools, read_splits
from endx_jax.experiment.run import run
from endx_jax.experiment.saved_model import load_pair_scorer
from endx_jax.parallel.console import silenced


@pytest.fixture
def mine(endx):
    return functools.partial(endx, "mine")


def table(folder):
    """The lines of the negatives: question, candidate, score, rank."""
    return [line.split("\t") for line in (folder / "negatives" / "train.tsv").read_text().splitlines()[1:]]


def negatives(folder):
    """What is written but for the scores."""
    return [(query, document, rank) for query, document, _, rank in table(folder)]


def test_bm25_negatives_of_squad_keep_its_articles(tmp_path, mine):
    squad = written(tmp_path / "squad.json", regular(3))
    said = mine(f"--data={squad}", "--pool=sentences", "--bm25", f"--output={tmp_path / 'out'}").out
    assert "12 hard negatives for 6 questions (0 without any), from ranks 1 to 100 of bm25; excluded: 6 right\n" in said
    assert f"--config.data.path={tmp_path / 'out'} --config.data.hard_negatives=1" in said
    records = read(tmp_path / "out", split="train")
    wrong = [records.candidates[row] for row in records.hard_negatives[records.questions.index("Cats 1?")]]
    assert wrong == ["Cats number 0.", "Cats number 2."]
    assert records.groups == ("T0", "T0", "T1", "T1", "T2", "T2")
    assert not any("Nothing" in text for text in records.candidates)  # right for nobody, and nobody's negative
    about = json.loads((tmp_path / "out" / "mining.json").read_text())
    assert about["source"]["name"] == "bm25"
    assert about["data"] == {"path": str(squad), "pool": "sentences", "split": "train"}


def test_the_trainer_reads_them_and_reports_on_another_file(tmp_path, mine):
    train, dev = tmp_path / "train.json", tmp_path / "dev.json"
    train.write_text(regular(3))
    dev.write_text(regular(2, first=10))
    mine(f"--data={train}", "--pool=sentences", "--bm25", f"--output={tmp_path / 'out'}")
    settings = DataSettings(path=str(tmp_path / "out"), test_path=str(dev), pool="answers", validation_fraction=0.0)
    splits = read_splits(settings)
    assert [len(wrong) for wrong in splits.train.hard_negatives] == [2] * 6
    assert len(splits.train.candidates) == 6
    sizes = {name: len(pool.candidates) for name, pool in pools(splits.test, settings).items()}
    assert sizes == {"answers": 4, "sentences": 6}


def test_options_reach_the_miner(tmp_path, pairs_csv, mine):
    options = ("--questions=6", "--negatives=2", "--ranks=3-20", "--relative-margin=0.1")
    mine(f"--data={pairs_csv}", "--bm25", *options, f"--output={tmp_path}/out")
    found = negatives(tmp_path / "out")
    assert len({query for query, _, _ in found}) <= 6
    assert max(sum(query == other for other, _, _ in found) for query, _, _ in found) == 2
    assert all(3 <= int(rank) <= 20 for _, _, rank in found)
    settings = json.loads((tmp_path / "out" / "mining.json").read_text())["settings"]
    assert settings["margin"] == {"absolute": None, "relative": 0.1}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "set exactly one of bm25=True"),
        (("--bm25", "--model=x"), "set exactly one of bm25=True"),
        (("--bm25", "--strata"), "strata=True needs the model of score_with"),
        (("--bm25", "--questions=-1"), "give a number of questions"),
        (("--bm25", "--ranks=5-2"), "ranks 5 to 2 are empty"),
        (("--bm25", "--data=missing.csv"), "and as 'missing.csv': give one of them"),
    ],
)
def test_contradictory_options_are_refused_in_one_line_and_write_nothing(tmp_path, pairs_csv, mine, arguments, reason):
    assert reason in mine(f"--data={pairs_csv}", f"--output={tmp_path}/out", *arguments, status=2).err
    assert not any(tmp_path.iterdir())


def test_an_output_that_is_a_file_is_refused(pairs_csv):
    refused("^output=.*pairs.csv is a file", endx_jax.mine, pairs_csv, pairs_csv, bm25=True)


def test_mined_rows_are_returned_and_messages_can_be_silenced(tmp_path, pairs_csv, mine, capsys):
    with silenced():
        mined = endx_jax.mine(str(pairs_csv), tmp_path / "out", bm25=True, negatives=2)
    assert capsys.readouterr().out == ""
    assert sum(map(len, mined.negatives)) == len(table(tmp_path / "out"))
    printed = mine(f"--data={pairs_csv}", "--bm25", "--negatives=2", f"--output={tmp_path / 'cli'}").out
    assert printed.startswith("60 questions and ")
    assert table(tmp_path / "cli") == table(tmp_path / "out")


@pytest.mark.slow
def test_a_teacher_doubts_some_of_what_bm25_finds(tmp_path, trained_workdir, pair_workdir, pairs_csv, mine):
    rules = (f"--data={pairs_csv}", "--bm25", "--negatives=5")
    mine(*rules, f"--output={tmp_path}/all")
    for name, teacher in (("dual", trained_workdir), ("pair", pair_workdir)):
        mine(*rules, f"--teacher={teacher}", f"--output={tmp_path / name}")
        about = json.loads((tmp_path / name / "mining.json").read_text())
        assert about["dropped"]["teacher"] > 0
        assert about["teacher"] == str(teacher)
        assert negatives(tmp_path / name) != negatives(tmp_path / "all")


def test_strata_spread_negatives_over_the_scores(tmp_path, bert_workdir, pairs_csv, mine):
    rules = (f"--data={pairs_csv}", "--bm25", "--ranks=1-30", "--negatives=2", f"--score-with={bert_workdir}")
    spread = {}
    for name, options in (("best", ()), ("strata", ("--strata",))):
        mine(*rules, *options, f"--output={tmp_path / name}")
        records = read(tmp_path / name)
        wrong = [[own[row] for row in rows] for own, rows in zip(records.scores, records.hard_negatives, strict=True)]
        spread[name] = np.mean([max(scores) - min(scores) for scores in wrong])
        assert json.loads((tmp_path / name / "mining.json").read_text())["strata"] == (name == "strata")
    assert spread["strata"] > 1.5 * spread["best"]


@pytest.mark.slow
def test_scores_of_a_pair_classifier_are_written_and_distilled(tmp_path, tiny_bert, pair_workdir, pairs_csv, mine):
    output = tmp_path / "mined"
    mine(f"--data={pairs_csv}", "--bm25", "--negatives=3", f"--score-with={pair_workdir}", f"--output={output}")
    assert json.loads((output / "mining.json").read_text())["score_with"] == str(pair_workdir)
    records = read(output)
    score = load_pair_scorer(pair_workdir)(records.questions, records.candidates)
    pairs = [(question, row) for question, own in enumerate(records.scores) for row in own]
    assert len(pairs) > 2 * len(records.questions)
    written = [records.scores[question][row] for question, row in pairs]
    np.testing.assert_allclose(written, score(np.asarray(pairs)), rtol=1e-4, atol=1e-4)
    config = tiny_recipe(tiny_bert, output)
    config.data.hard_negatives, config.train.steps = 2, 2
    config.objective.distillation.loss = "listwise_kl"
    run(config, tmp_path / "run")
    logged = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert logged.count('"distillation_loss"') == 2


@pytest.mark.parametrize(
    ("name", "text", "options", "message"),
    [
        ("x.csv", "asked,answer\nq,a\n", (), "name yours with data.question_column and data.answer_column"),
        ("x.csv", "question,answer\nq,\n", (), "line 2: 'answer' is empty; data.skip_invalid=True skips such rows"),
        ("x.csv", "question,answer\n ,a\n", (), "line 2: 'question' is empty; data.skip_invalid=True skips such rows"),
        ("x.csv", "question,answer\nq,a\n", ("--pool=answers",), "but columns; leave data.pool empty"),
        ("reqa/squad", None, (), "reqa/squad holds training and test data: set data.pool"),
    ],
)
def test_messages_name_the_settings_of_the_data(tmp_path, name, text, options, message, mine):
    if text is not None:
        (tmp_path / name).write_text(text)
        name = tmp_path / name
    assert message in mine(f"--data={name}", "--bm25", f"--output={tmp_path}/out", *options, status=2).err


def test_rows_that_are_not_valid_can_be_skipped(tmp_path, mine):
    (tmp_path / "x.csv").write_text("question;answer\n" + "".join(f"cat {n};cats {n}\n" for n in range(9)) + "cat 9;\n")
    said = mine(f"--data={tmp_path}/x.csv", "--skip-invalid", "--bm25", f"--output={tmp_path}/out").out
    assert "9 questions and 9 candidates" in said
