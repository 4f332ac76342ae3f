"""Every figure from tiny data to its files, and the arithmetic behind it."""

import dataclasses
import json
import zlib

import jax
import numpy as np
import pytest
from refusals import check_refusal

from endx_jax.data.sets.records import RetrievalSet
from endx_jax.experiment.config import resolve
from endx_jax.experiment.model import build_model
from endx_jax.experiment.saved_model import save_description
from endx_jax.experiment.workdir import write_config
from endx_jax.methods.endx import EndxSettings
from reproduction import figures
from reproduction.figures import FigureSource, Study, dong, endx, make, rr, yu
from reproduction.figures.drawing import save
from reproduction.figures.study import with_at_least
from reproduction.outcome import Outcome
from reproduction.runs import Options
from reproduction.tables import papers

pytest.importorskip("matplotlib", reason="matplotlib is not installed")
pytest.importorskip("sklearn", reason="scikit-learn is not installed")

# Figures that are made of embeddings alone.
EMBEDDED = ("dong-figure2", "endx-figure2", "endx-figure3", "endx-figure4", "yu-figure2")
SOURCES = [FigureSource("near", "near"), FigureSource("far", "far")]
QUESTIONS = ["where is the cat", "who", "what is in the mat of the dog"]
ANSWERS = ["the mat", "a dog on the mat sat", "it"]


class TinyStudy(Study):
    """A study of sources `near` and `far`: near embeds a text close to the answer it names, far at random."""

    def __init__(self, sources, answers=12, questions=6):
        super().__init__(sources)
        # The first question of each answer n is also right for answer n + 1.
        pairs = [(f"{n}: question {k}", f"answer {n}") for n in range(answers) for k in range(questions)]
        pairs += [(f"{n}: question 0", f"answer {n + 1}") for n in range(answers - 1)]
        self.records = RetrievalSet.from_pairs(pairs)

    def _embed(self, source, side):
        def row(text):
            topic = int(text.split()[1]) if side == "answer" else int(text.partition(":")[0])
            noise = np.random.default_rng(zlib.crc32(f"{source.place} {side} {text}".encode())).normal(size=8)
            own = np.random.default_rng(topic).normal(size=8) if source.place == "near" else 0
            return own + 0.3 * noise

        texts = self.records.questions if side == "question" else self.records.candidates
        return np.asarray([row(text) for text in texts], np.float32)


@pytest.fixture
def tiny(monkeypatch):
    """A study of sources that have no runs, and so no teachers."""
    monkeypatch.setattr(endx, "teacher_embeddings", lambda *_: None)
    return TinyStudy(SOURCES)


@pytest.mark.parametrize("name", EMBEDDED)
def test_a_figure_and_its_numbers_are_written_and_equal_numbers_give_equal_files(name, tiny, tmp_path):
    data = make(name, tiny, tmp_path / "drawn")
    written = json.loads((tmp_path / "drawn.json").read_text())
    assert written["figure"] == name
    assert written["sources"] == [["near", "near"], ["far", "far"]]
    assert written["data"] == data
    assert (tmp_path / "drawn.png").read_bytes().startswith(b"\x89PNG")
    if name == EMBEDDED[0]:  # all are saved alike
        save(figures.FIGURES[name].draw, data, tmp_path / "again")
        for ending in ("png", "svg"):
            assert (tmp_path / f"again.{ending}").read_bytes() == (tmp_path / f"drawn.{ending}").read_bytes()


def test_near_embeddings_are_measured_as_nearer(tiny):
    near, far = endx.one_answer(tiny)["models"]
    assert near["spread"] < 0.5 < far["spread"]
    near, far = endx.similarity(tiny)["panels"]
    assert near["auc"] > 0.9 > far["auc"]
    near, far = yu.shared_answer(tiny)["models"]
    assert near["cosine_to_answer"] > 0.5 > far["cosine_to_answer"]


def test_minimum_questions_ranks_in_both_pools():
    asked = endx.MOST - 1
    found = endx.minimum_questions(TinyStudy(SOURCES, answers=6, questions=asked))
    assert found["minimum"] == [*range(1, endx.MOST + 1)]
    assert found["answers"] == [6] * asked + [5]  # all but the first have one question more
    assert found["questions"] == [6 * asked] * asked + [5 * asked + 1]
    near, far = found["models"]
    assert near["whole"][0] == near["cut"][0] > far["whole"][0]
    assert far["cut"][-1] >= far["whole"][-1]


def test_similarity_of_blocks():
    cosines = np.array([[1, 0.9, 0.1, 0.2], [0.9, 1, 0.3, 0.4], [0.1, 0.3, 1, 0.3], [0.2, 0.4, 0.3, 1]])
    found = endx.blocks(cosines, np.array([7, 7, 3, 3]))
    assert found["same"] == pytest.approx((0.9 + 0.3) / 2)
    assert found["other"] == pytest.approx((0.1 + 0.2 + 0.3 + 0.4) / 4)
    # 0.9 beats all four; 0.3 beats 0.1 and 0.2 and ties with 0.3.
    assert found["auc"] == pytest.approx((4 + 2.5) / 8)


def test_similarity_shows_answers_of_different_articles():
    count, questions = endx.ANSWERS + 1, endx.QUESTIONS + 1
    groups = np.repeat(np.arange(count), questions)
    articles = [f"article {max(answer, 1)}" for answer in groups]  # answers 0 and 1 are of one article
    for seed in range(5):
        found = groups[endx.sample(groups, articles, seed=seed)].reshape(-1, endx.QUESTIONS)
        assert (found == found[:, :1]).all()
        assert {max(answer, 1) for answer in found[:, 0]} == {*range(1, count)}
    assert len(endx.sample(groups, None)) == endx.ANSWERS * endx.QUESTIONS


def test_answers_with_many_questions():
    records = RetrievalSet.from_pairs([("0", "b"), ("0", "c"), ("1", "b"), ("2", "c"), ("3", "b")])
    assert with_at_least(records, 3) == {records.candidates.index("b"): [0, 1, 3]}
    check_refusal(lambda: with_at_least(records, 4), "4 questions", "is 3")


def test_svd_keeps_inner_products_of_rows_in_a_plane():
    angles = np.radians([10, 30, 80])
    places, shares = yu.svd(np.stack([np.cos(angles), np.sin(angles), 0 * angles], axis=1))
    np.testing.assert_allclose(places @ places.T, np.cos(angles[:, None] - angles), atol=1e-12)
    assert shares.sum() == pytest.approx(1)
    assert shares[0] > shares[1]
    assert (places.mean(axis=0) >= 0).all()


def made_run(folder, mrr=0.0, log=""):
    """A folder with what figures of results read of a run."""
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "metrics.jsonl").write_text(log)
    about = {"pool": "answers", "direction": "question_to_answer", "questions": 4, "candidates": 3}
    entries = [{"system": system, **about, "metrics": {"mrr": mrr}} for system in ("bm25", "trained")]
    (folder / "results.json").write_text(json.dumps({"evaluations": entries}))
    return str(folder)


def test_gains_are_in_per_cent_of_the_first_run(tmp_path):
    runs = {"ade": 0.4} | {f"sde{n}": 0.5 for n in range(8)}
    sources = [FigureSource(name, made_run(tmp_path / name, mrr)) for name, mrr in runs.items()]
    data = make("dong-figure3", Study(sources), tmp_path / "drawn")
    assert data["gains"] == {name: [pytest.approx(25)] for name in list(runs)[1:]}
    about = {"pool": "answers", "direction": "question_to_answer", "questions": 4, "candidates": 3}
    assert data["evaluations"] == [about]
    check_refusal(lambda: dong.gains(Study(sources[:1])), "above 0", "and another run")
    check_refusal(lambda: dong.gains(Study(SOURCES[1:])), "far is no workdir of a")


def test_runs_are_drawn_over_the_size_of_their_towers(trained_workdir, tmp_path):
    sources = [FigureSource("a", str(trained_workdir)), FigureSource("b", str(trained_workdir))]
    lines = make("dong-figure4", Study(sources), tmp_path / "drawn")["lines"]
    assert lines["a"] == lines["b"]
    assert 1000 < lines["a"][0]["parameters"] < 100_000


def test_curves_are_those_of_the_seeds_of_a_name(tmp_path):
    sources = []
    for seed, at in (("a", {10: 0.1, 20: 0.3}), ("b", {10: 0.2, 20: 0.5, 30: 0.6})):
        lines = [{"step": 5, "loss": 1.0}, *({"step": step, "validation/mrr": mrr} for step, mrr in at.items())]
        log = "".join(json.dumps(line) + "\n" for line in lines)
        sources.append(FigureSource("dual", made_run(tmp_path / seed, log=log)))
    data = make("endx-study-curves", Study(sources), tmp_path / "drawn")
    assert data["lines"]["dual"] == {"steps": [10, 20], "mean": [15, 40], "low": [10, 30], "high": [20, 50]}
    without = FigureSource("none", made_run(tmp_path / "c", log='{"step": 5, "loss": 1.0}\n'))
    check_refusal(lambda: endx.curves(Study([without])), "none: ", "has no validation in metrics.jsonl")


def test_precision_recall_is_of_measured_layers_on_one_set(tmp_path):
    def write(name, candidates):
        found = {"test": {"metrics": {"ap": 0.6}, "curve": {"recall": [0.4, 1.0], "precision": [0.9, 0.25]}}}
        sets = {"test": {"questions": 3, "candidates": candidates, "right": 4}}
        (tmp_path / name).mkdir()
        (tmp_path / name / "layers.json").write_text(json.dumps({"sets": sets, "systems": {"tokens + idf": found}}))
        return FigureSource(name, f"{tmp_path / name}#tokens + idf")

    one, other = write("one", 2), write("other", 9)
    (model,) = make("rr-figure4", Study([one]), tmp_path / "drawn")["models"]
    assert model == {"name": "one", "average_precision": 0.6, "recall": [0.4, 1.0], "precision": [0.9, 0.25]}
    check_refusal(lambda: rr.precision_recall(Study([one, other])), "other was measured on")
    check_refusal(lambda: rr.precision_recall(Study([FigureSource("mine", f"{tmp_path / 'one'}#token")])), "'token'")
    check_refusal(lambda: rr.precision_recall(Study([FigureSource("mine", "runs/a")])), "layers.json")


def test_a_run_is_shown_on_its_own_test_split(trained_workdir):
    source = FigureSource("run", str(trained_workdir))
    study = Study([source])
    questions, answers = study.embed(source, "question"), study.embed(source, "answer")
    assert len(questions) == len(study.records.questions) > 5
    assert len(answers) == len(study.records.candidates)
    np.testing.assert_allclose(np.linalg.norm(questions, axis=1), 1, atol=1e-5)


def test_a_figure_is_drawn_from_the_runs_that_there_are(tmp_path, monkeypatch, capsys):
    runs = {"Dual-GRUs": ("folder", "another seed"), "ELMo": ("folder#token table",)}

    def outcome(row, options):
        differs = {"differs": "other layers"} if row.row == "ELMo" else {}
        return Outcome(row, why="none", runs=runs.get(row.row, ()), **differs)

    monkeypatch.setattr(figures, "outcome_of", outcome)
    figure, options = papers().figures["yu-figure2"], Options(tmp_path, budget=20)
    assert figures.sources_of(figure, options) == [("Dual-GRUs", "folder")]
    assert "left out yu-table2/Cross-VAEs: none" in capsys.readouterr().out
    (source, *_) = figures.sources_of(papers().figures["rr-figure4"], options)
    assert source.name == "ELMo: all-MiniLM-L6-v2"
    runs.clear()
    check_refusal(lambda: figures.sources_of(figure, options), "none of its rows has a")


def test_a_teacher_sees_each_question_beside_its_own_answer(tmp_path, bert_config, monkeypatch):
    bert_config.model.encoder, bert_config.model.new_encoder = "gru", {"width": 8, "layers": 1}
    bert_config.objective = dataclasses.asdict(EndxSettings(cross_heads=2))
    model, draw = build_model(resolve(bert_config)), np.random.default_rng(0)
    write_config(tmp_path, model.settings, {"sha256": ""})
    save_description(tmp_path, model)
    params = jax.tree.map(lambda p: draw.normal(0, 1, p.shape).astype(np.float32), model.abstract_params)
    monkeypatch.setattr(endx, "best_params", lambda *_: (params, 0))
    source, times = FigureSource("run", str(tmp_path)), endx.TOGETHER
    every = endx.teacher_embeddings(source, QUESTIONS * times, ANSWERS * times)
    assert every.shape == (3 * times, 8)
    alone = endx.teacher_embeddings(source, QUESTIONS[2:], ANSWERS[2:])
    np.testing.assert_allclose(every[2], alone[0], atol=1e-5)
    beside_another = endx.teacher_embeddings(source, QUESTIONS[2:], ANSWERS[1:2])
    assert np.abs(beside_another - alone).max() > 1e-3
