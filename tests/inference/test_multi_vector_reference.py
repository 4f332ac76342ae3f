"""Late interaction beside sentence-transformers 6.2: embeddings and masks of tokens, MaxSim, losses and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_bert import sizes, vocabulary, write_tiny_bert, write_tokenizer
from tiny_models import write_tiny_qwen3

import endx_jax
from endx_jax import losses
from endx_jax.batch import TokenVectors
from endx_jax.losses.maxsim import listed_maxsim

pytestmark = [pytest.mark.slow, pytest.mark.reference]

TEXTS = ["the cat sat on the mat.", "a dog, where?", "who is in the mat " * 20, "x"]


def write_modernbert(folder):
    transformers = pytest.importorskip("transformers")
    folder.mkdir()
    keys = sizes(16, layers=2, heads=2, mlp_width=24, positions=64, vocab_size=len(vocabulary()), pad_token_id=0)
    # Each [MASK] attends to some token of the text.
    config = transformers.ModernBertConfig(**keys, global_attn_every_n_layers=2, local_attention=32)
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


class Given:
    """Stands for the model of their losses: its outputs are the features."""

    def __call__(self, features, **_):
        return features


def drawn(seed):
    """Embeddings [B, L, E] and masks [B, L] of questions, and of two documents for each."""
    draw = np.random.default_rng(seed)
    shapes = ((4, 5, 3), (4, 7, 3), (4, 7, 3))
    values = [draw.normal(size=shape).astype(np.float32) for shape in shapes]
    return values, [np.arange(v.shape[1])[None] < draw.integers(1, v.shape[1] + 1, 4)[:, None] for v in values]


def theirs_of(make, values, masks, labels):
    """Returns the value of a loss of theirs and its gradients by the embeddings."""
    torch = pytest.importorskip("torch")
    leaves = [torch.tensor(x, requires_grad=True) for x in values]
    columns = [
        {"token_embeddings": x, "attention_mask": torch.tensor(mask), "input_ids": torch.zeros(mask.shape, dtype=int)}
        for x, mask in zip(leaves, masks, strict=True)
    ]
    module = make()
    torch.nn.Module.__setattr__(module, "model", Given())
    loss = module(columns, labels if labels is None else torch.tensor(labels))
    loss.backward()
    return loss.item(), [leaf.grad.numpy() for leaf in leaves]


@pytest.mark.parametrize(("name", "options"), [("", {}), ("Cached", {"mini_batch_size": 3})])
def test_the_in_batch_loss_and_its_gradient(name, options):
    theirs = pytest.importorskip("sentence_transformers.multi_vector_encoder.losses")
    make = getattr(theirs, f"{name}MultiVectorMultipleNegativesRankingLoss")
    values, masks = drawn(0)
    right = theirs_of(lambda: make(None, **options), values, masks, None)

    def ours(question, answer, hard):
        given = zip((question, answer, hard[:, None]), (*masks[:2], masks[2][:, None]), strict=True)
        question, answer, hard = (TokenVectors(x, jnp.asarray(mask)) for x, mask in given)
        return losses.in_batch_softmax(question, answer, hard_negatives=hard, tile=2)[0]

    check(jax.value_and_grad(ours, (0, 1, 2))(*map(jnp.asarray, values)), right)


@pytest.mark.parametrize(("name", "loss"), [("DistillKLDiv", "listwise_kl"), ("MarginMSE", "margin_mse")])
def test_the_distillation_losses_and_their_gradients(name, loss):
    theirs = pytest.importorskip("sentence_transformers.multi_vector_encoder.losses")
    values, masks = drawn(1)
    teacher = np.random.default_rng(2).normal(size=(4, 2)).astype(np.float32)
    right = theirs_of(lambda: getattr(theirs, f"MultiVector{name}Loss")(None), values, masks, teacher)

    def ours(question, *documents):
        own = [TokenVectors(x[:, None], jnp.asarray(m)[:, None]) for x, m in zip(documents, masks[1:], strict=True)]
        asked = TokenVectors(question, jnp.asarray(masks[0]))
        scores = jnp.concatenate([listed_maxsim(asked, texts) for texts in own], axis=1)
        return getattr(losses, loss)(scores, jnp.asarray(teacher))[0]

    check(jax.value_and_grad(ours, (0, 1, 2))(*map(jnp.asarray, values)), right)


def check(found, right):
    np.testing.assert_allclose(found[0], right[0], rtol=1e-5)
    for ours, theirs in zip(found[1], right[1], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
