import json

import pytest
from small_squad import write_squad

import endx_jax
from endx_jax.cli.entry import run_verb
from endx_jax.retrieval.index import Index


def test_without_data_it_repeats_the_runs_own_evaluation(trained_workdir, tmp_path, capsys):
    assert run_verb(["evaluate", f"--workdir={trained_workdir}", f"--output={tmp_path}"]) == 0
    assert "trained" in capsys.readouterr().out
    again = json.loads((tmp_path / "results.json").read_text())["systems"]
    first = json.loads((trained_workdir / "results.json").read_text())["systems"]
    assert again["bm25"] == first["bm25"]
    assert again["trained"] == pytest.approx(first["trained"], abs=1e-6)


def test_other_data_with_a_pretrained_model(tiny_bert, tmp_path, capsys):
    data = tmp_path / "mine.tsv"
    data.write_text("q\ta\nwhere is the cat\tthe mat\nwhere is the dog\tthe sofa\n")
    arguments = ["--model", str(tiny_bert), "--data", str(data), "--question-column=q", "--answer-column=a"]
    assert run_verb(["evaluate", *arguments, "--output", str(tmp_path / "out")]) == 0
    written = json.loads((tmp_path / "out" / "results.json").read_text())
    assert list(written["systems"]) == ["bm25", tiny_bert.name]
    assert written["evaluations"][0]["candidates"] == 2
    index = Index(tmp_path / "out" / "index")
    assert [document.text for _, document in index.snapshot.documents()] == ["the mat", "the sofa"]
    assert index.manifest.model == {"name": str(tiny_bert), "identity": endx_jax.load(tiny_bert).identity}
    run = (tmp_path / "out" / "bm25.run.trec").read_text().splitlines()
    assert run[0].split()[:4] == ["q0", "Q0", "d0", "1"]


@pytest.mark.parametrize(("pool", "candidates"), [(None, 2), ("answers", 2), ("sentences", 3)])
def test_squad_is_ranked_by_paragraphs_or_after_reqa(tiny_bert, tmp_path, pool, candidates):
    data = write_squad(tmp_path / "squad") / "dev-v1.1.json"
    arguments = [f"--model={tiny_bert}", f"--data={data}", f"--output={tmp_path / 'out'}"]
    assert run_verb(["evaluate", *arguments, *([f"--pool={pool}"] if pool else [])]) == 0
    (bm25, dense) = json.loads((tmp_path / "out" / "results.json").read_text())["evaluations"]
    assert bm25["pool"] == dense["pool"] == (pool or "all")
    assert dense["candidates"] == candidates


def test_it_needs_something_to_evaluate_and_something_to_evaluate_on(tiny_bert, capsys):
    with pytest.raises(SystemExit, match="2"):
        run_verb(["evaluate"])
    assert run_verb(["evaluate", f"--model={tiny_bert}"]) == 2
    assert "--model needs --data" in capsys.readouterr().err


def test_a_folder_without_a_run_is_refused(tmp_path, capsys):
    assert run_verb(["evaluate", f"--workdir={tmp_path}"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_best_of_a_dual_encoder_are_put_in_the_order_of_a_pair_classifier(
    trained_workdir, pair_workdir, tmp_path, capsys
):
    arguments = [f"--workdir={trained_workdir}", f"--rerank={pair_workdir}", "--top=3", f"--output={tmp_path}"]
    assert run_verb(["evaluate", *arguments]) == 0
    assert f"reranked: the best 3 of the row above, in the order of {pair_workdir}" in capsys.readouterr().out

    def best(system):
        lines = [line.split() for line in (tmp_path / f"{system}.run.trec").read_text().splitlines()]
        return [line[2] for line in lines if line[0] == lines[0][0]]

    before, after = best("trained"), best("reranked")
    assert set(before[:3]) == set(after[:3])
    assert before[3:] == after[3:]


def test_only_a_pair_classifier_can_re_rank(trained_workdir, tmp_path, capsys):
    arguments = [f"--workdir={trained_workdir}", f"--rerank={trained_workdir}", f"--output={tmp_path / 'out'}"]
    assert run_verb(["evaluate", *arguments]) == 2
    assert "takes one of objective.name=pair" in capsys.readouterr().err
