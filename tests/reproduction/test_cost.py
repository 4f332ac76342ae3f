import pytest

from endx_jax.planning.chips import CHIPS
from reproduction import __main__ as verb
from reproduction.cost import Costs
from reproduction.runs import Options
from reproduction.tables import papers


@pytest.fixture
def cost_of(tmp_path):
    return Costs(Options(tmp_path), CHIPS["A100"])


@pytest.mark.slow
def test_a_row_is_planned_by_its_recipe(cost_of):
    cost = cost_of(papers().row("endx-table2/Dual-GRUs"))
    assert cost.found.work.subject.model.settings.model.encoder == "gru"
    assert (cost.runs, cost.steps) == (10, 0)  # thirty epochs of data that are not here
    # Of the same system on other data nothing new is looked at.
    other = cost_of(papers().row("endx-table3/NQ/Dual-GRUs"))
    assert other.found is cost.found


def test_rows_without_training_say_so(cost_of):
    assert cost_of(papers().row("endx-table2/BM25")).why == "nothing is trained"
    assert "TensorFlow" in cost_of(papers().row("endx-table2/USE-QA")).why


@pytest.mark.slow
def test_the_verb_prints_a_table(capsys):
    verb.main(["cost", "endx-table2", "Dual-GRUs", "BM25", "--chip=H100"])
    shown = capsys.readouterr().out
    assert "endx-table2: Answer retrieval on ReQA SQuAD, on one H100" in shown
    assert "Dual-GRUs    10      ?    100" in shown
    assert "BM25: nothing is trained" in shown
