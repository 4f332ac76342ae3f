"""Verification of an export: compares embeddings computed by its own runtime in another process with ours."""

import dataclasses
import functools
import itertools
import json
import os
import pathlib
import pydoc_data.topics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

import jax
import numpy as np

import endx_jax
from endx_jax import json_files
from endx_jax.errors import EndxError
from endx_jax.experiment import workdir as workdirs
from endx_jax.export.towers import one_tower
from endx_jax.index.index import Index
from endx_jax.inference import EmbeddingModel
from endx_jax.inference.maxsim import maxsim_scores
from endx_jax.models.dual_encoder import SIDES
from endx_jax.ranking.systems import mean_maxsim

REPORT = "export_report.json"

TEXTS = 200  # in addition to HARD_TEXTS

ENCODE = pathlib.Path(__file__).parent / "scripts" / "encode_elsewhere.py"

HARD_TEXTS = (
    "",
    " ",
    "a",
    "?",
    "naïve café, 🙂🚀 中文 Ελληνικά \u200b \ufffd",
    "[SEP] [MASK] </s> <pad> [PAD] <extra_id_0>",
    "  spaces,\ttabs and\n\nlines  ",
    "2 + 2 = 4; x_1 != x_2",
    "longer than any limit " * 400,
    "Donaudampfschifffahrtsgesellschaftskapitän" * 40,
)


@dataclasses.dataclass(frozen=True)
class Report:
    """Contents of `export_report.json`.

    Attributes:
      format: format of the export.
      model: name of the exported model.
      versions: version of endx_jax and, if verified, of the runtime's libraries.
      texts: number of texts encoded as questions and as answers; 0 if not verified.
      largest_difference: largest absolute difference of any number in any embedding, by side and prompt.
      tolerance: maximum allowed difference; None if not verified.
      passed: true if no difference exceeds the tolerance; None if not verified.
    """

    format: str
    model: str
    versions: Mapping[str, str]
    texts: int = 0
    largest_difference: Mapping[str, float] = dataclasses.field(default_factory=dict)
    tolerance: float | None = None
    passed: bool | None = None


def verify(kind: str, folder: pathlib.Path, model: EmbeddingModel, tolerance: float) -> Report:
    """Compares embeddings of a few hundred texts by the export with those by our towers in float32, for both sides."""
    texts = sample_texts(model.source.workdir)
    # Prompts for texts of neither side, by name; None stands for the default prompt.
    named = kind == "sentence-transformers" and one_tower(model) and not model.by_token
    prompts: dict = {None: model.default_prompt, **model.named_prompts} if named else {}
    expected = reference(model, texts, prompts)
    exported, versions = encoded_elsewhere(kind, folder, texts, [*prompts])
    differences = {
        name: float(np.abs(exported[name] - right).max()) if exported[name].shape == right.shape else np.inf
        for name, right in expected.items()
    }
    return Report(
        format=kind,
        model=model.name,
        versions={"endx_jax": endx_jax.__version__, **versions},
        texts=len(texts),
        largest_difference=differences,
        tolerance=tolerance,
        # Written so that NaN does not pass.
        passed=all(difference <= tolerance for difference in differences.values()),
    )


def sample_texts(workdir: pathlib.Path | None) -> list[str]:
    """Returns texts for both sides: edge cases of tokenizers, documents of a run's index, and texts about Python."""
    index = workdir / workdirs.INDEX if workdir else None
    documents: list[str] = []
    if index is not None and index.is_file():
        documents = [document.text for _, document in itertools.islice(Index(index).snapshot, TEXTS)]
    topics = pydoc_data.topics.topics.values()
    documents += [paragraph for text in topics for paragraph in text.split("\n\n")][: TEXTS - len(documents)]
    return [*HARD_TEXTS, *documents]


def reference(
    model: EmbeddingModel, texts: list[str], prompts: Mapping[str | None, str] | None = None
) -> dict[str, np.ndarray]:
    """Encodes texts by our towers: float32 [N, E] by side, and [n, E] of the first n by `prompt NAME`.

    Of late interaction, embeddings of all tokens, [T, E], and `scores` of the first texts, divided by the tokens.
    """
    first, encode = texts[: len(HARD_TEXTS)], functools.partial(model.encoder, model.params)
    with jax.default_matmul_precision("highest"):
        found = {side: encode(side, texts) for side in SIDES}
        if model.by_token:
            questions, documents = (found[side][: len(first)] for side in SIDES)
            scores = mean_maxsim(questions, maxsim_scores(questions, documents))(0, len(questions))
            return {side: found[side].values for side in SIDES} | {"scores": np.asarray(scores)}
        for name, prompt in (prompts or {}).items():
            found[f"prompt {name}"] = encode("question", first, prompt=prompt)
        return found


def encoded_elsewhere(
    kind: str, folder: pathlib.Path, texts: list[str], prompts: Sequence[str | None] = ()
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Encodes texts by the export in another process on the CPU; returns embeddings and library versions."""
    here = {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    with tempfile.TemporaryDirectory() as name:
        place = pathlib.Path(name)
        asked = {"texts": texts, "first": len(HARD_TEXTS), "prompts": prompts}
        (place / "asked.json").write_text(json.dumps(asked))
        # -P: do not import from the script's folder.
        command = [sys.executable, "-P", str(ENCODE), kind, str(folder), str(place)]
        done = subprocess.run(command, env=os.environ | here, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
            raise EndxError(f"the export failed in its runtime: {last}")
        with np.load(place / "embeddings.npz") as stored:
            embeddings = dict(stored)
        names = {str(n): f"prompt {name}" for n, name in enumerate(prompts)}
        embeddings = {names.get(key, key): array for key, array in embeddings.items()}
        return embeddings, json_files.read_json_file(place / "versions.json")
