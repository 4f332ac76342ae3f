"""Late interaction beside sentence-transformers 6.2: embeddings and masks of tokens, and MaxSim."""

import numpy as np
import pytest
from tiny_bert import vocabulary, write_tiny_bert, write_tokenizer
from tiny_models import write_tiny_qwen3

import endx_jax

pytestmark = [pytest.mark.slow, pytest.mark.reference]

TEXTS = ["the cat sat on the mat.", "a dog, where?", "who is in the mat " * 20, "x"]


def write_modernbert(folder):
    transformers = pytest.importorskip("transformers")
    folder.mkdir()
    config = transformers.ModernBertConfig(
        vocab_size=len(vocabulary()),
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
        global_attn_every_n_layers=2,
        local_attention=32,  # each [MASK] attends to some token of the text
    )
    transformers.ModernBertModel(config).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def write_decoder(folder):
    write_tiny_qwen3(folder)
    (folder / "modules.json").unlink()
    return folder


@pytest.mark.parametrize("write", [write_tiny_bert, write_modernbert, write_decoder])
@pytest.mark.parametrize("expansion", [None, {"strategy": "fixed", "length": 12}])
def test_token_embeddings_masks_and_scores(write, expansion, tmp_path):
    torch = pytest.importorskip("torch")
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Dense, Transformer
    from sentence_transformers.base.modules.normalize import Normalize
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    torch.manual_seed(0)
    encoder = Transformer(str(write(tmp_path / "encoder")), query_expansion=expansion, max_seq_length=48)
    dense = Dense(
        encoder.get_embedding_dimension(), 8, False, torch.nn.Identity(), module_input_name="token_embeddings"
    )
    mask, norm = MultiVectorMask(["."] if expansion else None), Normalize(module_input_name="token_embeddings")
    theirs = MultiVectorEncoder(modules=[encoder, dense, mask, norm], device="cpu")
    theirs.save(str(tmp_path / "saved"), create_model_card=False)
    ours = endx_jax.load(tmp_path / "saved")
    found, expected = (
        [model.encode_query(TEXTS, convert_to_numpy=True), model.encode_document(TEXTS, convert_to_numpy=True)]
        for model in (ours, theirs)
    )
    for side, right in zip(found, expected, strict=True):
        assert [len(tokens) for tokens in side] == [len(tokens) for tokens in right]
        np.testing.assert_allclose(np.concatenate(side), np.concatenate(right), atol=1e-5)
    scores = theirs.similarity(*expected).numpy()
    np.testing.assert_allclose(ours.similarity(*found), scores, rtol=1e-5, atol=1e-5)
