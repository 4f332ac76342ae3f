import itertools
import json

import numpy as np
import pytest
from encoder_families import ALIKE, FAMILIES
from helpers import logged_losses
from tiny_bert import tiny_recipe, vocabulary, write_tokenizer

import endx_jax
from endx_jax.experiment.run import run
from endx_jax.export.run import export
from endx_jax.models.sharing import SHARINGS

pytestmark = pytest.mark.slow

TEXTS = ["the cat sat on a mat", "who?", "", "🙂 naïve dogs", "what is in the dog and where is it, if not on the mat"]
# A config of each family, whose padding id is another than the tokenizer's for some, as in published folders.
CONFIGS = dict(reversed((FAMILIES | ALIKE).values()))
LONGER = {"max_position_embeddings": 64}


def write_family(reference, folder, model_type):
    """Writes a tiny encoder by transformers, with the tiny BERT's tokenizer, which pads with id 0."""
    keys = {"pad_token_id": 0} | CONFIGS[model_type] | ({} if "t5" in model_type else LONGER)
    write_tokenizer(reference.write(folder, model_type, keys | {"vocab_size": len(vocabulary())}))
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"eos_token": "[SEP]"}))
    if model_type == "qwen2":  # transformers reads its own tokenizer for it, whatever the folder has
        reference.transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    return folder


def layout(reference, encoder, width, name):
    """The modules of a published model."""
    pooling, dense = reference.modules.Pooling, reference.modules.Dense
    identity, tanh = reference.torch.nn.Identity(), reference.torch.nn.Tanh()
    normalize = reference.modules.Normalize()
    return {
        "gtr": [encoder, pooling(width), dense(width, 6, bias=False, activation_function=identity), normalize],
        "mean": [encoder, pooling(width), normalize],
        "cls": [encoder, pooling(width, "cls"), normalize],
        "labse": [encoder, pooling(width, "cls"), dense(width, 6, activation_function=tanh), normalize],
        "lasttoken": [encoder, pooling(width, "lasttoken")],
        "weightedmean": [encoder, pooling(width, "weightedmean"), dense(width, 6, activation_function=identity)],
    }[name]


# The published layout in which each family is compared.
LAYOUTS = {"bert": "labse", "roberta": "mean", "xlm-roberta": "cls", "camembert": "mean", "electra": "mean"}
LAYOUTS |= {"distilbert": "mean", "mpnet": "mean", "albert": "mean", "modernbert": "cls", "nomic_bert": "weightedmean"}
LAYOUTS |= {"gte": "cls", "t5": "gtr", "mt5": "lasttoken", "umt5": "mean", "llama": "lasttoken"}
LAYOUTS |= {"mistral": "weightedmean", "eurobert": "mean", "qwen2": "lasttoken"}


@pytest.mark.reference
@pytest.mark.parametrize(("model_type", "name"), LAYOUTS.items())
def test_embeddings_are_those_of_sentence_transformers(reference, tmp_path, model_type, name):
    encoder = reference.modules.Transformer(str(write_family(reference, tmp_path / "encoder", model_type)))
    modules = layout(reference, encoder, 24, name)
    model = reference.library.SentenceTransformer(modules=modules, device="cpu")
    model.max_seq_length = 40
    model.save_pretrained(str(tmp_path / "model"))
    ours = endx_jax.load(tmp_path / "model")
    found, theirs = ours.encode_document(TEXTS), model.encode(TEXTS)
    np.testing.assert_allclose(found, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())
    report = export(ours, "sentence-transformers", tmp_path / "out", tolerance=1e-5)
    assert report.passed


@pytest.mark.reference
def test_real_weights_embed_as_in_sentence_transformers(reference, test_data):
    folder = test_data / "weights" / "t5_v1_1_small_encoder"
    whole = {"dtype": reference.torch.float32}
    theirs = reference.library.SentenceTransformer(str(folder), device="cpu", model_kwargs=whole).encode(TEXTS)
    found = endx_jax.load(folder).encode_document(TEXTS)
    np.testing.assert_allclose(found, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore:.*states no pooling")
@pytest.mark.parametrize(("model_type", "sharing"), [*zip(sorted(CONFIGS), itertools.cycle(SHARINGS), strict=False)])
def test_a_family_trains_resumes_and_is_exported(reference, tmp_path, pairs_csv, model_type, sharing):
    config = tiny_recipe(write_family(reference, tmp_path / "encoder", model_type), pairs_csv)
    config.model.sharing, config.model.projection = sharing, 8
    config.train.steps, config.train.stop_at_step = 20, 10
    assert run(config, tmp_path / "run") is None
    config.train.stop_at_step = 0
    run(config, tmp_path / "run")
    losses = logged_losses(tmp_path / "run")
    assert [*losses] == [*range(1, 21)]
    assert np.isfinite([*losses.values()]).all()
    model = endx_jax.load(tmp_path / "run")
    for kind in ("sentence-transformers", "stablehlo"):
        assert export(model, kind, tmp_path / kind, tolerance=1e-5).passed
