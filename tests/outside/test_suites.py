"""Tests that MTEB computes the same scores as we do; ir_measures: see tests/ranking/test_reference.py."""

import json
import math

import pytest

import endx_jax
import endx_jax.mteb

pytestmark = [pytest.mark.reference, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # their warnings

TASKS = ("MockRetrievalTask", "MockSTSTask", "MockClassificationTask", "MockSummarizationTask")


def leaves(value, path=""):
    """Yields the path and value of each number in nested scores."""
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(part, f"{path}/{key}")
    elif isinstance(value, float) and not math.isnan(value):
        yield path, value


@pytest.mark.parametrize("name", TASKS)
def test_mock_tasks_have_the_scores_of_sentence_transformers(tiny_bert, name):
    import mteb
    import mteb.mocks.mock_tasks
    from mteb.models.sentence_transformer_wrapper import SentenceTransformerEncoderWrapper
    from sentence_transformers import SentenceTransformer

    library = SentenceTransformer(str(tiny_bert), device="cpu")
    scores = []
    for model in (endx_jax.mteb.wrap(endx_jax.load(tiny_bert)), SentenceTransformerEncoderWrapper(library)):
        task = getattr(mteb.mocks.mock_tasks, name)()
        found = mteb.evaluate(model, [task], cache=None, show_progress_bar=False, co2_tracker=False)
        scores.append(dict(leaves(json.loads(json.dumps(found.task_results[0].scores, default=float)))))
    assert len(scores[1]) >= 1
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)
