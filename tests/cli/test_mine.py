import functools
import json

import numpy as np
import pytest
from helpers import written
from small_squad import regular
from tiny_bert import tiny_recipe

import endx_jax
from endx_jax.data.formats import read
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


def test_bm25_and_a_model_rank_together_by_the_model_s_fusion(tmp_path, trained_workdir, pairs_csv, mine):
    for name, flags in {"both": ["--bm25"], "model": []}.items():
        mine(f"--data={pairs_csv}", *flags, f"--workdir={trained_workdir}", f"--output={tmp_path / name}")
    source = json.loads((tmp_path / "both" / "mining.json").read_text())["source"]
    assert source["name"].endswith(" and BM25")
    assert source["hybrid"].startswith("dense + ")
    assert negatives(tmp_path / "both") != negatives(tmp_path / "model")


def test_options_reach_the_miner(tmp_path, pairs_csv, mine):
    options = ("--questions=6", "--negatives=2", "--ranks=3-20", "--relative-margin=0.1")
    mine(f"--data={pairs_csv}", "--bm25", *options, f"--output={tmp_path}/out")
    found = negatives(tmp_path / "out")
    assert len({query for query, _, _ in found}) <= 6
    assert max(sum(query == other for other, _, _ in found) for query, _, _ in found) == 2
    assert all(3 <= int(rank) <= 20 for _, _, rank in found)
    settings = json.loads((tmp_path / "out" / "mining.json").read_text())["settings"]
    assert settings["margin"] == {"absolute": None, "relative": 0.1}


def test_mined_rows_are_returned_and_messages_can_be_silenced(tmp_path, pairs_csv, mine, capsys):
    with silenced():
        mined = endx_jax.mine(str(pairs_csv), tmp_path / "out", bm25=True, negatives=2)
    assert capsys.readouterr().out == ""
    assert sum(map(len, mined.negatives)) == len(table(tmp_path / "out"))
    printed = mine(f"--data={pairs_csv}", "--bm25", "--negatives=2", f"--output={tmp_path / 'cli'}").out
    assert printed.startswith("60 questions and ")
    assert table(tmp_path / "cli") == table(tmp_path / "out")


@pytest.mark.slow
def test_teachers_doubt_some_of_what_bm25_finds_and_scores_are_written_and_distilled(
    tmp_path, tiny_bert, trained_workdir, pair_workdir, pairs_csv, mine
):
    rules = (f"--data={pairs_csv}", "--bm25", "--negatives=3")
    said = mine(*rules, "--strata", f"--score-with={pair_workdir}", f"--output={tmp_path}/all").out
    assert f"--config=distill --config.data.path={tmp_path}/all\n" in said
    about = json.loads((tmp_path / "all" / "mining.json").read_text())
    assert (about["score_with"], about["strata"]) == (str(pair_workdir), True)
    for name, teacher in (("dual", trained_workdir), ("pair", pair_workdir)):
        mine(*rules, f"--teacher={teacher}", f"--output={tmp_path / name}")
        about = json.loads((tmp_path / name / "mining.json").read_text())
        assert about["dropped"]["teacher"] > 0
        assert about["teacher"] == str(teacher)
    records = read(tmp_path / "all")
    score = load_pair_scorer(pair_workdir)(records.questions, records.candidates)
    pairs = [(question, row) for question, own in enumerate(records.scores) for row in own]
    assert len(pairs) > 2 * len(records.questions)
    written = [records.scores[question][row] for question, row in pairs]
    np.testing.assert_allclose(written, score(np.asarray(pairs)), rtol=1e-4, atol=1e-4)
    config = tiny_recipe(tiny_bert, tmp_path / "all")
    config.data.hard_negatives, config.train.steps = 2, 2
    config.objective.distillation.loss = "listwise_kl"
    run(config, tmp_path / "run")
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count('"distillation_loss"') == 2


def test_rows_that_are_not_valid_can_be_skipped(tmp_path, mine):
    (tmp_path / "x.csv").write_text("question;answer\n" + "".join(f"cat {n};cats {n}\n" for n in range(9)) + "cat 9;\n")
    said = mine(f"--data={tmp_path}/x.csv", "--skip-invalid", "--bm25", f"--output={tmp_path}/out").out
    assert "9 questions and 9 candidates" in said
