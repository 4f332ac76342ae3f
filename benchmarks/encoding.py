"""Texts encoded per second, compared with sentence-transformers: `python benchmarks/encoding.py --data=FOLDER`.

Both encode the same sentences and questions of SQuAD with the same MiniLM weights, from strings to one NumPy array, in
alternation in this process. Both sort texts by length. sentence-transformers runs with several batch sizes, and the
fastest is compared. Embeddings must agree to 1e-5 (bfloat16: 3e-2).

Prints the median seconds, texts per second and the ratio to the fastest peer; for endx_jax also padded over real
tokens, and the number of programs and the seconds of the first call, which compiles them.
"""

import argparse
import functools
import pathlib
import time
from collections.abc import Callable

import common
import jax
import numpy as np

import endx_jax
from endx_jax.data import reqa
from endx_jax.data.readers import squad
from endx_jax.inference import EmbeddingModel
from endx_jax.inference.text_batches import batches
from endx_jax.pretrained.locate import locate

NEEDED = "sentence-transformers torch"
SIDES = {"sentences": "answer", "questions": "question"}
# Largest difference of embeddings. Both sides compute in float32 on a CPU and in bfloat16 elsewhere.
TOLERANCE = {"float32": 1e-5, "bfloat16": 3e-2}
WARMUP = 200  # texts that each peer encodes before the timing


def read_texts(options: argparse.Namespace) -> dict[str, list[str]]:
    """Draws `options.texts` sentences and questions of SQuAD's dev file, without replacement."""
    records = reqa.read(squad.files_of(options.data)[1], "sentences")
    random = np.random.default_rng(options.seed)
    kinds = {"sentences": records.candidates, "questions": records.questions}
    return {kind: [all_[i] for i in random.permutation(len(all_))[: options.texts]] for kind, all_ in kinds.items()}


def peers(options: argparse.Namespace, length: int) -> dict[str, Callable[[list[str]], np.ndarray]]:
    """Returns the encoders of sentence-transformers, one per batch size, which truncate texts to `length` tokens."""
    with common.needs(NEEDED):
        import sentence_transformers
    dtype = {"model_kwargs": {"dtype": computed_in()}}
    model = sentence_transformers.SentenceTransformer(str(locate(options.model)), device=options.peer_device, **dtype)
    model.max_seq_length = length
    return {
        f"sentence-transformers, batches of {size}": functools.partial(
            model.encode, batch_size=size, show_progress_bar=False
        )
        for size in options.peer_batches
    }


class Ours:
    """Encoder of endx_jax."""

    def __init__(self, model: EmbeddingModel, batch_size: int):
        self.model, self._batch_size = model, batch_size

    def encode(self, kind: str, texts: list[str]) -> np.ndarray:
        """Encodes texts of one kind."""
        encode = {"question": self.model.encode_query, "answer": self.model.encode_document}[SIDES[kind]]
        return encode(texts, batch_size=self._batch_size, show_progress_bar=False)

    def first_time(self, kind: str, texts: list[str]) -> dict[str, float]:
        """Returns the number of programs that the first call compiles, and its seconds."""
        before, start = len(self.model.encoder.compiled), time.perf_counter()
        self.encode(kind, texts)
        seconds = time.perf_counter() - start
        return {"programs compiled": len(self.model.encoder.compiled) - before, "first call, seconds": seconds}

    def padding(self, kind: str, texts: list[str]) -> float:
        """Returns the number of computed tokens divided by the number of real tokens."""
        encoder, side = self.model.encoder, SIDES[kind]
        made = list(batches(encoder.processors[side], texts, encoder.shapes(side, self._batch_size)))
        real = sum(int(tokens.mask[: len(places)].sum()) for places, _, tokens in made)
        return sum(tokens.mask.size for _, _, tokens in made) / real


def compare(kind: str, texts: list[str], ours: Ours, others: dict, repeats: int) -> list[dict]:
    """Returns the rows of the table for texts of one kind."""
    about = {"padding": ours.padding(kind, texts), **ours.first_time(kind, texts)}
    for encode in others.values():
        encode(texts[:WARMUP])
    found: dict[str, np.ndarray] = {}
    cases = {"endx_jax": functools.partial(ours.encode, kind)} | others

    def keep(name: str) -> None:
        found[name] = cases[name](texts)

    seconds = common.alternate({name: functools.partial(keep, name) for name in cases}, repeats, warmup=0)
    differences = {name: float(np.abs(found[name] - found["endx_jax"]).max()) for name in cases}
    check_same_work(differences)
    medians = {name: common.median(times) for name, times in seconds.items()}
    fastest = min((medians[name] for name in others), default=None)
    return [
        {
            "texts": f"{len(texts)} {kind}",
            "encoder": name,
            "texts a second": len(texts) / medians[name],
            "seconds": medians[name],
            "speed / fastest peer": fastest / medians[name] if fastest else "",
            "largest difference": differences[name],
            **(about if name == "endx_jax" else {}),
            "all seconds": [round(time, 3) for time in seconds[name]],
        }
        for name in cases
    ]


def check_same_work(differences: dict[str, float]) -> None:
    """Ends the script if embeddings differ by more than the tolerance."""
    tolerance = TOLERANCE[computed_in()]
    if not all(difference <= tolerance for difference in differences.values()):  # false for nan
        raise SystemExit(f"embeddings differ by more than {tolerance}, so the times are not comparable: {differences}")


def computed_in() -> str:
    """Returns the dtype in which a loaded model computes on this machine."""
    return "float32" if jax.default_backend() == "cpu" else "bfloat16"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=pathlib.Path, help="folder of SQuAD 1.1")
    parser.add_argument("--model", default="all-MiniLM-L6-v2")
    parser.add_argument("--kinds", nargs="*", default=list(SIDES), choices=SIDES)
    parser.add_argument("--texts", type=int, default=1500, help="number of texts of each kind")
    parser.add_argument("--batch", type=int, default=32, help="batch_size of endx_jax")
    parser.add_argument("--peer_batches", nargs="*", type=int, default=[16, 32], help="peer's batch sizes [16 32]")
    parser.add_argument("--peer_device", default="cpu", help="device of the peer, as PyTorch names it")
    parser.add_argument("--repeats", type=int, default=3, help="timed rounds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", help="file for the results")
    options = parser.parse_args()
    model = endx_jax.load(options.model)
    ours = Ours(model, options.batch)
    others = peers(options, model.encoder.processors["answer"].length) if options.peer_batches else {}
    rows = [
        row
        for kind, texts in read_texts(options).items()
        if kind in options.kinds
        for row in compare(kind, texts, ours, others, options.repeats)
    ]
    print(common.table(rows))
    packages = ("torch", "sentence-transformers", "transformers") if others else ()
    common.write(options.json, vars(options), rows, versions=common.versions(*packages))


if __name__ == "__main__":
    main()
