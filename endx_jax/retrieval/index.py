"""The index: an encoded pool on disk, with its texts and what is needed to search it.

A folder of `embeddings.npy` (float32 [N, E]), `documents.jsonl` (one `{"id", "text"}` a line, in the same order) and
`manifest.json`.
"""

import json
import pathlib
import shutil
import tempfile
from collections.abc import Sequence

import numpy as np

from endx_jax.errors import EndxError

VERSION = 1


def write_index(
    folder: pathlib.Path, embeddings: np.ndarray, ids: Sequence[str], texts: Sequence[str], *, model: dict
) -> None:
    """Writes an index; an older one in its place stays whole until the new one is.

    Args:
      folder: to write.
      embeddings: float32 [N, E].
      ids: N external ids.
      texts: N texts.
      model: what identifies the model that encoded them, such as its step.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = pathlib.Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        np.save(fresh / "embeddings.npy", embeddings)
        with open(fresh / "documents.jsonl", "w", encoding="utf-8") as stream:
            for identifier, text in zip(ids, texts, strict=True):
                stream.write(json.dumps({"id": identifier, "text": text}, ensure_ascii=False) + "\n")
        count, width = embeddings.shape
        manifest = {"version": VERSION, "documents": count, "width": width, "model": model}
        (fresh / "manifest.json").write_text(json.dumps(manifest, indent=1))
        fresh.chmod(0o755)
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def read_index(folder: pathlib.Path) -> tuple[np.ndarray, list[str], list[str], dict]:
    """Reads an index: embeddings (memory-mapped), ids, texts, manifest.

    Raises:
      EndxError: when the folder holds no whole index.
    """
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        embeddings = np.load(folder / "embeddings.npy", mmap_mode="r", allow_pickle=False)
        with open(folder / "documents.jsonl", encoding="utf-8") as stream:
            documents = [json.loads(line) for line in stream]
    except (OSError, ValueError) as failure:
        raise EndxError(f"{folder} holds no index that can be read: {failure}") from None
    if not len(documents) == len(embeddings) == manifest["documents"]:
        raise EndxError(
            f"the index in {folder} is not whole: {len(documents)} documents, {len(embeddings)} embeddings, and "
            f"{manifest['documents']} in its manifest; make it again"
        )
    return embeddings, [d["id"] for d in documents], [d["text"] for d in documents], manifest
