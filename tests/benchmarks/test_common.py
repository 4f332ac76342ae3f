import json

import pytest


@pytest.fixture
def common(script):
    return script("common")


def test_cases_take_turns_and_the_warm_up_is_not_timed(common):
    calls = []
    cases = {name: lambda name=name: calls.append(name) for name in "ab"}
    seconds = common.alternate(cases, repeats=2, warmup=1)
    assert calls == ["a", "b"] * 3
    assert [len(seconds[name]) for name in "ab"] == [2, 2]


def test_a_table_has_the_columns_of_all_rows(common):
    rows = [{"who": "ours", "rate": 1234.5}, {"who": "theirs", "rate": 0.12345, "note": "x"}]
    assert common.table(rows).splitlines() == [
        "| who | rate | note |",
        "| --- | --- | --- |",
        "| ours | 1,234 |  |",
        "| theirs | 0.1235 | x |",
    ]


def test_a_file_says_where_and_with_what_it_was_measured(common, tmp_path):
    file = tmp_path / "new" / "result.json"
    common.write(file, {"batch": 8, "seed": 3}, [{"seconds": 1.5}], versions=common.versions("numpy"))
    written = json.loads(file.read_text())
    assert written["results"] == [{"seconds": 1.5}]
    assert written["settings"] == {"batch": 8, "seed": 3}
    assert written["seed"] == 3
    assert written["machine"]["devices"] == [8, "cpu", "cpu"]
    assert {"python", "jax", "numpy"} <= set(written["versions"])


def test_what_is_missing_is_one_line_with_the_command_that_mends_it(common):
    with pytest.raises(SystemExit, match="^this benchmark needs no_such_peer: pip install peer$"), common.needs("peer"):
        import no_such_peer  # noqa: F401
