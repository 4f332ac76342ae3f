import pytest

from endx_jax.planning.chips import CHIPS
from reproduction import cost
from reproduction.runs import Options
from reproduction.tables import papers


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
