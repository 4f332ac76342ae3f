import json

import numpy as np
import pytest
from tiny_bert import write_tiny_bert


def test_forms_agree_and_their_work_is_counted(start, pairs_csv, tmp_path):
    file, bert = tmp_path / "result.json", write_tiny_bert(tmp_path / "bert", num_hidden_layers=1)
    sizes = ("--batch=16", "--length=24", "--row=48", "--repeats=1")
    start("padding", f"--data={pairs_csv}", f"--model={bert}", *sizes, f"--json={file}")
    rows = {row["form"]: row for row in json.loads(file.read_text())["results"]}
    assert [row["right"] for row in rows.values()] == ["yes", "yes", "yes", "no"]
    assert rows["padded"]["to_padded"] == 1.0
    assert rows["padded"]["attention_rows"] == "16 x 24"
    assert rows["segments"]["attention_rows"].endswith(" x 48")
    assert all(row["tokens_to_real"] >= 1.0 and row["cells_to_needed"] >= 1.0 for row in rows.values())
    assert rows["buckets"]["tokens_to_real"] <= rows["padded"]["tokens_to_real"]


def test_first_fit_takes_the_longest_first(script):
    # 5 | 4 1 | 3 2: the 1 fits beside the 4 alone, for the 2 has gone to the 3.
    rows, starts, count = script("padding").first_fit(np.asarray([1, 3, 5, 2, 4]), 5)
    assert rows.tolist() == [1, 2, 0, 2, 1]
    assert starts.tolist() == [4, 0, 0, 3, 0]
    assert count == 3


@pytest.mark.parametrize("other", [(1.0, [2.001]), (1.001, [2.0]), (np.nan, [2.0]), (1.0, [np.nan])])
def test_stops_when_values_or_gradients_differ(script, other):
    check = script("padding").check_same_work
    check({"padded": (1.0, [2.0]), "buckets": (1.00005, [2.00005])})
    with pytest.raises(SystemExit, match="buckets and padded differ by more than 0.0001"):
        check({"padded": (1.0, [2.0]), "buckets": other})
