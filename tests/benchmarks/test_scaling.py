"""What a device should receive."""

import argparse

import pytest


@pytest.mark.parametrize(("mesh", "gathered"), [("data", 0), ("fsdp", 1)])
def test_theory_counts_parameters_and_matrices(script, mesh, gathered):
    scaling = script("scaling")
    found = scaling.subject("dual", mesh, argparse.Namespace(pairs=2, question_length=4, answer_length=8))
    gradients, matrices, answers = scaling.in_theory(found)
    a_layer = 4 * 384 * 384 + 2 * 384 * 1536
    others = (30522 + 512 + 2 + 2) * 384 + 6 * (4 * 384 + 1536 + 384 + 4 * 384)
    assert gradients == 4 * (6 * a_layer + others)
    # Of both sides, forward and backward.
    assert matrices == gathered * 2 * 2 * 4 * 6 * a_layer
    assert answers == 4 * (2 * 8) * 384
