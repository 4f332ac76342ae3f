import gzip
import pathlib
import shutil

import numpy as np
import pytest
from fuzzing import damaged_bytes, damaged_json, fuzzed, only_user_errors
from helpers import write_files
from hypothesis import given
from hypothesis import strategies as st
from tiny_bert import write_tiny_bert
from tiny_models import write_tiny_t5
from tiny_modules import write_routes

from endx_jax import pretrained
from endx_jax.data.tokenization import Tokenizer
from endx_jax.inference.manifest import read_manifest
from endx_jax.pretrained.sentence_transformers import read_usage
from endx_jax.pretrained.static import read_word_vectors
from endx_jax.pretrained.weights import open_tensors

# A damaged key is an unknown one, and a damaged tensor's name too.
pytestmark = pytest.mark.filterwarnings("ignore:.*unknown keys are ignored", "ignore:.*weights are not used")

TEXTS = ["the cat sat on the mat", "", "a dog 🙂 [SEP] where?"]
SHARDS = {"weight_map": {"a": "one.safetensors", "b": "sub/two.safetensors"}, "metadata": {"total_size": 5}}
USAGE = {"prompts": {"query": "q: "}, "default_prompt_name": "query", "similarity_fn_name": "dot", "truncate_dim": 4}
LENGTHS = {"max_seq_length": 16, "do_lower_case": False}
SIDE = {"folder": "a", "prompt": "q: ", "length": 16, "program": "c", "sha256": "d"}
EXPORT = {"format": "towers", "version": 1, "name": "x", "width": 8, "normalize": True, "cosine": False}
EXPORT |= {"sides": {"question": SIDE, "answer": SIDE}, "identity": "e", "weights_sha256": "f"}
MODULES = ["Transformer", "Pooling-cls", "Dense-6", "Normalize"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> pathlib.Path:
    """Valid folders, by kind; tests damage one file and put it back."""
    root = tmp_path_factory.mktemp("valid")
    bert = write_tiny_bert(root / "bert", num_hidden_layers=1)
    Tokenizer(bert)  # imports transformers, which is no memory of a reader
    usage = {"config_sentence_transformers.json": USAGE, "sentence_bert_config.json": LENGTHS}
    write_files(shutil.copytree(bert, root / "used"), usage)
    zeros = {place: {place[:2]: np.zeros((2, 3), np.float32)} for place in SHARDS["weight_map"].values()}
    write_files(root / "shards", zeros | {"model.safetensors.index.json": SHARDS})
    table = {"config.json": {"model_type": "model2vec"}, "model.safetensors": {"embeddings": np.zeros((150, 4), "f4")}}
    write_files(shutil.copytree(bert, root / "table"), table)
    write_tiny_t5(root / "t5")
    write_routes(root / "routes", MODULES, MODULES)
    return write_files(root, {"export/endx.json": EXPORT})


def load_all(folder: pathlib.Path) -> None:
    """Reads everything of a folder but what needs compilation."""
    read_usage(folder)
    sources = pretrained.load_sides(pretrained.locate(str(folder))).values()
    for source in {source.folder: source for source in sources}.values():  # sides may be one
        source.params()
        tokenizer = Tokenizer(source.folder)
        tokenizer.check_matches(source.config.vocab_size, source.folder)
        assert tokenizer(TEXTS, 16).ids.max(initial=0) < source.config.vocab_size


def check(file: pathlib.Path, data: st.DataObject, damage, read) -> None:
    """Damages a file, reads it, and puts it back."""
    valid = file.read_bytes()
    file.write_bytes(data.draw(damage(valid)))
    try:
        with only_user_errors():
            read()
    finally:
        file.write_bytes(valid)


def damaged_tensors(valid: bytes) -> st.SearchStrategy[bytes]:
    """Draws a safetensors file with a damaged header, of its own or the former length, or damaged bytes."""
    length = int.from_bytes(valid[:8], "little")
    header, body = valid[8 : 8 + length], valid[8 + length :]
    lengths = st.sampled_from([None, 0, 1, length, len(valid), 2**31, 2**63, 2**64 - 1])

    def joined(drawn: tuple[bytes, int | None]) -> bytes:
        header, length = drawn
        return (len(header) if length is None else length).to_bytes(8, "little") + header + body

    return st.tuples(damaged_json(header), lengths).map(joined) | damaged_bytes(valid)


READERS = {
    "shards": lambda folder: {name: np.asarray(tensor) for name, tensor in open_tensors(folder).items()},
    "table": lambda folder: pretrained.load_encoder(str(folder)).params(),
    "export": read_manifest,
}
DAMAGED = """
bert/config.json bert/tokenizer.json bert/tokenizer_config.json t5/config.json routes/modules.json
routes/router_config.json routes/Pooling-cls/config.json routes/Dense-6/config.json
used/config_sentence_transformers.json used/sentence_bert_config.json
shards/model.safetensors.index.json shards/one.safetensors
table/config.json table/tokenizer.json table/model.safetensors export/endx.json
""".split()


@pytest.mark.parametrize("name", DAMAGED)
@fuzzed
@given(data=st.data())
def test_a_file_of_a_folder(folders, name, data):
    kind, damage = name.partition("/")[0], damaged_json if name.endswith(".json") else damaged_tensors
    check(folders / name, data, damage, lambda: READERS.get(kind, load_all)(folders / kind))


@pytest.mark.parametrize("name", ["v.txt", "v.vec.gz"])
@fuzzed
@given(data=st.data())
def test_word_vectors(tmp_path, name, data):
    text, path = b"2 3\nthe 1.0 2.0 3.0\ncat 0.5 -1e3 nan\n", tmp_path / name
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    check(path, data, damaged_bytes, lambda: read_word_vectors(path))
