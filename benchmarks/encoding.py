"""Texts encoded per second, compared with sentence-transformers: `python benchmarks/encoding.py --data=FOLDER`.

Both encode the same sentences and questions of SQuAD with the same MiniLM weights, from strings to one NumPy array,
each in a process of its own, in alternation. Both sort texts by length. sentence-transformers runs with several batch
sizes, and the fastest is compared. Embeddings must agree to 1e-5 (bfloat16: 3e-2).

Prints the median seconds, texts per second, the ratio to the fastest peer, and the seconds of start-up and of the first
call; for endx_jax also padded over real tokens and the number of programs that the first call compiles.
"""

import argparse
import pathlib

import common
import jax
import numpy as np
import sides

import endx_jax
from endx_jax.data import reqa
from endx_jax.data.readers import squad
from endx_jax.inference.text_batches import batches
from endx_jax.pretrained.locate import locate

OURS = "endx_jax"
SIDES = {"sentences": "answer", "questions": "question"}
# Largest difference of embeddings. Both sides compute in float32 on a CPU and in bfloat16 elsewhere.
TOLERANCE = {"float32": 1e-5, "bfloat16": 3e-2}


def read_texts(options: argparse.Namespace) -> dict[str, list[str]]:
    """Draws `options.texts` sentences and questions of SQuAD's dev file, without replacement."""
    records = reqa.from_squad(squad.files_of(options.data)[1], "sentences")
    random = np.random.default_rng(options.seed)
    kinds = {"sentences": records.candidates, "questions": records.questions}
    return {kind: [all_[i] for i in random.permutation(len(all_))[: options.texts]] for kind, all_ in kinds.items()}


class Ours:
    """Encoder of endx_jax for given texts.

    Attributes:
      about: computed tokens divided by real tokens.
    """

    def __init__(self, name: str, kind: str, texts: list[str], batch_size: int):
        self._model, self._texts, self._batch_size = endx_jax.load(name), texts, batch_size
        self._encode = {"question": self._model.encode_query, "answer": self._model.encode_document}[SIDES[kind]]
        encoder, side = self._model.encoder, SIDES[kind]
        made = list(batches(encoder.processors[side], texts, encoder.shapes(side, batch_size)))
        real = sum(int(tokens.mask[: len(places)].sum()) for places, _, tokens in made)
        self.about = sum(tokens.mask.size for _, _, tokens in made) / real

    def __call__(self) -> tuple[np.ndarray, int]:
        """Returns the embeddings, and the number of programs that were compiled so far."""
        embeddings = self._encode(self._texts, batch_size=self._batch_size, show_progress_bar=False)
        return embeddings, len(self._model.encoder.compiled)


def compare(kind: str, texts: list[str], options: argparse.Namespace) -> list[dict]:
    """Returns the rows of the table for texts of one kind."""
    cases = {OURS: sides.Case("encoding", "Ours", (options.model, kind, texts, options.batch))}
    if options.peer_batches:
        length = endx_jax.load(options.model).encoder.processors["answer"].length
        given = (str(locate(options.model)), options.peer_device, computed_in(), length, texts)
        for size in options.peer_batches:
            name = f"sentence-transformers, batches of {size}"
            cases[name] = sides.Case("peer_encoder", "PeerEncoder", (*given, size))
    timings = sides.alternate(cases, options.repeats)
    expected, programs = timings[OURS].results[-1]
    found = {name: timing.results[-1] if name != OURS else expected for name, timing in timings.items()}
    differences = {name: float(np.abs(embeddings - expected).max()) for name, embeddings in found.items()}
    check_same_work(differences)
    fastest = min((timing.median for name, timing in timings.items() if name != OURS), default=None)
    return [
        {
            "texts": f"{len(texts)} {kind}",
            "encoder": name,
            "texts a second": len(texts) / timing.median,
            "seconds": timing.median,
            "speed / fastest peer": fastest / timing.median if fastest else "",
            "start-up, seconds": timing.start_up,
            "first call, seconds": timing.first,
            "largest difference": differences[name],
            **({"padding": timing.about, "programs compiled": programs} if name == OURS else {}),
            "all seconds": [round(time, 3) for time in timing.seconds],
        }
        for name, timing in timings.items()
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
    rows = [
        row
        for kind, texts in read_texts(options).items()
        if kind in options.kinds
        for row in compare(kind, texts, options)
    ]
    print(common.table(rows))
    packages = ("torch", "sentence-transformers", "transformers") if options.peer_batches else ()
    common.write(options.json, vars(options), rows, versions=common.versions(*packages))


if __name__ == "__main__":
    main()
