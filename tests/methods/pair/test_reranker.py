"""Qwen3-Reranker's layout as a scorer of pairs, against transformers and the formula on the model's card."""

import dataclasses
import functools
import json

import numpy as np
import pytest
from helpers import TINY, tower
from refusals import check_refusal

from endx_jax.data.tokenization import Tokenizer
from endx_jax.experiment.saved_model import load_pair_scorer
from endx_jax.methods.pair.classifier import PairClassifier
from endx_jax.methods.pair.reranker import CARD, INSTRUCTION, PromptScorer, load_reranker
from endx_jax.models.dual_encoder import DualEncoder

QUESTIONS = ["where is the cat?", "who sat", "what is 3"]
ANSWERS = ["the cat sat on a mat", '"3" dogs', "", " two  spaces\nand a line", "the mat " * 9000]
PAIRS = np.array([(q, a) for q in range(3) for a in range(5)])
BEFORE, AFTER = CARD[0].format(INSTRUCTION), CARD[2]
# As the folders of Qwen3-Reranker have it, which name their instruction in config_sentence_transformers.json.
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}: {{ m['content'] }}<|im_end|>\n{% endfor %}<|im_start|>answer: "
)
SPECIAL = ["<pad>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
WIDTH, POSITIONS = 24, 2048


def write_tokenizer(folder, words=("yes", "no"), *, ends=False):
    import tokenizers
    from tokenizers import models, pre_tokenizers, processors, trainers

    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=[*SPECIAL, *words], initial_alphabet=alphabet)
    tokenizer.train_from_iterator([BEFORE, *QUESTIONS, *ANSWERS], trainer)
    if ends:
        tokenizer.post_processor = processors.TemplateProcessing("$A <pad>", special_tokens=[("<pad>", 0)])
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": SPECIAL[0], "eos_token": SPECIAL[1]}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return tokenizer.get_vocab_size()


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def folder(request, tmp_path):
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=write_tokenizer(tmp_path),
        hidden_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=40,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=request.param,
    )
    model = transformers.Qwen3ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path)
    return tmp_path


def test_a_question_that_fills_a_pair_is_tokenized_once(tmp_path, monkeypatch):
    size, read = write_tokenizer(tmp_path), []
    tokenizer = Tokenizer(tmp_path, rows=size)
    one = tower(dataclasses.replace(TINY, positions=400))
    classifier = PairClassifier(DualEncoder(one, one), None, segments=False)
    scorer = PromptScorer(classifier, tokenizer, (BEFORE, CARD[1], AFTER), 400)
    encode = Tokenizer.__call__
    monkeypatch.setattr(
        Tokenizer, "__call__", lambda self, texts, most: read.extend(texts) or encode(self, texts, most)
    )
    questions = ["where is the cat?", "who sat on the mat " * 200]
    written = scorer.tokenized(questions, ANSWERS)
    for pairs in ([[0, 0], [1, 1], [1, 0]], [[1, 4], [0, 4]]):  # in two pieces
        table = written(np.array(pairs))
        for n, (q, a) in enumerate(pairs):
            ids = encode(tokenizer, [f"{BEFORE}{questions[q]}{CARD[1]}{ANSWERS[a]}{AFTER}"], 99_999).ids
            after = encode(tokenizer, [AFTER], 99_999).ids
            expected = ids if len(ids) <= 400 else [*ids[: 400 - len(after)], *after]
            np.testing.assert_array_equal(table.ids[slice(*table.offsets[n : n + 2])], expected)
    assert sum(questions[1] in text for text in read) == 1


def expected_scores(folder) -> np.ndarray:
    """Logits of "yes" minus "no", as on the card: the prompt, then the end after what is too long was cut."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    after = tokenizer.encode(AFTER, add_special_tokens=False)
    yes, no = (tokenizer.convert_tokens_to_ids(word) for word in ("yes", "no"))
    scores = []
    for q, a in PAIRS:
        ids = tokenizer.encode(f"{BEFORE}{QUESTIONS[q]}\n<Document>: {ANSWERS[a]}", add_special_tokens=False)
        ids = ids[: POSITIONS - len(after)] + after
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, -1]
        scores.append((logits[yes] - logits[no]).item())
    return np.array(scores)


@pytest.mark.reference
def test_scores_are_those_of_the_card(folder):
    expected = expected_scores(folder)
    assert np.ptp(expected) > 0.01
    for load in (load_pair_scorer, functools.partial(load_pair_scorer, embeddings=True)):
        found = load(folder)(QUESTIONS, ANSWERS)(PAIRS)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.reference
def test_other_folders_and_tokenizers(folder):
    write_tokenizer(folder, ends=True)
    check_refusal(lambda: load_reranker(folder), "adds tokens to every text")
    write_tokenizer(folder, words=("no", "<x>"))
    check_refusal(lambda: load_reranker(folder), '"yes"', '"no"')
    modules = [{"path": "", "type": "sentence_transformers.models.Transformer"}]  # as Qwen3-Embedding has
    (folder / "modules.json").write_text(json.dumps(modules))
    assert load_reranker(folder) is None


@pytest.mark.reference
def test_scores_with_a_chat_template_are_those_of_sentence_transformers(folder, tmp_path):
    import sentence_transformers as library
    import torch

    (folder / "chat_template.jinja").write_text(TEMPLATE)
    texts = [ANSWERS[0], ANSWERS[1], ANSWERS[3], "the mat " * 1500]
    rows = np.array([(q, a) for q in range(2) for a in range(len(texts))])
    pairs = [(QUESTIONS[q], texts[a]) for q, a in rows]
    for n, prompts in enumerate(({}, {"prompts": {"query": "find the cat"}, "default_prompt_name": "query"})):
        reference = library.CrossEncoder(str(folder), **prompts)
        expected = reference.predict(pairs, activation_fn=torch.nn.Identity(), show_progress_bar=False)
        reference.save_pretrained(str(tmp_path / f"saved{n}"))
        found = load_pair_scorer(tmp_path / f"saved{n}")(QUESTIONS, texts)(rows)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    scores = [load_pair_scorer(saved)(QUESTIONS, texts)(rows) for saved in (folder, tmp_path / "saved0")]
    np.testing.assert_allclose(*scores, rtol=1e-6)
    (folder / "chat_template.jinja").write_text("{{ raise_exception('no such role') }}")
    (tmp_path / "card").mkdir()
    for file in folder.glob("*.*"):
        if file.name != "chat_template.jinja":
            (tmp_path / "card" / file.name).write_bytes(file.read_bytes())
    scores = [load_pair_scorer(saved)(QUESTIONS, texts)(rows) for saved in (folder, tmp_path / "card")]
    np.testing.assert_array_equal(*scores)
    file = tmp_path / "saved0" / "1_LogitScore" / "config.json"
    file.write_text(json.dumps({"true_token_id": 7, "temperature": 2.0}))
    check_refusal(lambda: load_pair_scorer(tmp_path / "saved0"), "temperature=2.0", "the key is unknown")
    file.write_text(json.dumps({"true_token_id": 7, "false_token_id": None}))
    assert load_pair_scorer(tmp_path / "saved0")(QUESTIONS, texts)(rows).shape == (len(rows),)
