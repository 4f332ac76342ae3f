"""The data of the papers' tables, and from a row to its runs: what is given, budgets, whose runs are taken, costs."""

import dataclasses
import pathlib
import types

import pytest
from helpers import one_line_error, refused
from made_runs import finish

from endx_jax.experiment.config import resolve
from endx_jax.planning.chips import CHIPS
from endx_jax.ranking.evaluate import MEASURES
from reproduction import cost
from reproduction import runs as module
from reproduction.figures import FIGURES
from reproduction.rows import KINDS
from reproduction.runs import Options, make, plan_of, trained
from reproduction.tables import papers

OUT = pathlib.Path("out")
ROW = papers().row("endx-table2/Dual-GRUs")
ROWS = {row.name: row for table in papers().tables.values() for row in table.rows}
# What rows have beside the measures of a ranking: counts, answer matches, and the average precision of RR's Table 7.
OTHERS = {"ap", "accuracy@5", "accuracy@20", "accuracy@100", "questions", "paragraphs"} | {
    f"{split}_{what}" for split in ("train", "test") for what in ("questions", "answers", "rows")
}
DATA = {about.get("given", name): "somewhere" for name, about in papers().data.items()}


def row(name):
    return papers().row(name)


def test_a_whole_row_is_its_recipe_with_the_papers_seeds():
    options = Options(OUT, weights={"google-bert/bert-base-uncased": "bert"})
    plan = plan_of(row("endx-table2/ENDX-GRUs"), options)
    config = plan.config(7, options)
    assert (config.objective.name, config.model.encoder) == ("endx", "gru")
    assert (config.seed, config.data.path, config.model.pretrained) == (7, "reqa/squad", "bert")
    assert (plan.seeds, plan.differs) == (10, "")
    assert plan.workdir(7) == OUT / "endx-table2" / "ENDX-GRUs" / "full" / "seed7"


def test_a_budget_scales_the_steps_of_the_form_and_says_how_it_differs():
    options = Options(OUT, data={"squad": "folder"}, budget=30)
    plan = plan_of(row("endx-table2/Dual-LSTMs"), options)
    config = plan.config(0, options)
    assert papers().forms["new-dual"]["steps"] == 80
    assert (config.train.steps, config.train.epochs) == (40, 0.0)  # half of the table's 60 minutes
    assert (config.data.path, config.model.encoder) == ("folder", "lstm")
    assert "128 pairs a step" in plan.differs
    assert plan.seeds == 1
    assert plan.workdir(0).parent.name == "30-minutes"


def test_a_row_of_another_takes_its_runs():
    options = Options(OUT)
    assert plan_of(row("endx-table4/ENDX-BERTs"), options) == plan_of(row("endx-table2/ENDX-BERTs"), options)
    short = Options(OUT, budget=60)
    assert plan_of(row("endx-table5/ENDX-BERTs"), short) == plan_of(row("endx-table2/ENDX-GRUs"), short)


def test_missing_data_and_forms_are_named():
    refused("needs --data msmarco=PATH", Options(OUT).place_of, "msmarco")
    refused("needs --data squad=PATH", Options(OUT).place_of, "squad-folder")
    with one_line_error("void when shortened: at temperature 0.05"):
        plan_of(row("endx-table5/ENDX-without-q|q"), Options(OUT, budget=60))
    refused("no shortened form", plan_of, row("endx-table3/NQ/Dual-RNNs"), Options(OUT, budget=60))


def test_a_row_after_another_starts_from_its_run_of_the_same_seed():
    options = Options(OUT, data={"squad": "folder"})
    config = plan_of(row("endx-study/GRU/ENDX, sharp, from Dual"), options).config(3, options)
    dual = OUT.absolute() / "endx-study" / "GRU-Dual" / "full" / "seed3"
    assert (config.model.init_from, config.seed) == (str(dual), 3)


def test_the_train_file_alone_is_taken_from_a_folder(tmp_path):
    for name in ("train-v1.1.json", "dev-v1.1.json"):
        (tmp_path / name).write_text('{"data": []}')
    options = Options(OUT, data={"squad": str(tmp_path)})
    assert options.place_of("squad-train") == str(tmp_path / "train-v1.1.json")


def test_data_with_splits_in_one_folder_are_reported_on_there():
    options = Options(OUT, data={"msmarco": "folder"})
    data = plan_of(row("dong-table5/large/SDE"), options).config(0, options)["data"]
    assert (data.path, data.split, data.test_path, data.test_split) == ("folder", "train", "folder", "dev")


@pytest.fixture
def options(tmp_path, monkeypatch):
    """A shortened run, whose pretrained folder is not looked at."""
    monkeypatch.setattr(module, "build_model", lambda settings: types.SimpleNamespace(settings=settings))
    return Options(tmp_path, data={"squad": "folder"}, budget=60, seeds=2)


def run_that_finishes(mrr):
    """What takes the place of a training run: it leaves finished workdirs, each better by a hundredth."""
    made = []

    def run(config, workdir: pathlib.Path):
        finish(workdir, config, mrr + 0.01 * len(made))
        made.append(workdir)

    return run, made


def test_runs_are_made_once_and_then_found(options, monkeypatch):
    run, made = run_that_finishes(0.5)
    monkeypatch.setattr(module, "run", run)
    first = trained(ROW, options)
    assert first.values == (pytest.approx((50.0, 49.0, 45.0)), pytest.approx((51.0, 50.0, 46.0)))
    assert [path.name for path in made] == ["seed0", "seed1"]
    assert trained(ROW, options).values == first.values
    assert len(made) == 2
    facts = first.facts["runs"]
    assert [(fact["seed"], fact["steps"], fact["batch"]) for fact in facts] == [(0, 40, 128), (1, 40, 128)]
    assert facts[0]["manifest"]["data_sha256"] == "ab" * 32


def test_nothing_begins_when_the_budget_is_used_up(options, monkeypatch):
    run, made = run_that_finishes(0.5)
    monkeypatch.setattr(module, "run", run)
    now = iter((0.0, 2.0))
    monkeypatch.setattr(module.time, "monotonic", lambda: next(now))
    found = trained(ROW, dataclasses.replace(options, deadline=1.0))
    assert (len(found.values), len(made)) == (1, 1)
    assert found.why == "the budget is used up; the same command resumes"


def test_a_run_is_found_whose_hard_negatives_its_data_decided(options):
    plan = plan_of(ROW, options)
    config = plan.config(0, options)
    assert config.data.hard_negatives == -1
    config.data.hard_negatives = 0  # as a run records it
    finish(plan.workdir(0), config, 0.5)
    assert make(plan, 0, options) == plan.workdir(0)


def test_a_run_with_other_settings_is_refused(options):
    plan = plan_of(ROW, options)
    config = plan.config(0, options)
    config.train.steps = 99
    finish(plan.workdir(0), config, 0.5)
    refused("other settings .train.steps: 99 -> 80.", make, plan, 0, options)


def test_rows_without_training_say_so(tmp_path):
    table = papers().tables["endx-table2"]
    shown = cost.text(table, table.chosen(["BM25", "USE-QA"]), Options(tmp_path), CHIPS["A100"]).splitlines()
    assert shown[1] == "BM25: nothing is trained"
    assert shown[2].startswith("USE-QA: Universal Sentence Encoder's weights are TensorFlow graphs")


@pytest.mark.slow
def test_a_table_of_costs_is_printed(reproduce):
    shown = reproduce("cost", "endx-table2", "Dual-GRUs", "BM25", "--chip=H100").out
    assert "endx-table2: Answer retrieval on ReQA SQuAD, on one H100" in shown
    assert "Dual-GRUs    10      ?    100" in shown
    assert "BM25: nothing is trained" in shown


def test_every_table_of_the_papers_is_there():
    assert {name for name in papers().tables if "-table" in name} == {
        *(f"endx-table{n}" for n in (1, 2, 3, 4, 5, 6)),
        *(f"dong-table{n}" for n in (2, 3, 4, 5)),
        *(f"rr-table{n}" for n in range(1, 11)),
        *(f"yu-table{n}" for n in (2, 3)),
    }


def test_some_numbers_as_the_papers_print_them():
    assert ROWS["endx-table2/ENDX-BERTs"].expected == (73.43, 63.94, 85.18)
    assert ROWS["endx-table3/NewsQA/Dual-GRUs"].expected == (26.21, 16.86, 37.16)
    assert ROWS["endx-table5/ENDX-without-a|q"].expected == (55.87, 41.39, 74.14)
    assert ROWS["dong-table2/TriviaQA/ADE-SPL"].expected == (38.17, 50.3)
    assert ROWS["dong-table4/large/ADE-SPL"].expected == (68.06, 80.25, 86.23)
    assert ROWS["rr-table6/ELMo with IDF"].expected == (44.9, 56.3, 68.1, 76.0, 83.3, 89.8)
    assert ROWS["yu-table2/Cross-VAEs"].expected == (62.29, 55.60, 70.05)


def test_rows_are_whole():
    for name, row in ROWS.items():
        assert len(row.expected) in (0, len(row.measures)), name
        assert set(row.measures) <= set(MEASURES) | OTHERS, name
        assert row.quoted or row.kind in KINDS, name
        assert not row.data or row.data in papers().data, name
        assert not row.of or row.of in ROWS, name
        # A budget gives a row as many steps as the row whose runs it takes.
        assert not row.of or papers().tables[row.table].minutes == papers().tables[ROWS[row.of].table].minutes, name
        assert not row.against or f"{row.table}/{row.against}" in ROWS, name


def test_every_trained_row_and_every_shortened_one_is_a_config():
    whole, short = (Options(pathlib.Path("out"), data=DATA, budget=budget) for budget in (0.0, 30.0))
    trained = [row for row in ROWS.values() if row.recipe or row.of]
    shortened = [row for row in ROWS.values() if "form" in row.short or "of" in row.short]
    assert (len(trained) > 100, len(shortened) > 20) == (True, True)
    for row in trained:
        settings = resolve(plan_of(row, whole).config(3, whole))
        assert (settings.seed, settings.data.path) == (3, "somewhere"), row.name
    for row in shortened:
        plan = plan_of(row, short)
        assert resolve(plan.config(0, short)).data.validation_fraction == 0, row.name
        assert plan.differs, row.name


def test_figures_are_known_and_drawn_from_rows():
    assert not set(papers().figures) & set(papers().tables)  # `reproduce` takes both names
    assert set(papers().figures) == set(FIGURES)
    for figure in papers().figures.values():
        assert set(figure.runs) <= set(ROWS)


def test_an_unknown_row_is_refused_with_the_nearest():
    refused("a row of endx-table2 is 'Dual-GRU', .*Dual-GRUs", papers().tables["endx-table2"].chosen, ["Dual-GRU"])
