"""How many texts a second are encoded, beside sentence-transformers? `python benchmarks/encoding.py --data=FOLDER`.

Both encode the same real texts of SQuAD, sentences and (shorter) questions, with the same MiniLM weights in float32,
each from strings to one NumPy array in the order given, in alternation in this process. Both sort texts by length.
sentence-transformers is given batches of several sizes; the fastest counts. The embeddings must be equal to 1e-5 (3e-2
in bfloat16).

What is printed: the median seconds, texts a second and their ratio to the peer's fastest; padded over real tokens,
programs that were compiled, and the seconds of the first call, which compiles them, of ours.
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
# A loaded model computes in float32 on a CPU and in bfloat16 elsewhere; the peer is given the same.
TOLERANCE = {"float32": 1e-5, "bfloat16": 3e-2}
WARMUP = 200  # texts that the peers encode before the clock starts


def read_texts(options: argparse.Namespace) -> dict[str, list[str]]:
    """As many sentences and questions of SQuAD's second file as were asked for, drawn without replacement."""
    records = reqa.read(squad.files_of(options.data)[1], "sentences")
    random = np.random.default_rng(options.seed)
    kinds = {"sentences": records.candidates, "questions": records.questions}
    return {kind: [all_[i] for i in random.permutation(len(all_))[: options.texts]] for kind, all_ in kinds.items()}


def peers(options: argparse.Namespace, length: int) -> dict[str, Callable[[list[str]], np.ndarray]]:
    """sentence-transformers by its batch sizes; texts are cut to the same length."""
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
    """Our side of the comparison.

    Attributes:
      model: that encodes.
    """

    def __init__(self, model: EmbeddingModel, batch_size: int):
        self.model, self._batch_size = model, batch_size

    def encode(self, kind: str, texts: list[str]) -> np.ndarray:
        """Embeddings of texts of one kind."""
        encode = {"question": self.model.encode_query, "answer": self.model.encode_document}[SIDES[kind]]
        return encode(texts, batch_size=self._batch_size, show_progress_bar=False)

    def first_time(self, kind: str, texts: list[str]) -> dict[str, float]:
        """Programs that encoding these texts compiles, and the seconds it takes the first time."""
        before, start = len(self.model.encoder.compiled), time.perf_counter()
        self.encode(kind, texts)
        seconds = time.perf_counter() - start
        return {"programs compiled": len(self.model.encoder.compiled) - before, "first call, seconds": seconds}

    def padding(self, kind: str, texts: list[str]) -> float:
        """Tokens that are computed over tokens of the texts."""
        encoder, side = self.model.encoder, SIDES[kind]
        made = list(batches(encoder.processors[side], texts, encoder.shapes(side, self._batch_size)))
        real = sum(int(tokens.mask[: len(places)].sum()) for places, _, tokens in made)
        return sum(tokens.mask.size for _, _, tokens in made) / real


def compare(kind: str, texts: list[str], ours: Ours, others: dict, repeats: int) -> list[dict]:
    """Rows of the table for texts of one kind."""
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
    """Ends the script where embeddings differ from ours."""
    tolerance = TOLERANCE[computed_in()]
    if not all(difference <= tolerance for difference in differences.values()):  # nan is not
        raise SystemExit(f"embeddings differ by more than {tolerance}, and so does the work: {differences}")


def computed_in() -> str:
    """What `endx_jax.load` computes in here."""
    return "float32" if jax.default_backend() == "cpu" else "bfloat16"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=pathlib.Path, help="folder of SQuAD 1.1")
    parser.add_argument("--model", default="all-MiniLM-L6-v2")
    parser.add_argument("--kinds", nargs="*", default=list(SIDES), choices=SIDES)
    parser.add_argument("--texts", type=int, default=1500, help="of each kind")
    parser.add_argument("--batch", type=int, default=32, help="our batch_size")
    parser.add_argument("--peer_batches", nargs="*", type=int, default=[16, 32], help="none: only ours")
    parser.add_argument("--peer_device", default="cpu", help="PyTorch's name of the device the peer encodes on")
    parser.add_argument("--repeats", type=int, default=3, help="timed rounds of all")
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
