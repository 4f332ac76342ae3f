"""Embeddings with the model in this folder: `from encode import encode`.

Needs torch, transformers and safetensors. As a program, `python encode.py question "who wrote Faust?"` prints one
embedding per line; the other side is `answer`.
"""

import functools
import json
import pathlib
import sys

import torch
import transformers
from safetensors.torch import load_file

HERE = pathlib.Path(__file__).resolve().parent
ABOUT = json.loads((HERE / "endx.json").read_text(encoding="utf-8"))


@functools.cache
def encoder(place):
    """Returns the tokenizer and the encoder in a folder."""
    config = json.loads((HERE / place / "config.json").read_text(encoding="utf-8"))
    model = getattr(transformers, config["architectures"][0])
    return transformers.AutoTokenizer.from_pretrained(HERE / place), model.from_pretrained(HERE / place).eval()


@functools.cache
def projection(place):
    """Returns the projection matrix [E, P] in a folder."""
    return load_file(HERE / place / "model.safetensors")["linear.weight"]


def pooled(encodings, mask):
    """Pools encodings [B, L, D] of texts that are padded on the right."""
    kind = ABOUT["pooling"]
    if kind == "first":
        return encodings[:, 0]
    if kind == "last":
        return encodings[torch.arange(len(mask)), mask.sum(1) - 1]
    weights = mask * torch.arange(1, mask.shape[1] + 1) if kind == "weighted_mean" else mask
    return (encodings * weights[:, :, None]).sum(1) / weights.sum(1, keepdim=True)


@torch.inference_mode()
def encode(side, texts, batch_size=32):
    """Embeds texts of one side, `question` or `answer`: a float32 tensor [N, E]."""
    about, batches = ABOUT["sides"][side], [torch.zeros(0, ABOUT["width"])]
    tokenizer, model = encoder(about["folder"])
    for start in range(0, len(texts), batch_size):
        batch = [about["prompt"] + text for text in texts[start : start + batch_size]]
        tokens = tokenizer(batch, padding=True, truncation=True, max_length=about["length"], return_tensors="pt")
        ids, mask = tokens["input_ids"], tokens["attention_mask"]
        encodings = model(input_ids=ids, attention_mask=mask).last_hidden_state  # [B, L, D]
        embeddings = pooled(encodings, mask)
        if about["projection"]:
            embeddings = embeddings @ projection(about["projection"]).T
        batches.append(torch.nn.functional.normalize(embeddings) if ABOUT["normalize"] else embeddings)
    return torch.cat(batches)


if __name__ == "__main__":
    for embedding in encode(sys.argv[1], sys.argv[2:]):
        print(json.dumps(embedding.tolist()))
