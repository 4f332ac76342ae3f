from endx_jax.metrics import TIE_RULE
from endx_jax.retrieval.tables import format_table


def test_layout_best_values_and_the_rule_for_ties():
    rows = {
        "bm25": {"mrr": 0.7606, "hit@1": 0.69},
        "untrained": {"mrr": 0.7254},
        "trained": {"mrr": 0.7606, "hit@1": 0.5},
    }
    table, note = format_table(rows, ["mrr", "hit@1"]).split("\n* ")
    assert table.splitlines() == [
        "system       mrr   hit@1",
        "bm25       0.761*  0.690*",
        "untrained  0.725       -",
        "trained    0.761*  0.500",
    ]
    assert note.replace("\n", " ") == f"best of its column. {TIE_RULE}"
