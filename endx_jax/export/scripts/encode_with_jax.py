"""Embeddings with the model in this folder: `from encode import encode`.

Needs jax, flatbuffers, numpy, safetensors and tokenizers. As a program, `python encode.py question "who wrote Faust?"`
prints one embedding per line; the other side is `answer`.
"""

import functools
import json
import pathlib
import sys

import jax
import numpy as np
from jax import export
from safetensors.numpy import load_file
from tokenizers import Tokenizer

HERE = pathlib.Path(__file__).resolve().parent
ABOUT = json.loads((HERE / "endx.json").read_text(encoding="utf-8"))


@functools.cache
def weights():
    """Returns all weights on the device."""
    return jax.device_put(load_file(HERE / "model.safetensors"))


@functools.cache
def program(name):
    """Returns a program for any batch size and length, which is compiled for each new shape."""
    return jax.jit(export.deserialize(bytearray((HERE / name).read_bytes())).call)


@functools.cache
def tower(side):
    """Returns the tokenizer of a side and the weights of its program, shared ones included."""
    about = ABOUT["sides"][side]
    folder = HERE / about["folder"]
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(about["length"], direction=config.get("truncation_side", "right"))
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = bool(config.get("split_special_tokens"))
    named = (name.partition("/") for name in weights())
    return tokenizer, {name: weights()[f"{of}/{name}"] for of, _, name in named if of in ("shared", side)}


def encode(side, texts, batch_size=32):
    """Embeds texts of one side, `question` or `answer`: float32 [N, E]."""
    about, embeddings = ABOUT["sides"][side], np.zeros((len(texts), ABOUT["width"]), np.float32)
    tokenizer, params = tower(side)
    rows = [encoding.ids for encoding in tokenizer.encode_batch([about["prompt"] + text for text in texts])]
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    for start in range(0, len(order), batch_size):
        places = order[start : start + batch_size]
        # Pad batches to 32 rows and lengths to multiples of 16, so that few shapes are compiled.
        length = min(max(1, -(-len(rows[places[-1]]) // 16)) * 16, about["length"])
        ids, mask = np.zeros((batch_size, length), np.int32), np.zeros((batch_size, length), bool)
        for row, place in enumerate(places):
            ids[row, : len(rows[place])], mask[row, : len(rows[place])] = rows[place], True
        embeddings[places] = program(about["program"])(params, ids, mask)[: len(places)]
    return embeddings


if __name__ == "__main__":
    for embedding in encode(sys.argv[1], sys.argv[2:]):
        print(json.dumps(embedding.tolist()))
