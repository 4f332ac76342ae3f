"""Tests that MTEB and ir_measures compute the same scores as we do."""

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


def test_a_written_run_has_the_scores_of_ir_measures(tiny_bert, tmp_path, endx):
    import ir_measures
    from ir_measures import RR, R, nDCG

    data = tmp_path / "data"
    (data / "qrels").mkdir(parents=True)
    words = ("cat", "dog", "mat", "sat", "who")
    documents = [{"_id": word, "title": None, "text": f"the {word} on {word}"} for word in words]
    (data / "corpus.jsonl").write_text("\n".join(map(json.dumps, documents)))
    (data / "queries.jsonl").write_text("\n".join(json.dumps({"_id": f"q-{w}", "text": f"what is {w}"}) for w in words))
    pairs = [*zip(words, words[1:] + words[:1], strict=True)]
    judged = [(f"q-{word}", document, grade) for word, other in pairs for document, grade in ((word, 2), (other, 1))]
    rows = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, row)) for row in judged)]
    (data / "qrels" / "test.tsv").write_text("\n".join(rows))
    endx("evaluate", f"--model={tiny_bert}", f"--data={data}", f"--output={tmp_path / 'out'}")
    ours = json.loads((tmp_path / "out" / "results.json").read_text())["systems"][tiny_bert.name]
    run = [*ir_measures.read_trec_run(str(tmp_path / "out" / f"{tiny_bert.name}.run.trec"))]
    measures = {"ndcg@10": nDCG @ 10, "mrr": RR, "recall@1": R @ 1, "recall@5": R @ 5}
    found = ir_measures.calc_aggregate(measures.values(), [ir_measures.Qrel(*row) for row in judged], run)
    assert {name: ours[name] for name in measures} == pytest.approx(
        {n: found[m] for n, m in measures.items()}, abs=1e-5
    )
