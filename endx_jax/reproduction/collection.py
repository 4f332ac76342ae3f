"""Rows that search a whole collection, such as Wikipedia's passages (OpenNQ): trained, encoded to an index, ranked."""

import functools
import json
import pathlib

from endx_jax.data.answered import read_answered
from endx_jax.data.corpus import read_corpus
from endx_jax.experiment.console import say
from endx_jax.files import write_text
from endx_jax.loading import EmbeddingModel, load
from endx_jax.loading.index_model import IndexModel
from endx_jax.reproduction.outcome import Outcome
from endx_jax.reproduction.plan import Options
from endx_jax.reproduction.table import Row
from endx_jax.reproduction.trained import Budget, trained
from endx_jax.retrieval.claims import Claims
from endx_jax.retrieval.corpus_encoding import Encoding, begin, encode_shards, survey
from endx_jax.retrieval.encode import Output
from endx_jax.retrieval.index import Index
from endx_jax.retrieval.shards import metric_of
from endx_jax.retrieval.whole_index import evaluate_answered

CUTOFFS = (5, 20, 100)
SHARD = 32768
# Beside a run's results: the index of the collection, and what was found in it.
INDEX, FILE = "collection", "collection.json"


def measure(row: Row, options: Options, budget: Budget) -> Outcome:
    """Trains the row's system where it is not there, encodes the collection, and looks for answers in what it finds."""

    def read(workdir: pathlib.Path, row: Row) -> tuple[float, ...]:
        file = workdir / FILE
        if not file.exists():
            asked = read_answered(options.place_of(row.questions))
            folder = workdir / INDEX
            encode_collection(load(workdir), options.place_of(row.collection), folder)
            index = Index(folder)
            embeddings = IndexModel(index, workdir).encode_query([question.text for question in asked])
            found = evaluate_answered(index.snapshot, embeddings, asked, cutoffs=CUTOFFS)
            write_text(file, json.dumps(found.metrics, indent=1) + "\n")
        metrics = json.loads(file.read_text(encoding="utf-8"))
        return tuple(100 * metrics[name] for name in row.measures)

    return trained(row, options, budget, read=read)


def encode_collection(model: EmbeddingModel, corpus: str, folder: pathlib.Path) -> None:
    """Encodes a collection as `endx encode` does, going on where that was interrupted."""
    read = functools.partial(read_corpus, corpus)
    found = survey(read())
    output = Output(model.width, model.cosine)
    encoding = Encoding(
        model={"name": model.name, "identity": model.identity},
        corpus={"path": corpus, "documents": found.documents, "sha256": found.sha256},
        side="document",
        width=model.width,
        precision="float32",
        metric=metric_of(cosine=model.cosine),
        shard_size=SHARD,
    )
    say(f"encoding the {found.documents:,} documents of {corpus}")

    def encode(texts):
        return model.encoder(model.params, "answer", texts, output=output)

    with Claims(folder) as claims:
        if begin(folder, claims, encoding):
            for _ in encode_shards(folder, claims, encoding, read, encode):
                pass
