"""Script that encodes texts with an export and its own runtime, in a separate process.

  python -P encode_elsewhere.py FORMAT FOLDER PLACE

Reads texts, the number of the first ones, and names of prompts for these from `asked.json` in PLACE. Writes
`embeddings.npz`, by side and by number of the prompt, and `versions.json` there.
"""

import importlib.metadata
import json
import pathlib
import runpy
import sys

import numpy as np

RUNTIMES = {
    "sentence-transformers": ("sentence-transformers", "transformers", "torch"),
    "stablehlo": ("jax", "tokenizers"),
}


def encode(kind: str, folder: str, texts: list[str], first: int, prompts: list) -> dict[str, np.ndarray]:
    """Returns embeddings [N, E] of the texts by side, and of the first with each prompt by the number of its name."""
    if kind != "sentence-transformers":
        run = runpy.run_path(f"{folder}/encode.py")["encode"]
        return {side: np.asarray(run(side, texts)) for side in ("question", "answer")}
    import sentence_transformers

    about = json.loads(pathlib.Path(folder, "config_sentence_transformers.json").read_text("utf-8"))
    if about["model_type"] == "MultiVectorEncoder":
        model = sentence_transformers.MultiVectorEncoder(folder, device="cpu")
        return encode_tokens(model, texts, first)
    model = sentence_transformers.SentenceTransformer(folder, device="cpu")
    named = [model.encode(texts[:first], prompt_name=name) for name in prompts]
    sides = {"question": model.encode_query(texts), "answer": model.encode_document(texts)}
    return sides | {str(n): embeddings for n, embeddings in enumerate(named)}


def encode_tokens(model, texts: list[str], scored: int) -> dict[str, np.ndarray]:
    """Returns the embeddings [T, E] of all tokens by side, and scores of the first `scored`, divided by the tokens."""
    questions, documents = (run(texts, convert_to_numpy=True) for run in (model.encode_query, model.encode_document))
    scores = model.similarity(questions[:scored], documents[:scored]).numpy()
    scores = scores / np.array([[max(1, len(tokens))] for tokens in questions[:scored]])
    return {"question": np.concatenate(questions), "answer": np.concatenate(documents), "scores": scores}


def main(kind: str, folder: str, place: pathlib.Path) -> None:
    """Writes embeddings and versions to `place`."""
    embeddings: dict = encode(kind, folder, **json.loads((place / "asked.json").read_text("utf-8")))
    if "endx_jax" in sys.modules:
        raise RuntimeError("the export imported endx_jax, which it must not need")
    np.savez(place / "embeddings.npz", **embeddings)
    versions = {name: importlib.metadata.version(name) for name in RUNTIMES[kind]}
    (place / "versions.json").write_text(json.dumps(versions))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3]))
