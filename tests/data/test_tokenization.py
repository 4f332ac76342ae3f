import contextlib
import importlib.util
import io
import itertools
import json
import os
import pickle
import subprocess
import sys
from concurrent import futures

import numpy as np
import pytest
from refusals import check_refusal
from tiny_bert import vocabulary, write_tiny_bert

from endx_jax.data import tokenization, tokenizer_files
from endx_jax.data.batches.token_tables import TokenTable, padded_length
from endx_jax.data.tokenization import Tokenizer
from endx_jax.errors import EndxError
from endx_jax.pretrained import locate


@pytest.fixture(scope="module")
def tokenizer(tiny_bert):
    return Tokenizer(tiny_bert)


def test_rows_of_any_shape_are_padded_on_the_right_and_masked():
    table = TokenTable(np.array([5, 6, 7, 8], np.int32), np.array([0, 3, 4]), pad_id=9)
    tokens = table.pad(np.array([1, 0, 1]), 4)
    np.testing.assert_array_equal(tokens.ids, [[8, 9, 9, 9], [5, 6, 7, 9], [8, 9, 9, 9]])
    np.testing.assert_array_equal(tokens.mask, tokens.ids != 9)
    assert tokens.ids.dtype == np.int32
    table = TokenTable(np.zeros(0, np.int32), np.zeros(3, np.int64), pad_id=9)
    np.testing.assert_array_equal(table.pad(np.array([[0], [1]]), 2).ids, [[[9, 9]], [[9, 9]]])
    table = TokenTable(np.array([5, 6, 7], np.int32), np.array([0, 1, 1, 3]), pad_id=9)
    np.testing.assert_array_equal(table.pad(np.array([[2, 0], [1, 2]]), 2).ids, [[[6, 7], [5, 9]], [[9, 9], [6, 7]]])


@pytest.mark.parametrize(("longest", "expected"), [(0, 32), (1, 32), (32, 32), (33, 64), (65, 70), (90, 70)])
def test_padded_length_is_the_next_multiple_up_to_the_limit(longest, expected):
    assert padded_length(longest, limit=70, multiple=32) == expected


def test_tokenizers_of_one_state_make_the_same_ids(tokenizer, folder):
    again = Tokenizer(folder)
    assert tokenizer.same_ids(again)
    assert again.fingerprint in again.identity
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    change(folder / "tokenizer.json", model=model | {"max_input_chars_per_word": 7})
    assert not tokenizer.same_ids(Tokenizer(folder))


def test_folders_without_a_tokenizer_or_with_another_are_refused(tokenizer, tiny_bert, tmp_path):
    check_refusal(lambda: tokenizer.check_matches(10, tiny_bert), "have 10", "its largest id is")
    check_refusal(lambda: Tokenizer(tmp_path), "holds no tokenizer")


def test_a_tokenizer_that_needs_a_package_names_it(folder):
    if importlib.util.find_spec("fugashi"):
        pytest.skip("fugashi is installed")
    (folder / "vocab.txt").write_text("\n".join(vocabulary()))
    config = {"tokenizer_class": "BertJapaneseTokenizer", "word_tokenizer_type": "mecab"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    check_refusal(lambda: Tokenizer(folder), f"{folder} holds a tokenizer that can't")


TEXTS = ["The cat's  on [SEP] the MAT.", "", "naïve café, 北京 ☃", " where\tis the dog? ", "x" * 200, "</s> <pad> a"]


@pytest.fixture
def folder(tmp_path):
    return write_tiny_bert(tmp_path / "bert")


def ids_of(tokenizer, texts, length) -> list[list[int]]:
    table = tokenizer(texts, length)
    return [table.ids[start:end].tolist() for start, end in itertools.pairwise(table.offsets)]


def agrees_with_transformers(folder):
    from transformers import AutoTokenizer

    theirs, ours = AutoTokenizer.from_pretrained(str(folder), local_files_only=True), Tokenizer(folder)
    for length in (5, 32):
        expected = theirs(TEXTS, truncation=True, max_length=length)["input_ids"]
        assert ids_of(ours, TEXTS, length) == expected
    assert (ours.pad_id, ours.size) == (theirs.pad_token_id, len(theirs))


def change(file, **values):
    content = json.loads(file.read_text())
    file.write_text(json.dumps({k: v for k, v in (content | values).items() if v is not None}))


def test_threads_may_share_a_tokenizer(folder):
    loaded = Tokenizer(folder)
    lengths, texts = [3, 7, 16] * 20, TEXTS * 50
    expected = {length: ids_of(loaded, texts, length) for length in set(lengths)}
    with futures.ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda length: ids_of(loaded, texts, length), lengths)
        assert all(ids == expected[length] for length, ids in zip(lengths, found, strict=True))


def test_minilm_agrees(minilm):
    agrees_with_transformers(locate(minilm))


def test_t5_agrees(test_data):
    agrees_with_transformers(test_data / "weights" / "t5_v1_1_small_encoder")


PROGRAM = """
import sys
from concurrent.futures import ThreadPoolExecutor
from endx_jax.data import tokenizer_files
from endx_jax.data.tokenization import Tokenizer
folder, saved, tokenizer_files.STATES = sys.argv[1:]
tokenizer = Tokenizer(folder)
tokenizer(["the cat"], 8)
assert "transformers" not in sys.modules
tokenizer_files.STATES = saved  # which holds no state yet
with ThreadPoolExecutor(3) as pool:
    print(*{one.fingerprint for one in [tokenizer, *pool.map(Tokenizer, [folder] * 3)]})
tokenizer.save(saved)
assert "transformers" in sys.modules and "torch" not in sys.modules
"""


def test_transformers_reads_new_files_only_and_its_tokenizer_is_kept(folder, tmp_path, monkeypatch):
    states = tmp_path / "states"
    monkeypatch.setattr(tokenizer_files, "STATES", str(states))
    fingerprint = Tokenizer(folder).fingerprint
    (kept,) = states.iterdir()
    whole = kept.read_text()
    command = [sys.executable, "-W", "error", "-c", PROGRAM, folder, tmp_path / "saved", states]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{fingerprint}\n", "")
    for damaged in ("", "{}", '{"backend": "{}", "special": {}}'):
        kept.write_text(damaged)
        assert Tokenizer(folder).fingerprint == fingerprint
        assert kept.read_text() == whole
    change(folder / "tokenizer_config.json", do_lower_case=False, tokenizer_class="BertTokenizer")  # another tokenizer
    assert Tokenizer(folder).fingerprint != fingerprint
    assert len([*states.iterdir()]) == 2


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"truncation_side": "left"},
        {"truncation_side": "left", "tokenizer_class": None},
        {"tokenizer_class": None},
        {"tokenizer_class": "BertTokenizer", "do_lower_case": False},
        {"tokenizer_class": "BertTokenizer", "strip_accents": False},
        {"tokenizer_class": "BertTokenizer", "mask_token": None},
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "mat"},
        {"split_special_tokens": True},
    ],
    ids=str,
)
def test_every_config_gives_the_tokens_of_transformers(folder, values):
    change(folder / "tokenizer_config.json", **values)
    agrees_with_transformers(folder)
    if not values:  # special tokens that only the config knows are used
        change(folder / "tokenizer.json", added_tokens=[])
        agrees_with_transformers(folder)


def test_a_saved_or_pickled_tokenizer_is_the_same(folder, tmp_path):
    change(folder / "tokenizer_config.json", tokenizer_class="BertTokenizer", do_lower_case=False)
    loaded = Tokenizer(folder)
    loaded(TEXTS, 5)
    loaded.save(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "tokenizer.json").read_text())["truncation"] is None
    for again in (Tokenizer(tmp_path / "saved"), pickle.loads(pickle.dumps(loaded))):
        assert ids_of(again, TEXTS, 32) == ids_of(loaded, TEXTS, 32)
        assert again.same_ids(loaded)
        assert (again.pad_id, again.size) == (loaded.pad_id, loaded.size)


@pytest.mark.parametrize("side", ["right", "left"])
def test_texts_that_are_cut_are_counted_over_all_chunks(folder, side):
    change(folder / "tokenizer_config.json", truncation_side=side)
    table = Tokenizer(folder)(["the cat", "the cat the", "the cat the cat", ""] * 4_000, 5)  # two special tokens
    assert (table.lengths.tolist(), table.cut) == ([4, 5, 5, 2] * 4_000, 4_000)


def test_a_tokenizer_that_is_written_in_python_counts_too(folder, monkeypatch, tmp_path):

    class Slow:
        is_fast, truncation_side, pad_token, pad_token_id = False, "right", "[PAD]", 0
        bos_token = eos_token = unk_token = mask_token = None

        def get_vocab(self):
            return {"a": 8}

        def __call__(self, texts, truncation=False, max_length=None):
            rows = [[1] * len(text) for text in texts]
            return {"input_ids": [row[:max_length] for row in rows] if truncation else rows}

    monkeypatch.setattr(tokenizer_files, "STATES", str(tmp_path / "states"))
    for module in (tokenization, tokenizer_files):
        monkeypatch.setattr(module, "load_with_transformers", lambda folder: Slow())
    loaded = Tokenizer(folder)
    table = loaded(["ab", "abc", "abcd"], 3)
    assert (loaded.size, loaded.identity) == (9, None)
    assert (table.ids.tolist(), table.lengths.tolist(), table.cut) == ([1] * 8, [2, 3, 3], 1)


def test_halves_of_surrogate_pairs_are_joined_or_unknown(folder):
    loaded = Tokenizer(folder)
    whole, joined, half, unknown = ids_of(loaded, ["a 🙂", "a \ud83d\ude42", "a \ud83d", "a \ufffd"], 9)
    assert whole == joined
    assert half == unknown


@pytest.mark.parametrize(
    ("name", "contents", "named"),
    [
        ("tokenizer.json", b"[]", ["tokenizer.json", "an object", "a list"]),
        ("tokenizer.json", b"{", ["tokenizer.json, column 2", "broken JSON"]),
        ("tokenizer.json", b"[" * 100_000, ["tokenizer.json", "nested too deeply"]),
        ("tokenizer.json", b"{}", ["no tokenizer that can be used"]),
        ("tokenizer_config.json", b"[]", ["tokenizer_config.json", "an object", "a list"]),
        ("tokenizer_config.json", b'{"pad_token": [1]}', ["no tokenizer that can be used"]),
    ],
)
def test_broken_files_are_refused(folder, name, contents, named):
    (folder / name).write_bytes(contents)
    check_refusal(lambda: Tokenizer(folder), *named)


@pytest.mark.parametrize(
    "values",
    [
        {"added_tokens": None},
        {"added_tokens": [5]},
        {"added_tokens": [{"id": 0, "content": [], "special": True}]},
        {"model": 5},
        {"normalizer": []},
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Removed", "invert": False}},
    ],
)
def test_damaged_values_are_refused_or_harmless(folder, values):
    change(folder / "tokenizer.json", **values)
    with contextlib.suppress(EndxError):
        ids_of(Tokenizer(folder), TEXTS, 32)


def test_a_regular_expression_without_end_is_one_line_at_the_text_that_meets_it(folder):
    pattern = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Removed", "invert": False}
    change(folder / "tokenizer.json", pre_tokenizer=pattern)
    loaded = Tokenizer(folder)
    check_refusal(lambda: loaded(["x" * 40], 32), "holds no tokenizer that can be")


def test_the_size_covers_sparse_ids_and_those_put_around_texts_and_not_padding(folder):
    dense = Tokenizer(folder).size
    spec = json.loads((folder / "tokenizer.json").read_text())
    # Texts are not padded to the length of the file, which may exceed memory.
    padding = {"strategy": {"Fixed": 100}, "pad_id": 5_000, "pad_type_id": 0, "pad_token": "[PAD]"}
    change(folder / "tokenizer.json", padding={**padding, "direction": "Right", "pad_to_multiple_of": None})
    assert (dense, Tokenizer(folder).size) == (len(spec["model"]["vocab"]), dense)
    spec["post_processor"]["special_tokens"]["[SEP]"]["ids"] = [5_000]
    change(folder / "tokenizer.json", post_processor=spec["post_processor"])
    assert Tokenizer(folder).size == 5_001
    change(folder / "tokenizer.json", model=spec["model"] | {"vocab": spec["model"]["vocab"] | {"zebra": 9_000}})
    assert Tokenizer(folder).size == 9_001
    spec["post_processor"]["single"] *= 3
    change(folder / "tokenizer.json", post_processor=spec["post_processor"])
    check_refusal(lambda: Tokenizer(folder)(["the cat " * 40], 32), "32 tokens", "its template makes texts longer than")


def test_a_huge_id_is_refused_before_memory_is_taken(folder):
    spec = json.loads((folder / "tokenizer.json").read_text())
    added, model = spec["added_tokens"], spec["model"]
    huge = {"added_tokens": [added[0] | {"id": 2**31}, *added[1:]]}, {"model": model | {"vocab": {"the": 2**31}}}
    for values in huge:
        change(folder / "tokenizer.json", **{"added_tokens": added, "model": model} | values)
        check_refusal(lambda: Tokenizer(folder), "tokenizer.json: the id of ", " is 2147483648")


def template(single, pair=None):
    return {"TemplateProcessing": (single, pair or f"{single} {single.replace('A', 'B')}")}


FAIRSEQ = "sentencepiece.bpe.model"
BYTES, BOS, BOTH = {"ByteLevel": ()}, template("<s> $A", "<s> $A <s> $B:1"), template("<s> $A </s>")
# By model: its post-processors, its settings, and the tokens of "a b" without and with an appended EOS.
ENDINGS = {
    "Llama 2, Mistral, Gemma": ([BOS], {"add_bos_token": True, "add_eos_token": False}, "<s> a b", "<s> a b </s>"),
    "e5-mistral": ([BOS], {"add_eos_token": True}, "<s> a b </s>", "<s> a b </s>"),
    "SFR-Embedding-Mistral": ([BOTH], {"add_bos_token": True, "add_eos_token": True}, "<s> a b </s>", "<s> a b </s>"),
    "Llama 3": ([BYTES, BOS], {}, "<s> a b", "<s> a b </s>"),
    "EmbeddingGemma": ([BOTH], {}, "<s> a b </s>", "<s> a b </s>"),
    "Qwen 3": ([BYTES], {"add_bos_token": False}, "a b", "a b </s>"),
    "Qwen3-Embedding": ([BYTES, template("$A <pad>")], {}, "a b <pad>", "a b <pad>"),
    "gte-Qwen2": ([BYTES], {"add_eos_token": True}, "a b </s>", "a b </s>"),
    "OPT": ([template("</s> $A")], {"add_bos_token": True}, "</s> a b", "</s> a b </s>"),
    "DeepSeek": ([BYTES], {"add_bos_token": True, "add_eos_token": False}, "<s> a b", "<s> a b </s>"),
    "Phi 3": ([template("$A")], {"add_bos_token": False}, "a b", "a b </s>"),
    "GPT-NeoX": ([], {}, "a b", "a b </s>"),
    "RoBERTa": ([{"RobertaProcessing": ("</s>", "<s>")}], {"add_eos_token": True}, "<s> a b </s>", "<s> a b </s>"),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_the_template_that_is_there_is_extended_once(tmp_path, name):
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, pre_tokenizers, processors

    steps, settings, *expected = ENDINGS[name]
    words = ["<s>", "</s>", "<pad>", "<unk>", "a", "b"]
    ids = {word: n for n, word in enumerate(words)}
    backend = Backend(models.WordLevel(ids, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokens = {"special_tokens": [(word, ids[word]) for word in words[:3]]}
    made = []
    for kind, args in [item for step in steps for item in step.items()]:
        more = tokens if kind == "TemplateProcessing" else {}
        pairs = [(word, ids[word]) for word in args] if kind == "RobertaProcessing" else args
        made.append(getattr(processors, kind)(*pairs, **more))
    if made:
        backend.post_processor = made[0] if len(made) == 1 else processors.Sequence(made)
    backend.save(str(tmp_path / "tokenizer.json"))
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    about = {"tokenizer_class": "PreTrainedTokenizerFast", **special, **settings}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(about))
    for append, right in zip((False, True), expected, strict=True):
        loaded = Tokenizer(tmp_path, append_eos=append)
        loaded.save(tmp_path / "saved")
        pair = Backend.from_file(str(tmp_path / "saved" / "tokenizer.json")).encode("a", "b").tokens
        ending = right.partition("b")[2].split()
        assert pair[pair.index("a") + 1 :][: len(ending)] == pair[pair.index("b") + 1 :] == ending
        again = Tokenizer(tmp_path / "saved", append_eos=append)
        for tokenizer in (loaded, again):
            assert " ".join(words[n] for n in tokenizer(["a b"], 9).ids) == right
        assert again.same_ids(loaded)


@pytest.mark.parametrize(
    ("model_type", "file", "special"),
    [("t5", "spiece.model", {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}), ("xlm-roberta", FAIRSEQ, {})],
)
def test_a_sentencepiece_model_alone_is_a_tokenizer(tmp_path, model_type, file, special):
    import sentencepiece

    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    texts, made = ["the cat sat on a mat", "who is in the dog", "größere Häuser"], io.BytesIO()
    options = {"hard_vocab_limit": False, "minloglevel": 2, **special}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(texts * 9), model_writer=made, **options)
    (tmp_path / file).write_bytes(made.getvalue())
    rows = sentencepiece.SentencePieceProcessor(model_proto=made.getvalue()).encode(texts)
    # XLM-R's ids begin with <s>, <pad>, </s> and <unk>, and the model's with <unk>, <s> and </s>.
    right = [[0, *(id_ + 1 for id_ in row), 2] if file == FAIRSEQ else [*row, 1] for row in rows]
    assert ids_of(Tokenizer(tmp_path), texts, 64) == right


def test_texts_in_a_language_that_a_tokenizer_does_not_know_are_named(minilm):
    tokenizer = Tokenizer(locate(minilm))
    german = ["Wie kann ich mein Passwort zurücksetzen?", "Öffnen Sie die Einstellungen und klicken Sie darauf."]
    (line,) = tokenizer.describe_unfit(german, minilm)
    assert line.startswith("warning: the tokenizer of all-MiniLM-L6-v2 splits these texts, in German, into ")
    for other in ("如何重置密码？", "パスワードを忘れました。", "Как сбросить пароль?", "पासवर्ड कैसे बदलूँ?"):
        assert tokenizer.describe_unfit([other], minilm)
    assert not tokenizer.describe_unfit(["How do I reset my password?"], minilm)


def test_the_library_s_own_protection_of_forked_processes_stays(tiny_bert, monkeypatch):
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    Tokenizer(tiny_bert)
    assert "TOKENIZERS_PARALLELISM" not in os.environ
