"""Our models as MTEB calls them; tests/outside/test_suites.py has whole tasks of it."""

import dataclasses
import shutil
import types

import numpy as np
import pytest
from refusals import check_refusal
from tiny_bert import write_usage
from tiny_models import make_model

import endx_jax
import endx_jax.mteb

DOCUMENTS = {"d0": "the cat sat on a mat", "d1": "dog", "d2": "who is in 9 mats", "d3": "where, what", "d4": "on it"}


@pytest.fixture(scope="module")
def mteb():
    """MTEB, which takes seconds to import."""
    import mteb

    return mteb


@pytest.fixture(scope="module")
def model(tiny_bert):
    return endx_jax.load(tiny_bert)


@pytest.fixture(scope="module")
def prompted(tiny_bert, tmp_path_factory):
    folder = shutil.copytree(tiny_bert, tmp_path_factory.mktemp("prompted") / "model")
    prompts = {"query": "who: ", "document": "what: "}
    return endx_jax.load(write_usage(folder, prompts=prompts, similarity_fn_name="dot"))


def batches(texts):
    return [{"text": texts[:2]}, {"text": texts[2:]}]


# What the adapter reads of a task.
NFCORPUS = types.SimpleNamespace(name="NFCorpus", type="Retrieval")
STS = types.SimpleNamespace(name="STSBenchmark", type="STS")
PLACE = {"hf_split": "test", "hf_subset": "default"}
# Prompts by name: of a task and kind, a task, a type and kind, a type, a kind; and three of others.
PROMPTS = {"NFCorpus-query": "who ", "NFCorpus": "where ", "Retrieval-query": "what ", "Retrieval": "cat "}
PROMPTS |= {"query": "dog ", "SciFact": "mat ", "Clustering": "sat ", "cluster": "in "}


def test_the_prompt_is_the_most_specific_of_the_task(model):
    texts = list(DOCUMENTS.values())
    for first, name in enumerate([*PROMPTS][:5]):
        left = {name: PROMPTS[name] for name in [*PROMPTS][first:]}
        wrapped = endx_jax.mteb.wrap(dataclasses.replace(model, named_prompts=left))
        found = wrapped.encode(batches(texts), task_metadata=NFCORPUS, prompt_type="query", **PLACE)
        np.testing.assert_allclose(found, model.encode([PROMPTS[name] + text for text in texts]), atol=1e-6)


@pytest.mark.reference
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the benchmark, about the prompts that are of no task
@pytest.mark.parametrize("default", ["cluster", None])
def test_prompts_are_those_of_the_benchmark_s_own_wrapper(mteb, tiny_bert, tmp_path, default):
    from datasets import Dataset
    from mteb.models.sentence_transformer_wrapper import SentenceTransformerEncoderWrapper
    from sentence_transformers import SentenceTransformer
    from torch.utils.data import DataLoader

    texts = DataLoader(Dataset.from_dict({"text": list(DOCUMENTS.values())}), batch_size=2)
    clustering = types.SimpleNamespace(name="TwentyNewsgroupsClustering", type="Clustering")
    for first, name in enumerate(PROMPTS):
        left = {name: PROMPTS[name] for name in [*PROMPTS][first:]}
        library = SentenceTransformer(str(tiny_bert), device="cpu", prompts=left, default_prompt_name=default)
        library.save_pretrained(str(tmp_path / name), create_model_card=False)
        theirs = SentenceTransformerEncoderWrapper(library)
        ours = endx_jax.mteb.wrap(endx_jax.load(tmp_path / name))
        for task in (NFCORPUS, STS, clustering):
            for kind in (*mteb.types.PromptType, None):
                about = {"task_metadata": task, "prompt_type": kind, **PLACE}
                expected = theirs.encode(texts, show_progress_bar=False, **about)
                np.testing.assert_allclose(ours.encode(texts, **about), expected, atol=1e-5, err_msg=f"{task}, {kind}")


def test_texts_of_no_kind_and_without_a_prompt_are_told_of(prompted, model, caplog):
    texts = list(DOCUMENTS.values())
    found = endx_jax.mteb.wrap(prompted).encode(batches(texts), task_metadata=STS, **PLACE)
    np.testing.assert_allclose(found, model.encode(texts), atol=1e-6)
    (message,) = caplog.messages
    start = (
        "/model: texts of STSBenchmark are neither queries nor documents, and no prompt is named STSBenchmark or STS"
    )
    assert message.endswith(f"{start}; they are encoded with the default prompt, ''")


def test_texts_of_no_kind_are_refused_where_the_towers_differ(tiny_bert):
    wrapped = endx_jax.mteb.wrap(make_model(tiny_bert, sharing="ade"))
    check_refusal(lambda: wrapped.encode(batches(list(DOCUMENTS.values())), task_metadata=STS, **PLACE), "encode_query")


def test_late_interaction_is_refused_before_a_task_is_encoded(tiny_bert):
    late = make_model(tiny_bert, pooling="tokens", projection=4)
    check_refusal(lambda: endx_jax.mteb.wrap(late), "an embedding for each token", "MTEB")
    check_refusal(lambda: endx_jax.mteb.wrap("all-MiniLM-L6-v2"), "'all-MiniLM-L6-v2'", "endx_jax.load")


def test_similarities_are_the_model_s(model, prompted):
    a, b = np.array([[3.0, 4.0], [1.0, 0.0]]), np.array([[6.0, 8.0], [0.0, 2.0]])
    for loaded in (model, prompted):
        wrapped = endx_jax.mteb.wrap(loaded)
        np.testing.assert_array_equal(wrapped.similarity(a, b), loaded.similarity(a, b))
        np.testing.assert_array_equal(wrapped.similarity_pairwise(a, b), loaded.similarity_pairwise(a, b))


@pytest.mark.reference
def test_similarities_are_tensors(model):
    import torch

    a, wrapped = torch.eye(2), endx_jax.mteb.wrap(model)
    assert float(wrapped.similarity(a[:1], a[0].numpy())) == 1.0
    assert wrapped.similarity(a, a).topk(1).indices.tolist() == [[0], [1]]
    assert wrapped.similarity_pairwise(a, a).tolist() == [1, 1]


def test_each_key_of_the_benchmark_is_taken_or_refused_by_name(model):
    texts, about = list(DOCUMENTS.values()), {"task_metadata": STS, **PLACE}
    encode = endx_jax.mteb.wrap(model).encode
    more = {"id": ["x"] * 2, "title": ["x"] * 2, "body": ["x"] * 2, "query": ["x"] * 2, "instruction": ["x"] * 2}
    expected = model.encode(texts)
    taken = {"batch_size": 2, "show_progress_bar": False, "precision": "float32", "convert_to_numpy": True}
    found = encode([batch | more for batch in batches(texts)], **taken, **about)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    coarse = encode(batches(texts), precision="int8", **about)
    assert coarse.dtype == np.float32
    np.testing.assert_allclose(coarse, expected, atol=0.05)
    prompted = encode(batches(texts), prompt="who ", **about)
    np.testing.assert_allclose(prompted, model.encode([f"who {text}" for text in texts]), atol=1e-6)
    for name, value in (("precision", "ubinary"), ("convert_to_tensor", True), ("frames", 3)):
        given = {name: value} | about
        check_refusal(lambda given=given: encode(batches(texts), **given), name)
    for key in ("image", "audio", "video"):
        given = [{"text": texts, key: texts}]
        check_refusal(lambda given=given: encode(given, **about), f"STSBenchmark has inputs of {key}")


@pytest.mark.reference
@pytest.mark.slow
def test_results_are_kept_under_the_model_s_identity(mteb, prompted):
    meta = endx_jax.mteb.wrap(prompted).mteb_model_meta
    assert (meta.name, meta.revision, meta.embed_dim, meta.max_tokens) == ("endx_jax/model", prompted.identity, 32, 64)
    assert (meta.similarity_fn_name.value, meta.use_instructions, meta.framework) == ("dot", True, ["JAX"])
    assert endx_jax.mteb.wrap(prompted, "me/mine").mteb_model_meta.name == "me/mine"
