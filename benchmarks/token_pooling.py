"""Quality and size of pooled token vectors: `python benchmarks/token_pooling.py NAME=PATH ... [--model=MODEL]`.

Each PATH holds reading-comprehension data in SQuAD's format, which NAME names. The first --documents answer sentences
are the documents, which --questions of their questions, drawn by --seed, rank by exact MaxSim. MODEL is a model of late
interaction, or one of one vector a text (default all-MiniLM-L6-v2), whose token encodings are then taken as they are,
scaled to unit norm, without training for late interaction.
Prints a table and, with --json=FILE, writes it with the machine and the versions.
"""

import argparse
import json
import os
import pathlib
import shutil
import tempfile

import common
import numpy as np

import endx_jax
from endx_jax.data import reqa
from endx_jax.inference.token_pooling import pool_tokens
from endx_jax.models.token_embeddings import TokenPooling
from endx_jax.pretrained import locate

FACTORS = (1, 2, 3, 4)
KINDS = "sentence_transformers.base.modules."
MODULES = {"": f"{KINDS}transformer.Transformer", "1_Normalize": f"{KINDS}normalize.Normalize"}
USAGE = {"model_type": "MultiVectorEncoder", "prompts": {}, "similarity_fn_name": "maxsim"}


def by_token(name: str, folder: pathlib.Path) -> endx_jax.inference.EmbeddingModel:
    """Loads a model; of one with one vector a text its token encodings, from a folder of late interaction."""
    model = endx_jax.load(name)
    if model.by_token:
        return model
    for file in locate(name).iterdir():
        if file.is_file() and file.name not in ("modules.json", "config_sentence_transformers.json"):
            shutil.copy(file, folder)
    listed = [{"idx": n, "name": str(n), "path": path, "type": kind} for n, (path, kind) in enumerate(MODULES.items())]
    over = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
    files = {"modules.json": listed, "config_sentence_transformers.json": USAGE, "1_Normalize/config.json": over}
    for path, contents in files.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(json.dumps(contents))
    return endx_jax.load(folder)


def measured(model, path: str, options: argparse.Namespace) -> list[dict]:
    """Returns the rows of one data set; differences of MRR from factor 1 have the standard error over questions."""
    records = reqa.from_squad(path)
    right = [[row for row in rows if row < options.documents] for rows in records.qrels]
    some = np.flatnonzero([bool(rows) for rows in right])
    some = np.random.default_rng(options.seed).permutation(some)[: options.questions]
    asked = model.encode_query([records.questions[n] for n in some])
    whole = model.encode_document(records.candidates[: options.documents])
    rows, first = [], None
    for factor in FACTORS:
        # Pooled as `encode_document(..., pool_factor=factor)` does, without encoding the documents again.
        pooled = [pool_tokens(text, TokenPooling(factor)) for text in whole]
        scores = model.similarity(asked, pooled)
        best = np.array([scores[row, right[n]].max() for row, n in enumerate(some)])[:, None]
        rank = 1 + (scores > best).sum(axis=1) + ((scores == best).sum(axis=1) - 1) / 2
        first = 1 / rank if first is None else first
        difference, vectors = 100 * (1 / rank - first), np.mean([len(text) for text in pooled])
        row = {"factor": factor, "questions": len(some), "mrr": round(100 * float(np.mean(1 / rank)), 2)}
        row |= {"difference": round(difference.mean(), 2), "error": round(difference.std() / len(some) ** 0.5, 2)}
        size = vectors * (pooled[0].shape[1] + 4)  # int8 with a scale
        rows.append(row | {"vectors a document": round(vectors, 1), "bytes a document": round(size)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", metavar="NAME=PATH")
    parser.add_argument("--model", default="all-MiniLM-L6-v2")
    parser.add_argument("--documents", type=int, default=3000)
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = by_token(options.model, pathlib.Path(folder))
        results = []
        for name, _, path in (pair.partition("=") for pair in options.data):
            results += [{"data": name} | row for row in measured(model, os.path.expanduser(path), options)]
    print(common.table(results))
    common.write(options.json, vars(options), results)


if __name__ == "__main__":
    main()
