import numpy as np
import pytest


def test_prints_a_row_for_each_form(start):
    sizes = ("--words=50", "--widths", "4", "--texts=4", "--length=6", "--mean_length=3", "--repeats=1")
    printed = start("vocabulary", *sizes)
    assert "| 4 | vocabulary_nll |" in printed
    assert "| 4 | plain |" in printed


@pytest.mark.parametrize("value", [1.1, np.nan])
def test_stops_when_the_forms_differ(script, value):
    right = 1.0, (np.ones(2),)
    check = script("vocabulary").check_same_work
    check({"tiled": right, "plain": right})
    with pytest.raises(SystemExit, match="tiled and plain differ by"):
        check({"tiled": (value, right[1]), "plain": right})
