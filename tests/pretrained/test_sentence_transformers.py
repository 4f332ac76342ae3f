"""What sentence-transformers folders of all ages say about pooling, norm and length."""

import json
import shutil

import pytest
from helpers import one_line_error

from endx_jax import pretrained
from endx_jax.data.tokenization import Tokenizer
from endx_jax.pretrained.sentence_transformers import Head, read_head

OLD = "sentence_transformers.models."
NEW = {  # as version 6 writes them
    "Transformer": "sentence_transformers.base.modules.transformer.Transformer",
    "Pooling": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    "Normalize": "sentence_transformers.base.modules.normalize.Normalize",
}
FLAGS = {
    "word_embedding_dimension": 32,
    "pooling_mode_cls_token": False,
    "pooling_mode_mean_tokens": True,
    "pooling_mode_max_tokens": False,
}


def write_head(folder, *, types, pooling, normalize=True, encoder="", limits=None) -> None:
    """Writes modules.json and what it names into `folder`; `limits` are files of the encoder."""
    names = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    paths = [encoder, "1_Pooling", "2_Normalize"]
    modules = [
        {"idx": i, "name": str(i), "path": paths[i], "type": types[name] if isinstance(types, dict) else types + name}
        for i, name in enumerate(names)
    ]
    write_json(folder / "modules.json", modules)
    write_json(folder / "1_Pooling" / "config.json", pooling)
    for name, contents in (limits or {}).items():
        write_json(folder / encoder / name, contents)


def write_json(file, contents) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(contents))


def test_a_plain_folder_is_pooled_by_the_mean_and_not_normalised(tmp_path):
    assert read_head(tmp_path) == Head(tmp_path, pooling="mean", normalize=False, max_length=None)


def test_the_real_model_states_its_head(minilm):
    source = pretrained.load(minilm)
    assert source.head == Head(source.folder, pooling="mean", normalize=True, max_length=256)


@pytest.mark.parametrize("normalize", [False, True])
def test_flags_and_old_module_names(tmp_path, normalize):
    limits = {"sentence_bert_config.json": {"max_seq_length": 128, "do_lower_case": False}}
    write_head(tmp_path, types=OLD, pooling=FLAGS, normalize=normalize, limits=limits)
    assert read_head(tmp_path) == Head(tmp_path, pooling="mean", normalize=normalize, max_length=128)


@pytest.mark.parametrize(("mode", "ours"), [("mean", "mean"), ("cls", "first"), (["mean"], "mean")])
def test_modes_and_new_module_names(tmp_path, mode, ours):
    pooling = {"embedding_dimension": 32, "pooling_mode": mode, "include_prompt": True}
    write_head(tmp_path, types=NEW, pooling=pooling)
    assert read_head(tmp_path).pooling == ours


def test_the_cls_flag_is_the_first_token(tmp_path):
    flags = FLAGS | {"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}
    write_head(tmp_path, types=OLD, pooling=flags)
    assert read_head(tmp_path).pooling == "first"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"tokenizer_config.json": {"model_max_length": 64}}, 64),
        ({"sentence_bert_config.json": {"max_seq_length": 40}, "tokenizer_config.json": {"model_max_length": 64}}, 40),
        ({"sentence_bert_config.json": {"max_seq_length": None}, "tokenizer_config.json": {"model_max_length": 9}}, 9),
        ({"sentence_bert_config.json": {}, "tokenizer_config.json": {}}, None),
    ],
)
def test_the_length_limit_is_the_head_s_or_else_the_tokenizer_s(tmp_path, files, expected):
    write_head(tmp_path, types=NEW, pooling={"pooling_mode": "mean"}, limits=files)
    assert read_head(tmp_path).max_length == expected


def test_an_encoder_in_a_folder_within_is_found_with_its_tokenizer(tiny_bert, tmp_path):
    shutil.copytree(tiny_bert, tmp_path / "model" / "0_Transformer")
    limits = {"sentence_bert_config.json": {"max_seq_length": 12}}
    write_head(tmp_path / "model", types=OLD, pooling=FLAGS, encoder="0_Transformer", limits=limits)
    source = pretrained.load(str(tmp_path / "model"))
    assert source.folder == tmp_path / "model" / "0_Transformer"
    assert source.head.max_length == 12
    Tokenizer(source.folder).check_matches(source.config.vocab_size, source.config.pad_id, source.folder)
    assert source.params()


@pytest.mark.parametrize("kind", ["Dense", "LSTM", "WordEmbeddings", "Router"])
def test_a_module_we_do_not_have_is_refused(tmp_path, kind):
    write_json(tmp_path / "modules.json", [{"idx": 0, "name": "0", "path": "", "type": OLD + kind}])
    with one_line_error(rf"modules\.json has a module '{kind}'; Transformer, Pooling and Normalize are known"):
        read_head(tmp_path)


@pytest.mark.parametrize(
    "pooling",
    [
        FLAGS | {"pooling_mode_max_tokens": True},
        FLAGS | {"pooling_mode_mean_tokens": False},
        FLAGS | {"pooling_mode_mean_tokens": False, "pooling_mode_weightedmean_tokens": True},
        {"pooling_mode": "lasttoken"},
        {"pooling_mode": ["mean", "cls"]},
        {"pooling_mode": []},
    ],
)
def test_another_pooling_is_refused(tmp_path, pooling):
    write_head(tmp_path, types=OLD, pooling=pooling)
    with one_line_error(r"1_Pooling/config\.json asks for pooling .*; one of .* is supported"):
        read_head(tmp_path)


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ({"type": "x"}, r"modules\.json holds a dict where a list is expected"),
        ([{"path": ""}], r"modules\.json has a module without a type or a path: {'path': ''}"),
        (["Transformer"], r"modules\.json has a module without a type or a path: 'Transformer'"),
    ],
)
def test_a_broken_list_of_modules_is_named(tmp_path, modules, message):
    write_json(tmp_path / "modules.json", modules)
    with one_line_error(message):
        read_head(tmp_path)


def test_a_missing_pooling_file_is_named(tmp_path):
    write_head(tmp_path, types=NEW, pooling={"pooling_mode": "mean"})
    (tmp_path / "1_Pooling" / "config.json").unlink()
    with one_line_error(r"1_Pooling/config\.json can't be read as JSON: .*No such file"):
        read_head(tmp_path)
