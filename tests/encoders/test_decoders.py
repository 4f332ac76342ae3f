"""Folders of decoders: the layouts of published embedders, and language models that state no pooling."""

import json
import pathlib
import pickle
import warnings

import numpy as np
import pytest
from refusals import check_refusal
from tiny_bert import sizes

import endx_jax
from endx_jax.data.tokenization import Tokenizer
from endx_jax.export.run import export

EOS, PAD, UNKNOWN = "<|endoftext|>", "<pad>", "<unk>"
TEXTS = ["the cat sat on a mat", "who?", "", "🙂 naïve dogs", "what is in the dog and where is it, if not on the mat"]
QUERY = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
SMALL = sizes(24, layers=3, heads=4, mlp_width=40, positions=96, num_key_value_heads=1, head_dim=8, sliding_window=8)


def write_byte_tokenizer(folder: pathlib.Path, *, ends: bool, tokens=(PAD, EOS, UNKNOWN), **special) -> int:
    """Writes a byte-level BPE tokenizer, which ends texts with EOS if `ends`; returns the number of its ids."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, processors, trainers

    folder.mkdir(exist_ok=True)
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=280, special_tokens=[*tokens], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    if ends:
        id_ = tokenizer.token_to_id(EOS)
        tokenizer.post_processor = processors.TemplateProcessing(f"$A {EOS}", special_tokens=[(EOS, id_)])
    else:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": EOS, "pad_token": PAD, "unk_token": UNKNOWN}
    (folder / "tokenizer_config.json").write_text(json.dumps(names | special))
    return tokenizer.get_vocab_size()


def write_decoder(reference, folder: pathlib.Path, model_type: str, vocab_size: int) -> pathlib.Path:
    """Writes a tiny random decoder by transformers, beside its tokenizer."""
    bidirectional = {"use_bidirectional_attention": True} if model_type == "gemma3_text" else {}
    keys = SMALL | bidirectional | {"vocab_size": vocab_size, "pad_token_id": None}
    return reference.write(folder, model_type, keys)


def published(reference, folder: pathlib.Path, name: str):
    """A sentence-transformers model with the modules and prompts of a published one."""
    modules, identity = reference.modules, reference.torch.nn.Identity()
    encoder = folder / "encoder"
    size = write_byte_tokenizer(encoder, ends=True)
    if name == "Qwen3-Embedding":
        write_decoder(reference, encoder, "qwen3", size)
        prompts = {"query": QUERY, "document": ""}
        rest = [modules.Pooling(24, "lasttoken")]
    else:
        write_decoder(reference, encoder, "gemma3_text", size)
        prompts = {"query": "task: search result | query: ", "document": "title: none | text: "}
        dense = [modules.Dense(n, m, bias=False, activation_function=identity) for n, m in ((24, 96), (96, 24))]
        rest = [modules.Pooling(24, "mean"), *dense]
    modules = [modules.Transformer(str(encoder)), *rest, modules.Normalize()]
    model = reference.library.SentenceTransformer(modules=modules, prompts=prompts, device="cpu")
    model.save_pretrained(str(folder / "model"))
    return model


def assert_close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.reference
@pytest.mark.slow
@pytest.mark.parametrize("name", ["Qwen3-Embedding", "EmbeddingGemma"])
def test_published_layouts_embed_as_in_sentence_transformers(reference, tmp_path, name):
    theirs = published(reference, tmp_path, name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # its pooling is stated
        ours = endx_jax.load(tmp_path / "model")
    long = [*TEXTS, "the cat sat on the mat. " * 30]  # past the windows and the positions
    query, document = ours.encode_query(long), ours.encode_document(long)
    assert_close(query, theirs.encode_query(long))
    assert_close(document, theirs.encode_document(long))
    assert_close(ours.encode_document(long, truncate_dim=8), theirs.encode_document(long, truncate_dim=8))
    assert np.abs(query - document).max() > 1e-2  # the prompts matter
    assert export(ours, "sentence-transformers", tmp_path / "out", tolerance=1e-5).passed
    again = reference.library.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert_close(again.encode_query(long), query)


@pytest.mark.reference
@pytest.mark.slow
def test_a_language_model_embeds_by_an_eos_that_is_appended_and_says_so(reference, tmp_path):
    size = write_byte_tokenizer(tmp_path / "base", ends=False, pad_token=None)
    write_decoder(reference, tmp_path / "base", "qwen3", size)
    with pytest.warns(UserWarning, match="its last token, EOS, by causal attention; other poolings by model.pooling"):
        ours = endx_jax.load(tmp_path / "base")
    found = ours.encode_document(TEXTS)
    theirs = reference.transformers.AutoModel.from_pretrained(tmp_path / "base")
    tokenizer = reference.transformers.AutoTokenizer.from_pretrained(str(tmp_path / "base"))
    for text, embedding in zip(TEXTS, found, strict=True):
        ids = [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]
        states = theirs(reference.torch.tensor([ids])).last_hidden_state.detach().numpy()
        assert_close(embedding, states[0, -1])
    # The exported tokenizer has the EOS too.
    assert export(ours, "sentence-transformers", tmp_path / "out", tolerance=1e-5).passed
    again = reference.library.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert_close(again.encode(TEXTS), found)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_close(endx_jax.load(tmp_path / "out").encode_document(TEXTS), found)


def test_eos_is_appended_once_and_survives_truncation_and_pickling(tmp_path):
    write_byte_tokenizer(tmp_path / "without", ends=False)
    write_byte_tokenizer(tmp_path / "with", ends=True)
    plain, ended = (Tokenizer(tmp_path / name, append_eos=True) for name in ("without", "with"))
    assert not Tokenizer(tmp_path / "without").same_ids(plain)
    for tokenizer in (plain, ended, pickle.loads(pickle.dumps(plain))):
        table = tokenizer(["the cat sat on a mat", ""], 4)
        assert table.lengths.tolist() == [4, 1]
        assert table.ids[[3, 4]].tolist() == [1, 1]
        assert table.ids.tolist() == plain(["the cat sat on a mat", ""], 4).ids.tolist()


def test_a_tokenizer_without_eos_is_refused(tmp_path):
    write_byte_tokenizer(tmp_path / "base", ends=False, eos_token=None)
    check_refusal(lambda: Tokenizer(tmp_path / "base", append_eos=True), "base", "EOS", "set eos_token")


def test_added_tokens_without_a_row_are_unknown(tmp_path):
    size = write_byte_tokenizer(tmp_path / "base", ends=True)
    file = tmp_path / "base" / "tokenizer.json"
    spec = json.loads(file.read_text())
    image = spec["added_tokens"][-1] | {"id": size, "content": "<image>"}
    file.write_text(json.dumps(spec | {"added_tokens": [*spec["added_tokens"], image]}))
    whole = Tokenizer(tmp_path / "base")
    check_refusal(lambda: whole.check_matches(size, tmp_path), f"id is {size}", f"{size} rows")
    fitting = Tokenizer(tmp_path / "base", rows=size)
    fitting.check_matches(size, tmp_path)
    assert whole(["<image>"], 9).ids.tolist() == [size, 1]
    assert fitting(["<image>"], 9).ids.tolist() == [2, 1]
    assert pickle.loads(pickle.dumps(fitting))(["<image>"], 9).ids.tolist() == [2, 1]
    fewer = Tokenizer(tmp_path / "base", rows=size - 1)  # words without a row are those of another model
    check_refusal(lambda: fewer.check_matches(size - 1, tmp_path), "largest id", f"{size - 1} rows")
