"""From a row to its runs: data and weights that are given, budgets, and whose runs are taken."""

import pathlib

from helpers import one_line_error

from reproduction.runs import Options, plan_of
from reproduction.tables import papers

OUT = pathlib.Path("out")


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
    with one_line_error("needs --data msmarco=PATH"):
        Options(OUT).place_of("msmarco")
    with one_line_error("needs --data squad=PATH"):
        Options(OUT).place_of("squad-folder")
    with one_line_error("void when shortened: at temperature 0.05"):
        plan_of(row("endx-table5/ENDX-without-q|q"), Options(OUT, budget=60))
    with one_line_error("no shortened form"):
        plan_of(row("endx-table3/NQ/Dual-RNNs"), Options(OUT, budget=60))


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
    data = plan_of(row("dong-table5/large/SDE"), Options(OUT, data={"msmarco": "folder"})).config(
        0, Options(OUT, data={"msmarco": "folder"})
    )["data"]
    assert (data.path, data.split, data.test_path, data.test_split) == ("folder", "train", "folder", "dev")
