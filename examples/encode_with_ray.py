"""Encodes a corpus on a Ray cluster, with one actor for each accelerator, into one index; run it again to resume.

ray start --head     # on the first node; then `ray start --address=...` on the others
python examples/encode_with_ray.py --model=all-MiniLM-L6-v2 --corpus=corpus.jsonl --output=corpus.sqlite --actors=8

Needs `pip install 'ray[data]'`, and the model on every node. Ray's object store keeps the texts. The embeddings are
those of `endx encode` on devices of the same kind, byte for byte.
"""

import argparse
import functools
import itertools
import pathlib
from collections.abc import Iterator

import numpy as np
import ray

import endx_jax
from endx_jax.data.formats import read_corpus
from endx_jax.index.corpus_encoding import STEP, begin_index, encode_missing, encoding_of, survey, unchanged
from endx_jax.inference.encode import EmbeddingFormat


class Encoder:
    """Actor that holds the model on one device."""

    def __init__(self, model: str):
        """Loads the model."""
        self._model = endx_jax.load(model)

    def __call__(self, row: dict) -> dict:
        """Encodes the texts of a row; returns float32 [n, E]."""
        output = EmbeddingFormat(self._model.width, self._model.cosine)
        texts = list(row["texts"])
        return {"embeddings": self._model.encoder(self._model.params, "answer", texts, output=output)}


def main() -> None:
    """Encodes the documents that are missing in the output."""
    options = _parser().parse_args()
    read = functools.partial(read_corpus, options.corpus)
    model = endx_jax.load(options.model)
    surveyed = survey(read())
    info = encoding_of(model, options.corpus, surveyed, precision="float32")
    done = begin_index(options.output, info)
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    rows = [{"texts": texts} for texts in _parts(itertools.islice(unchanged(read(), surveyed), done, None))]
    resources = {"num_gpus": options.gpus, "num_cpus": 1}
    encoded = ray.data.from_items(rows, override_num_blocks=max(len(rows), 1)).map(
        Encoder, fn_constructor_args=[options.model], concurrency=options.actors, **resources
    )
    embeddings = (np.asarray(row["embeddings"], np.float32) for row in encoded.iter_rows())
    output = EmbeddingFormat(model.width, model.cosine)
    encode_question = functools.partial(model.encoder, model.params, "question", output=output)  # known questions: here
    encoded_parts = encode_missing(
        options.output,
        info,
        unchanged(read(), surveyed),
        lambda texts: next(embeddings),
        encode_question=encode_question,
    )
    for count, _ in encoded_parts:
        done += count
        print(f"{done:,} of {info.corpus['documents']:,} documents", flush=True)


def _parts(documents) -> Iterator[list[str]]:
    """Yields the texts of `STEP` documents at a time, as `encode_missing` asks for them."""
    while part := [document.text for document in itertools.islice(documents, STEP)]:
        yield part


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="pretrained folder or name, or workdir of a run")
    parser.add_argument("--corpus", required=True, help="corpus, as for endx encode")
    parser.add_argument("--output", required=True, type=pathlib.Path, help="file of the index")
    parser.add_argument("--actors", type=int, default=1, help="number of actors [1]")
    parser.add_argument("--gpus", type=float, default=0, help="GPUs of an actor; Ray shows it no others [0]")
    return parser


if __name__ == "__main__":
    main()
