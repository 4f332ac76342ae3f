import contextlib
import dataclasses
import functools
import json
import pathlib
import re
import runpy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from helpers import logged_losses
from tiny_bert import write_tiny_bert
from tiny_models import make_model

import endx_jax
from endx_jax.batch import Batch
from endx_jax.experiment.run import run
from endx_jax.methods import method
from endx_jax.methods.config import load_config
from endx_jax.methods.objective import Embeddings

ROOT = pathlib.Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


@pytest.fixture
def run_example(minilm, capsys):
    """Function that runs an example on the weights of MiniLM and returns its lines."""

    def lines_of(name):
        runpy.run_path(str(EXAMPLES / f"{name}.py"))
        return capsys.readouterr().out.splitlines()

    return lines_of


def test_documents_are_encoded_and_searched(run_example):
    assert [re.sub(r"\d\.\d{3}", "SCORE", line) for line in run_example("encode_and_search")] == [
        "How do I send an email?",
        "  SCORE  smtplib.SMTP.sendmail: Sends an e-mail.",
        "How do I give an array a new shape?",
        "  SCORE  numpy.reshape: Gives a new shape to an array without changing its data.",
    ]


def test_an_index_is_searched_and_changed(run_example):
    first, _, last = run_example("search_an_index")[-3:]
    assert first == "1  mail  smtplib.SMTP.sendmail: Sends an e-mail."
    assert last == "imap None"


@pytest.mark.slow
def test_a_training_loop_of_ones_own_learns(run_example):
    before, *steps, after = (float(line.split()[-1]) for line in run_example("training_loop"))
    assert steps[-1] < steps[0]
    assert after >= before


def test_a_loss_over_eight_devices_trains_ones_own_towers(capsys):
    runpy.run_path(str(EXAMPLES / "sharded_loss.py"))
    page = (ROOT / "docs/losses.md").read_text()
    assert capsys.readouterr().out.strip() in page


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "length", "short", "printed", "count"),
    [
        ("first_search", "20", "2", r"^-?\d\.\d{3}  \w+: ", 3),
        ("own_pairs", "3.0", "1.0", r"^  -?\d\.\d{3}  ", 4),
        ("own_loss", "15", "5", r"^step +5  loss \d+\.\d{3}  wrong answers", 1),
    ],
)
def test_notebooks_run(tmp_path, capsys, name, length, short, printed, count):
    cells = json.loads((EXAMPLES / f"{name}.ipynb").read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == [*range(1, len(code) + 1)]  # stored as it ran, in order
    text = "\n".join("".join(cell["source"]) for cell in code)
    tiny = write_tiny_bert(tmp_path / "bert", max_position_embeddings=256)
    small = text.replace(f'"all-MiniLM-L6-v2", {length}', f"{str(tiny)!r}, {short}")
    assert small != text
    with contextlib.chdir(tmp_path):
        exec(small, {})
    assert len(re.findall(printed, capsys.readouterr().out, re.MULTILINE)) == count


def test_the_method_of_the_page_about_losses_trains(config, tmp_path):
    config.objective = load_config(str(EXAMPLES / "hinge.py")).objective
    config.train.stop_at_step = 2
    run(config, tmp_path / "run")
    losses = logged_losses(tmp_path / "run")
    assert len(losses) == 2
    assert all(np.isfinite(loss) and loss > 0 for loss in losses.values())
    # The first question's score with the second answer is 0.1 above 1 - 0.2; the third answer is the first one's text.
    objective = method.find_method("hinge").objective(None, method.find_method("hinge").settings())
    embedded = Embeddings(jnp.eye(3), jnp.array([[1.0, 0, 0], [0.9, 1.9, 0], [1.0, 0, 1.0]]))
    batch = Batch(None, None, jnp.arange(3), jnp.array([5, 6, 5]), jnp.array([[5], [6], [5]]))
    mined = dataclasses.replace(
        batch, hard_negatives=jnp.zeros((3, 1, 2)), hard_negative_ids=jnp.array([[7], [7], [7]])
    )
    for one in (batch, mined):
        loss, metrics = objective.loss({}, embedded, one, None, 0)
        np.testing.assert_allclose([loss, metrics["wrong"]], [0.1 / 3, 4 / 9], rtol=1e-6)


def test_a_tower_in_nnx_has_the_values_and_gradients_of_linen(tiny_bert, monkeypatch):
    model = make_model(tiny_bert)
    monkeypatch.setattr(endx_jax, "load", lambda name: model)
    names = runpy.run_path(str(EXAMPLES / "nnx_tower.py"))

    def similarity(params):
        return jnp.vdot(*model.encoder.model.encode(params, "question", names["tokens"]))

    value, gradients = jax.jit(jax.value_and_grad(similarity))(model.params)
    np.testing.assert_allclose(names["value"], value, rtol=1e-6)
    equal = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    jax.tree.map(equal, nnx.to_pure_dict(names["gradients"]), gradients["shared"])
