"""Small folders of BEIR."""

import pathlib
from collections.abc import Iterable, Mapping

from helpers import written


def write_beir(
    folder: pathlib.Path, corpus: Mapping[str, str], queries: Mapping[str, str], **qrels: Iterable[tuple]
) -> pathlib.Path:
    """Writes texts by their ids, and rows of query, document and grade by split."""
    (folder / "qrels").mkdir(parents=True)
    for name, texts in (("corpus", corpus), ("queries", queries)):
        written(folder / f"{name}.jsonl", [{"_id": key, "text": text} for key, text in texts.items()])
    for split, rows in qrels.items():
        lines = ["\t".join(map(str, row)) + "\n" for row in [("query-id", "corpus-id", "score"), *rows]]
        written(folder / "qrels" / f"{split}.tsv", "".join(lines))
    return folder
