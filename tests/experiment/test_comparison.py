import dataclasses
import json

import numpy as np
import pytest
from helpers import written
from refusals import check_refusal

from endx_jax.experiment import comparison
from endx_jax.experiment.comparison import SystemResults, compare_systems, read_per_question
from endx_jax.experiment.config import resolve
from endx_jax.metrics.significance import FEWEST
from endx_jax.ranking.evaluate import evaluate_scores
from endx_jax.ranking.trec import write_qrels, write_system

# Sixty questions: the second is better on forty, worse on twenty.
FIRST = {f"q{n}": 0.25 for n in range(60)}
SECOND = {f"q{n}": 0.5 if n < 40 else 0.0 for n in reversed(range(60))}
FEW = {f"q{n}": 0.25 for n in range(29)}


def write(folder, name, values, of_group=0, **more):
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for n, (question, value) in enumerate(values.items()):
        group = {"group": f"g{int(question[1:]) // of_group}"} if of_group else {}
        lines.append({"id": question, "question": n, "ranks": [1.0], "mrr": value, "p@1": 0.0, **more, **group})
    written(folder / f"{name}.per_question.jsonl", lines)


def write_results(folder, *evaluations, **more):
    about = {"direction": "question_to_answer", "metrics": {}}
    entries = [{"pool": pool, "system": system, "candidates": count, **about} for pool, system, count in evaluations]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps({"evaluations": entries, **more}))


@pytest.fixture
def runs(tmp_path):
    """A workdir with two pools, and a folder of `endx evaluate` with one."""
    a, b = tmp_path / "a", tmp_path / "b"
    write(a / "evaluation" / "test", "trained", FIRST)
    for name, value in (("bm25", 0.5), ("untrained", 0.25)):
        write(a / "evaluation" / "test", name, dict.fromkeys(FEW, value))
    write(a / "evaluation" / "test" / "answers-at-least-8", "trained", {"q1": 1 / 3, "q2": 1.0})
    write_results(a, ("all", "trained", 30), ("answers>=8", "trained", 30))
    write(b, "trained", SECOND, extra=1.0)
    write_results(b, ("all", "trained", 30))
    return a, b


def test_the_table_of_two_runs(runs, tmp_path, endx):
    output = tmp_path / "compared.json"
    lines = endx("compare", *runs, f"--output={output}").out.splitlines()
    assert lines[0] == f"first:  {runs[0]}, trained, pool all"
    assert lines[2] == "60 questions, the same for both"
    found = json.loads(output.read_text())
    assert found["questions"] == 60
    assert [row["measure"] for row in found["measures"]] == ["mrr", "p@1"]  # what both have
    mrr, nothing = found["measures"]
    assert (mrr["first"], mrr["second"], mrr["difference"]) == pytest.approx((0.25, 1 / 3, 1 / 12))
    assert (mrr["better"], mrr["worse"]) == (40, 20)
    # All differences are equal but for their signs: of 60 tosses of a coin, at least 40, or at most 20, are heads.
    assert mrr["p"] == pytest.approx(0.0135, abs=0.005)
    assert mrr["low"] < 1 / 12 < mrr["high"]
    assert (nothing["difference"], nothing["p"]) == (0, 1)
    columns = next(line for line in lines if line.startswith("mrr")).split()
    assert columns[1:4] == ["0.2500", "0.3333", "+0.0833"]
    assert columns[-2:] == ["40", "20"]


def test_two_systems_of_one_run(runs, tmp_path, endx):
    output = tmp_path / "new" / "compared.json"
    said = endx("compare", runs[0], runs[0], "--systems=bm25,untrained", f"--output={output}").out
    assert "-0.2500" in said
    assert "fewer than 30 questions: no interval" in said
    for row in json.loads(output.read_text())["measures"]:
        assert row["low"] is row["high"] is row["p"] is None
        assert row["second"] - row["first"] == pytest.approx(row["difference"], abs=1e-9)


def test_the_settings_in_which_two_runs_differ_are_named(runs, tmp_path, endx):
    for run, rate in zip(runs, (2e-5, 5e-5), strict=True):
        changed = {"optimizer": {"learning_rate": rate}, "train": {"log_every": int(1e6 * rate)}}
        settings = resolve({"objective": {}, **changed})
        (run / "config.json").write_text(json.dumps(settings.as_dict()))
    output = tmp_path / "compared.json"
    said = endx("compare", runs[0] / "evaluation/test/trained.per_question.jsonl", runs[1], f"--output={output}").out
    assert said.endswith("The settings of the runs differ: optimizer.learning_rate: 2e-05 -> 5e-05.\n")
    assert json.loads(output.read_text())["settings"] == ["optimizer.learning_rate: 2e-05 -> 5e-05"]


def test_groups_of_questions_are_resampled_on_request(tmp_path, endx):
    arguments = [tmp_path / "a", tmp_path / "b", f"--output={tmp_path / 'out.json'}"]
    said = ("fewer than 30 groups of questions: no interval", "bootstrap over 30 groups of questions")
    for of_group, line in zip((3, 2), said, strict=True):
        for name, values in (("a", FIRST), ("b", SECOND)):
            write(tmp_path / name, "trained", values, of_group)
            write_results(tmp_path / name, ("all", "trained", 30))
        assert line in endx("compare", *arguments, "--clusters").out
    clustered = json.loads((tmp_path / "out.json").read_text())
    endx("compare", *arguments)
    single = json.loads((tmp_path / "out.json").read_text())
    assert (clustered["clustered"], single["clustered"]) == (True, False)
    assert [row["measure"] for row in clustered["measures"]] == ["mrr", "p@1"]  # `group` is no measure
    assert clustered["measures"][0]["difference"] == single["measures"][0]["difference"]
    # Twenty of thirty groups are better, and forty of sixty questions.
    assert clustered["measures"][0]["p"] > 0.05 > single["measures"][0]["p"]
    write(tmp_path / "b", "trained", FIRST)
    error = endx("compare", tmp_path / "b", tmp_path / "a", "--clusters", status=2).err
    assert "its questions have no groups" in error


def test_groups_are_those_of_the_first_runs_questions():
    questions, draw = tuple(f"q{n}" for n in range(60)), np.random.default_rng(0)
    first, second = (
        SystemResults("x", questions, ("mrr",), values, groups=tuple(f"g{n // 2}" for n in range(60)))
        for values in draw.random((2, 60, 1))
    )
    order = draw.permutation(60)
    names, groups = (tuple(np.array(one)[order].tolist()) for one in (questions, second.groups))
    shuffled = dataclasses.replace(second, question_ids=names, values=second.values[order], groups=groups)
    found, expected = (compare_systems(first, one, clustered=True).rows for one in (shuffled, second))
    assert found == expected


def test_questions_of_few_articles_are_grouped_by_answer(tmp_path):
    file = tmp_path / "trained.per_question.jsonl"
    questions = [f"q {n}" for n in range(FEWEST)]
    file.write_text("".join(json.dumps({"id": one, "group": "article", "mrr": 1.0}) + "\n" for one in questions))
    assert read_per_question(file).clusters == ("article",) * FEWEST
    half = FEWEST // 2
    qrels = [(n % 2, 2) for n in range(half)] + [(3,)] * half
    write_qrels(tmp_path / "qrels.trec", questions, ["a", "b", "c", "d"], qrels)
    assert read_per_question(file).clusters == ("c",) * half + ("d",) * half  # of two right ones the more frequent one
    text = file.read_text().splitlines()
    file.write_text("".join(line.replace('"article"', f'"article {n}"') + "\n" for n, line in enumerate(text)))
    assert len(set(read_per_question(file).clusters)) == FEWEST
    (tmp_path / "qrels.trec").write_text("q 0 a 1\nq a 1\n")
    check_refusal(lambda: read_per_question(file), "line 2", "3 columns")


def test_a_pool_and_a_file_can_be_named(runs):
    few = read_per_question(runs[0], "trained", "answers>=8")
    assert (few.question_ids, few.candidates) == (("q1", "q2"), 30)
    np.testing.assert_array_equal(few.values, [[1 / 3, 0], [1, 0]])
    assert read_per_question(runs[0], "trained", "all").question_ids == tuple(FIRST)  # the first pool, by its name
    assert read_per_question(runs[1] / "trained.per_question.jsonl").candidates is None


def test_a_suite_has_the_metrics_that_all_of_its_sets_have(tmp_path):
    write(tmp_path / "a", "trained", {"q": 0.5}, extra=1.0)
    write(tmp_path / "b", "trained", {"q": 1.0})
    (tmp_path / "results.json").write_text(json.dumps({"sets": ["a", "b"]}))
    found = read_per_question(tmp_path)
    assert (found.metrics, found.question_ids) == (("mrr", "p@1"), ("a/q", "b/q"))
    np.testing.assert_array_equal(found.values, [[0.5, 0], [1, 0]])


def test_mistakes_and_damaged_results_of_a_suite_are_one_line(runs, monkeypatch, endx):
    monkeypatch.chdir(runs[0].parent)
    for arguments, message in (
        (["a", "b", "--systems=trainde"], "there are bm25, trained, untrained; did you mean 'trained'"),
        (["a", "b", "--systems=x,y,z"], "give one name"),
        (["a", "b", "--pool=nothing"], "run endx evaluate first"),
    ):
        assert message in endx("compare", *arguments, status=2).err
    for sets, message in (
        ([], "'sets' is empty; evaluate the suite again"),
        ([1], "a name in 'sets' must be a string"),
        ("mats", "'sets' must be a list"),
        (["mats"], "mats: no such file or folder"),
    ):
        write_results(runs[0], sets=sets)
        assert message in endx("compare", "a", "a", status=2).err


def trec(path, ranked, tag="x"):
    """Writes a run of (candidate, score) lists by question, worst first: scores order it, not lines or ranks."""
    rows = [(one, *pair) for one, pairs in ranked.items() for pair in reversed(pairs)]
    path.write_text("".join(f"{question} Q0 {name} 1 {score!r} {tag}\n" for question, name, score in rows))
    return path


@pytest.fixture
def judged(tmp_path):
    path = written(tmp_path / "judged.qrels", "q1 0 a 1\nq1 0 b 2\nq1 0 c 0\nq2 0 a 1\nq3 0 q3 1\n")
    return path


def test_a_run_of_any_tool_is_measured_by_hand(tmp_path, judged, endx):
    # q1: b and the wrong c are tied at the top, so b has rank 1.5; a is not listed. q2: a has rank 3. q3 is missing.
    # In the other run q2's own document is not ranked for it; q3's own is right.
    other = trec(tmp_path / "other.txt", {"q1": [("b", 7.0), ("c", 7.0)], "q2": [("b", 3e9), ("c", 3e9 - 1), ("a", 1)]})
    ranked = {"q1": [("b", 2), ("a", 1)], "q2": [("q2", 2), ("a", 1)], "q3": [("q3", 1)], "q9": [("a", 1)]}
    best = trec(tmp_path / "best.txt", ranked)
    (tmp_path / "config.json").write_text("[]  // of another program")
    said = endx("compare", other, best, f"--qrels={judged}", f"--output={tmp_path / 'out.json'}").out
    found = {row["measure"]: row for row in json.loads((tmp_path / "out.json").read_text())["measures"]}
    assert found["mrr"]["first"] == pytest.approx((1 / 1.5 + 0 + 0) / 3)  # the shorter run has two candidates
    assert (found["mrr"]["second"], found["hit@1"]["second"]) == (1, 1)
    assert found["recall@2"]["first"] == pytest.approx(0.5 / 3)
    ideal = 2 + 1 / np.log2(3)
    assert found["map"]["first"] == pytest.approx((1 / 1.5 / 2) / 3)
    assert set(found) == {"mrr", "p@1", "hit@1", "recall@1", "recall@2", "map"}  # no measure needs more than two
    counted = "candidates a question, of which 2 count; "
    assert f"{other}: up to 3 {counted}1 of 3 questions, such as 'q3', are missing" in said
    assert f"{best}: up to 2 {counted}1 questions, such as 'q9', have no right" in said
    deep = {"q1": [("b", 20.0), ("c", 20.0)] + [(f"w{n}", -n) for n in range(9)]}
    graded = comparison.read_pair([trec(tmp_path / "deep.txt", deep)] * 2, ["x"] * 2, judgements=judged)[0]
    # The tied rank 1.5 of the grade 2.
    assert graded.values[:, graded.metrics.index("ndcg@10")] == pytest.approx([2 / np.log2(2.5) / ideal, 0, 0])


def test_a_run_of_another_tool_beside_an_evaluation_has_its_measures(tmp_path, endx):
    draw = np.random.default_rng(0)
    questions, names = [f"q {n}" for n in range(40)], [f"d{n}" for n in range(150)]
    scores = draw.integers(9, size=(40, 150))
    qrels = [sorted(draw.choice(150, size=3, replace=False).tolist()) for _ in questions]
    gains = draw.integers(1, 4, size=(40, 3)).tolist()
    np.put_along_axis(scores, np.array(qrels), draw.integers(7, 10, size=(40, 3)), 1)  # so that right ones are tied
    evaluation = evaluate_scores(lambda start, stop: scores[start:stop], qrels, candidates=150, gains=gains, depth=150)
    write_qrels(tmp_path / "qrels.trec", questions, names, qrels, gains)
    write_system(tmp_path, "trained", questions, names, evaluation)
    ours = tmp_path / "trained.per_question.jsonl"
    expected = read_per_question(ours)
    first, second, _ = comparison.read_pair([ours, tmp_path / "trained.run.trec"], ["trained"] * 2)
    assert first.metrics == second.metrics == expected.metrics
    assert first.answers == expected.answers
    np.testing.assert_allclose(first.values, second.values)
    np.testing.assert_allclose(second.values, expected.values, rtol=1e-6)
    said = endx("compare", tmp_path / "trained.run.trec", tmp_path, "--clusters").out
    assert "+0.0000" in said
    assert "40 questions, the same for both" in said


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ("q1 Q0 a 1 0.5\n", "line 1: 5 columns in place of 6: question Q0 candidate rank score tag"),
        ("q1 Q0 a 1 0.5 x\nq1 Q0 a 2 0.4 x\n", "line 2: 'a' must occur once for 'q1'"),
        ("q1 Q0 a 1 high x\n", "line 1: 'a' must occur once for 'q1' and have a finite score; it has 'high'"),
        ("q1 Q0 a 1 nan x\n", "it has 'nan'"),
        ("1 Q0 a 1 0.5 x\n", "no question id, such as '1', is in"),
        ("q1 Q0 17 1 0.5 x\n", "no candidate id, such as '17', is in"),
        ("", "the file is empty"),
    ],
)
def test_what_does_not_match_in_a_run_is_one_line(tmp_path, judged, endx, run, message):
    good, bad = trec(tmp_path / "good.txt", {"q1": [("a", 1)]}), tmp_path / "bad.txt"
    bad.write_text(run)
    error = endx("compare", good, bad, f"--qrels={judged}", status=2).err
    assert message in error
    assert "bad.txt" in error
    if run:
        assert "name the file of right candidates by qrels=FILE" in endx("compare", good, bad, status=2).err


def test_judgements_without_a_right_candidate_are_refused_as_such(tmp_path, endx):
    run, judgements = trec(tmp_path / "run.txt", {"q1": [("a", 1)]}), tmp_path / "judged.qrels"
    judgements.write_text("q1 0 a 0\nq1 0 b -1\n")
    error = endx("compare", run, run, f"--qrels={judgements}", status=2).err
    assert f"{judgements}: no grade is above 0, so no candidate is right" in error
