"""The papers' tables as data, and from a row to its runs: what is given, budgets, whose runs are taken, costs."""

import dataclasses
import pathlib
import types

import pytest
from made_runs import finish
from refusals import check_refusal

from endx_jax.experiment.config import resolve
from endx_jax.ranking.evaluate import MEASURES
from reproduction import runs as module
from reproduction.__main__ import _options, parser
from reproduction.figures import FIGURES
from reproduction.rows import KINDS
from reproduction.runs import Options, make, plan_of, trained
from reproduction.tables import papers

OUT = pathlib.Path("out")
ROWS = {row.name: row for table in papers().tables.values() for row in table.rows}
# What rows have beside the measures of a ranking: counts, answer matches, and the average precision of RR's Table 7.
OTHERS = {"ap", "accuracy@5", "accuracy@20", "accuracy@100", "questions", "paragraphs"} | {
    f"{split}_{what}" for split in ("train", "test") for what in ("questions", "answers", "rows")
}
SQUAD = {"squad": "folder"}
DATA = {about.get("given", name): "somewhere" for name, about in papers().data.items()}

# A row's name, options and seed; its workdir; and settings of its run.
PLANNED = [
    (
        "endx-table2/ENDX-GRUs", Options(OUT, weights={"google-bert/bert-base-uncased": "bert"}), 7,
        "out/endx-table2/ENDX-GRUs/full/seed7",
        {"objective.name": "endx", "model.encoder": "gru", "data.path": "reqa/squad", "model.pretrained": "bert"},
    ),
    (
        # Half of the table's 60 minutes, and so of the form's 80 steps.
        "endx-table2/Dual-LSTMs", Options(OUT, data=SQUAD, budget=30), 0,
        "out/endx-table2/Dual-LSTMs/30-minutes/seed0",
        {"train.steps": 40, "train.epochs": 0.0, "data.path": "folder", "model.encoder": "lstm"},
    ),
    (
        # A row after another starts from its run of the same seed.
        "endx-study/GRU/ENDX, sharp, from Dual", Options(OUT, data=SQUAD), 3,
        "out/endx-study/GRU-ENDX-sharp-from-Dual/full/seed3",
        {"model.init_from": str(OUT.absolute() / "endx-study" / "GRU-Dual" / "full" / "seed3")},
    ),
    (
        "dong-table5/large/SDE", Options(OUT, data={"msmarco": "folder"}), 0,
        "out/dong-table5/large-SDE/full/seed0",
        {"data.path": "folder", "data.split": "train", "data.test_path": "folder", "data.test_split": "dev"},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options", "seed", "workdir", "settings"), PLANNED, ids=lambda one: str(one)[:30])
def test_a_row_is_its_recipe_with_the_data_and_the_budget_that_are_given(name, options, seed, workdir, settings):
    plan = plan_of(ROWS[name], options)
    config = plan.config(seed, options)
    assert (config.seed, str(plan.workdir(seed))) == (seed, workdir)
    for path, value in settings.items():
        section, key = path.split(".")
        assert config[section][key] == value, path
    assert ("128 pairs a step" in plan.differs, plan.differs == "") == (bool(options.budget), not options.budget)
    assert plan.seeds == 1 or not options.budget


def test_a_row_of_another_takes_its_runs():
    whole, short = Options(OUT), Options(OUT, budget=60)
    assert plan_of(ROWS["endx-table2/ENDX-GRUs"], whole).seeds == 10
    assert plan_of(ROWS["endx-table4/ENDX-BERTs"], whole) == plan_of(ROWS["endx-table2/ENDX-BERTs"], whole)
    assert plan_of(ROWS["endx-table5/ENDX-BERTs"], short) == plan_of(ROWS["endx-table2/ENDX-GRUs"], short)


def test_what_is_missing_or_unknown_is_named():
    whole, short = Options(OUT), Options(OUT, budget=60)
    check_refusal(lambda: whole.place_of("msmarco"), "needs --data msmarco=PATH")
    check_refusal(lambda: whole.place_of("squad-folder"), "needs --data squad=PATH")
    check_refusal(lambda: plan_of(ROWS["endx-table5/ENDX-without-q|q"], short), "void when shortened")
    check_refusal(lambda: plan_of(ROWS["endx-table3/NQ/Dual-RNNs"], short), "no shortened form")
    check_refusal(lambda: papers().tables["endx-table2"].chosen(["Dual-GRU"]), "endx-table2 is 'Dual-GRU'", "Dual-GRUs")


def test_the_train_file_alone_is_taken_from_a_folder(tmp_path, monkeypatch):
    for name in ("train-v1.1.json", "dev-v1.1.json"):
        (tmp_path / name).write_text('{"data": []}')
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    for place in (tmp_path, f"~/{tmp_path.name}"):
        options = _options(parser().parse_args(["table", f"--data=squad={place}"]))
        assert options.place_of("squad-train") == str(tmp_path / "train-v1.1.json")
    monkeypatch.setattr(module, "open_data", lambda place: types.SimpleNamespace(parts=(f"{place}/train", "")))
    assert Options(OUT, data={"squad": "gs://bucket/squad"}).place_of("squad-train") == "gs://bucket/squad/train"


@pytest.fixture
def options(tmp_path, monkeypatch):
    """A shortened run, whose pretrained folder is not looked at."""
    monkeypatch.setattr(module, "build_model", lambda settings: types.SimpleNamespace(settings=settings))
    return Options(tmp_path, data=SQUAD, budget=60, seeds=2)


@pytest.fixture
def made(monkeypatch):
    """The workdirs of runs that take no time, each better by a hundredth."""
    found = []

    def run(config, workdir: pathlib.Path):
        finish(workdir, config, 0.5 + 0.01 * len(found))
        found.append(workdir)

    monkeypatch.setattr(module, "run", run)
    return found


def test_runs_are_made_once_and_then_found(options, made):
    row = ROWS["endx-table2/Dual-GRUs"]
    first = trained(row, options)
    assert first.values == (pytest.approx((50.0, 49.0, 45.0)), pytest.approx((51.0, 50.0, 46.0)))
    assert trained(row, options).values == first.values
    assert [path.name for path in made] == ["seed0", "seed1"]
    facts = first.facts["runs"]
    assert [(fact["seed"], fact["steps"], fact["batch"]) for fact in facts] == [(0, 40, 128), (1, 40, 128)]
    assert facts[0]["manifest"]["data_sha256"] == "ab" * 32


def test_nothing_begins_when_the_budget_is_used_up(options, made, monkeypatch):
    now = iter((0.0, 2.0))
    monkeypatch.setattr(module.time, "monotonic", lambda: next(now))
    found = trained(ROWS["endx-table2/Dual-GRUs"], dataclasses.replace(options, deadline=1.0))
    assert (len(found.values), len(made)) == (1, 1)
    assert found.why == "the budget is used up; the same command resumes"


def test_a_run_whose_hard_negatives_its_data_decided_is_found_and_one_with_other_settings_is_refused(options):
    plan = plan_of(ROWS["endx-table2/Dual-GRUs"], options)
    config = plan.config(0, options)
    assert config.data.hard_negatives == -1
    config.data.hard_negatives = 0  # as a run records it
    finish(plan.workdir(0), config, 0.5)
    assert make(plan, 0, options) == plan.workdir(0)
    config.train.steps = 99
    finish(plan.workdir(0), config, 0.5)
    check_refusal(lambda: make(plan, 0, options), "train.steps", "99 ->", "-> 80")


def test_costs_are_of_what_is_trained(reproduce):
    shown = reproduce("cost", "endx-table2", "BM25", "USE-QA", "--chip=A100").out
    assert "\nBM25: nothing is trained\n" in shown
    assert "\nUSE-QA: Universal Sentence Encoder's weights are TensorFlow graphs" in shown


@pytest.mark.slow
def test_a_table_of_costs_is_printed(reproduce):
    shown = reproduce("cost", "endx-table2", "Dual-GRUs", "--chip=H100").out
    assert "endx-table2: Answer retrieval on ReQA SQuAD, on one H100" in shown
    assert "Dual-GRUs    10      ?    100" in shown


def test_all_tables_and_figures_are_there_with_numbers_as_the_papers_print_them():
    counts = {"endx": range(1, 7), "dong": range(2, 6), "rr": range(1, 11), "yu": (2, 3)}
    tables = {f"{paper}-table{n}" for paper, numbers in counts.items() for n in numbers}
    assert {name for name in papers().tables if "-table" in name} == tables
    for name, expected in {
        "endx-table2/ENDX-BERTs": (73.43, 63.94, 85.18),
        "endx-table3/NewsQA/Dual-GRUs": (26.21, 16.86, 37.16),
        "endx-table5/ENDX-without-a|q": (55.87, 41.39, 74.14),
        "dong-table2/TriviaQA/ADE-SPL": (38.17, 50.3),
        "dong-table4/large/ADE-SPL": (68.06, 80.25, 86.23),
        "rr-table6/ELMo with IDF": (44.9, 56.3, 68.1, 76.0, 83.3, 89.8),
        "yu-table2/Cross-VAEs": (62.29, 55.60, 70.05),
    }.items():
        assert ROWS[name].expected == expected, name
    assert not set(papers().figures) & set(papers().tables)  # `reproduce` takes both names
    assert set(papers().figures) == set(FIGURES)
    assert all(set(figure.runs) <= set(ROWS) for figure in papers().figures.values())


def test_rows_are_whole():
    for name, row in ROWS.items():
        assert len(row.expected) in (0, len(row.measures)), name
        assert set(row.measures) <= set(MEASURES) | OTHERS, name
        assert row.quoted or row.kind in KINDS, name
        assert not row.data or row.data in papers().data, name
        # A budget gives a row as many steps as the row whose runs it takes.
        assert not row.of or papers().tables[row.table].minutes == papers().tables[ROWS[row.of].table].minutes, name
        assert not row.against or f"{row.table}/{row.against}" in ROWS, name


def test_every_trained_row_and_every_shortened_one_is_a_config_in_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    whole, short = (Options(OUT, data=DATA, budget=budget) for budget in (0.0, 30.0))
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
