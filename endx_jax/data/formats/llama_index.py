"""Reading of LlamaIndex's `EmbeddingQAFinetuneDataset`: a JSON object with `queries`, `corpus` and `relevant_docs`."""

import re

from endx_jax import json_files
from endx_jax.data.formats import text_files
from endx_jax.data.formats.format import Format, Place, ReadOptions
from endx_jax.data.formats.text_files import InvalidRows
from endx_jax.data.sets.records import RetrievalSet, RetrievalSetBuilder

START = re.compile(r'\s*\{\s*"(queries|corpus|relevant_docs)"\s*:\s*\{')  # beginning of a file of this format


def read_qa_dataset(place: Place, options: ReadOptions, invalid: InvalidRows) -> RetrievalSet:
    """Reads a file; as for BEIR folders, equal texts are merged, and a text that is not right may be empty."""
    path, merged = place.path, RetrievalSetBuilder()
    contents = text_files.read_json(path)
    texts, queries, right = (json_files.value(contents, key, path) for key in ("corpus", "queries", "relevant_docs"))
    for name in json_files.as_object(texts, f"{path}: corpus"):
        merged.candidate(json_files.text_at(texts, name, f"{path}: corpus", may_be_empty=True), name)
    for name, listed in json_files.as_object(right, f"{path}: relevant_docs").items():
        where = f"{path}: relevant_docs[{name!r:.100}]"
        with invalid.row():
            ids = (json_files.identifier(document, where) for document in json_files.as_list(listed, where))
            answers = [json_files.text_at(texts, document, where) for document in ids]
            merged.add(json_files.text_at(queries, name, where), answers, id=name)
    return merged.build()


LLAMA_INDEX = Format(
    "llama_index",
    lambda place: place.is_object and bool(START.match(text_files.head(place.files[0], 1000))),
    records=read_qa_dataset,
)
