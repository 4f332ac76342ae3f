"""One table for a CPU, beside other libraries: `python benchmarks/cpu.py --data=FOLDER`.

The parts are training, encoding of sentences, encoding of one question at a time as `endx serve` does, and exact
search of random unit vectors. endx_jax runs with float32 and with bfloat16 products (`model.product_dtype`), its peers
as far as they are installed. All use the same MiniLM weights, texts and cores. In each round each has a new process,
which ends before the next one starts; its first call is not timed. ONNX Runtime, OpenVINO and fastembed read one ONNX
file, whose outputs are the pooled unit vectors; this script writes it with PyTorch if `--onnx` does not exist.

Prints medians, with the largest difference of unit vectors to endx_jax in float32, and the first loss. Ends without a
table if a float32 peer has other vectors, another first loss or other scores.
"""

import argparse
import importlib.util
import os
import pathlib
import tempfile

import common
import numpy as np
import peer_encoder
import sides
from peer_step import PLAIN

import endx_jax
from endx_jax.cli.entry import use_large_pages
from endx_jax.data import reqa
from endx_jax.data.formats import squad
from endx_jax.inference.encode import EmbeddingFormat
from endx_jax.inference.low_latency import LowLatencyEncoder
from endx_jax.inference.text_batches import batches
from endx_jax.pretrained.locate import locate
from endx_jax.ranking.search import Corpus, Neighbours

PARTS = ("train", "encode", "question", "search")
OURS = {f"endx_jax, {dtype} products": dtype for dtype in ("float32", "bfloat16")}
FLOAT32 = next(iter(OURS))
# Peers: package, and class of peer_encoder with its form.
PEERS = {
    "sentence-transformers, float32": ("sentence-transformers", "PeerEncoder", "float32"),
    "sentence-transformers, bfloat16 autocast": ("sentence-transformers", "PeerEncoder", "autocast"),
    "ONNX Runtime, float32": ("onnxruntime", "OnnxEncoder", "float32"),
    "ONNX Runtime, dynamic int8": ("onnxruntime", "OnnxEncoder", "int8"),
    "OpenVINO, float32": ("openvino", "OpenVinoEncoder", "f32"),
    "OpenVINO, bfloat16": ("openvino", "OpenVinoEncoder", "bf16"),
    "fastembed, float32": ("fastembed", "FastEncoder", ""),
    "faiss, IndexFlatIP": ("faiss-cpu", "", ""),
}
TRAINERS = [name for name in PEERS if name.startswith("sentence")]
ROUNDING = 1e-5  # largest difference of unit vectors, or of their scores, in float32


class Ours:
    """Encoder of endx_jax for given texts.

    Attributes:
      about: computed tokens divided by real tokens.
    """

    def __init__(self, name: str, texts: list[str], batch_size: int, product_dtype: str = "float32"):
        self._model, self._texts = endx_jax.load(name, product_dtype=product_dtype), texts
        self._batch_size, encoder = batch_size, self._model.encoder
        made = list(batches(encoder.processors["answer"], texts, encoder.shapes("answer", batch_size)))
        real = sum(int(tokens.mask[: len(places)].sum()) for places, _, tokens in made)
        self.about = sum(tokens.mask.size for _, _, tokens in made) / real

    def __call__(self) -> np.ndarray:
        """Returns the embeddings, [N, E]."""
        return self._model.encode_document(self._texts, batch_size=self._batch_size, show_progress_bar=False)


class OurQuestions:
    """Encoder of `endx serve`, for one question at a time."""

    def __init__(self, name: str, texts: list[str], _: int, product_dtype: str):
        model, self._texts = endx_jax.load(name, product_dtype=product_dtype), texts
        self._encode = LowLatencyEncoder(model.encoder, model.params, EmbeddingFormat(normalize=True))

    def __call__(self) -> np.ndarray:
        """Returns the embeddings."""
        return np.concatenate([self._encode("question", [text]).embeddings for text in self._texts])


class OurSearch:
    """Search of endx_jax for given questions, as in an index that stays in memory."""

    def __init__(self, path: pathlib.Path, questions: np.ndarray, k: int):
        self._corpus, self._questions, self._k = Corpus(np.load(path, mmap_mode="r")), questions, k

    def __call__(self) -> Neighbours:
        """Returns the k best of each question."""
        return self._corpus.search(self._questions, self._k)


def read_texts(options: argparse.Namespace) -> dict[str, list[str]]:
    """Draws `options.texts` sentences and questions of SQuAD's dev file, without replacement."""
    records = reqa.from_squad(squad.files_of(options.data)[1], "sentences")
    random = np.random.default_rng(options.seed)
    kinds = {"sentences": records.candidates, "questions": records.questions}
    return {kind: [all_[i] for i in random.permutation(len(all_))[: options.texts]] for kind, all_ in kinds.items()}


def unit_vectors(seed: int, count: int, width: int) -> np.ndarray:
    vectors = np.random.default_rng(seed).standard_normal((count, width), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def train(options: argparse.Namespace, peers: list[str]) -> dict[str, dict]:
    """Returns pairs per second, and the first loss."""
    import training  # the processes of other parts import this file

    given = vars(options) | {"tower_chunk": -1, "dtype": "float32", "steps": sides.CALLS}
    for_dtype = {dtype: argparse.Namespace(**given, product_dtype=dtype) for dtype in OURS.values()}
    cases = {name: sides.Case("training", "OurStep", (for_dtype[dtype],)) for name, dtype in OURS.items()}
    if peers := [name for name in peers if name in TRAINERS]:
        with sides.Side(cases[FLOAT32]) as ours:
            texts = ours.about["texts"]
        for name in peers:
            config = training.configure(for_dtype["float32"])
            config.model.dtype = "bfloat16" if "bfloat16" in name else "float32"
            cases[name] = sides.Case("peer_step", "PeerStep", (training.recipe(config), options.form, texts))
    timings = sides.alternate(cases, options.repeats)
    losses = {name: timing.results[0] for name, timing in timings.items()}
    check_same_work({name: abs(losses[name] - losses[FLOAT32]) for name in losses if "bfloat16" not in name}, 1e-4)
    return {
        name: {"train, pairs/s": options.batch / timing.median, "first loss": losses[name]}
        for name, timing in timings.items()
    }


def encode(options: argparse.Namespace, peers: list[str], onnx: pathlib.Path, kind: str) -> dict[str, dict]:
    """Returns texts per second and the largest difference, or the milliseconds of one question."""
    texts, folder, together = read_texts(options)[kind], str(locate(options.model)), kind == "sentences"
    ours, size = ("Ours", 32) if together else ("OurQuestions", 1)
    cases = {name: sides.Case("cpu", ours, (folder, texts, size, dtype)) for name, dtype in OURS.items()}
    runtimes = [name for name in peers if PEERS[name][1]]
    if any(PEERS[name][1] != "PeerEncoder" for name in runtimes) and not onnx.exists():
        with common.needs("torch transformers onnx onnxruntime"):
            peer_encoder.write_onnx(folder, onnx)
    for name in runtimes:
        _, kind_of_peer, form = PEERS[name]
        arguments = (folder, "cpu", form) if kind_of_peer == "PeerEncoder" else (str(onnx), form)
        cases[name] = sides.Case("peer_encoder", kind_of_peer, (*arguments, options.length, texts, size, together))
    timings = sides.alternate(cases, options.repeats)
    found = {name: timing.results[-1] for name, timing in timings.items()}
    errors = {name: float(np.abs(vectors - found[FLOAT32]).max()) for name, vectors in found.items()}
    check_same_work({name: error for name, error in errors.items() if "float32" in name})
    if not together:
        return {name: {"one question, ms": 1e3 * timing.median / len(texts)} for name, timing in timings.items()}
    return {
        name: {
            "encode, texts/s": len(texts) / timing.median,
            "error": errors[name],
            "start and first call, s": timing.start_up + timing.first,
        }
        for name, timing in timings.items()
    }


def search(options: argparse.Namespace, peers: list[str], folder: pathlib.Path) -> dict[str, dict]:
    """Returns the milliseconds of searches for 1, 100 and 1,000 questions."""
    rows: dict[str, dict] = {}
    np.save(folder / "corpus.npy", unit_vectors(options.seed, options.candidates, 384))
    for count in (1, 100, 1000):
        given = (folder / "corpus.npy", unit_vectors(options.seed + 1, count, 384), options.k)
        cases = {FLOAT32: sides.Case("cpu", "OurSearch", given)}
        cases |= {name: sides.Case("peer_search", "FaissSearch", given) for name in peers if name.startswith("faiss")}
        timings = sides.alternate(cases, options.repeats)
        scores = {name: timing.results[-1][0] for name, timing in timings.items()}
        check_same_work({name: float(np.abs(found - scores[FLOAT32]).max()) for name, found in scores.items()})
        for name, timing in timings.items():
            rows.setdefault(name, {})[f"search, {count}, ms"] = 1e3 * timing.median
    return rows


def check_same_work(differences: dict[str, float], most: float = ROUNDING) -> None:
    """Ends the script if results in float32 differ by more than `most`."""
    if not all(difference <= most for difference in differences.values()):  # false for nan
        raise SystemExit(f"results differ by more than {most}, so the times are not comparable: {differences}")


def measure(options: argparse.Namespace, peers: list[str]) -> list[dict]:
    """Returns a row for each library, with the columns of all parts."""
    rows: dict[str, dict] = {name: {} for name in (*OURS, *peers)}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        onnx = options.onnx or folder / "model.onnx"
        parts = {
            "train": lambda: train(options, peers),
            "encode": lambda: encode(options, peers, onnx, "sentences"),
            "question": lambda: encode(options, peers, onnx, "questions"),
            "search": lambda: search(options, peers, folder),
        }
        for part in options.parts:
            for library, columns in parts[part]().items():
                rows[library] |= columns
    return [{"library": library, **columns} for library, columns in rows.items() if columns]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", required=True, help="folder of SQuAD 1.1")
    add("--model", default="all-MiniLM-L6-v2")
    add("--parts", nargs="*", default=PARTS, choices=PARTS)
    add("--peers", nargs="*", help=f"beginnings of names; default: what is installed of {'; '.join(PEERS)}")
    add("--threads", type=int, default=0, help="cores that every side may use; 0: all")
    add("--batch", type=int, default=128, help="pairs per step")
    add("--onnx", type=pathlib.Path, help="ONNX file, with a tokenizer.json beside it [written for this run]")
    add("--length", type=int, default=256, help="maximum tokens of a text")
    add("--matryoshka", type=int, nargs="*", default=[], metavar="WIDTH", help="widths of prefixes to train")
    add(
        "--form",
        default="16",
        help=f"loss of the peer's trainer: {PLAIN}, or a size of mini-batches for the cached one",
    )
    add("--texts", type=int, default=1000, help="number of sentences, and of questions")
    add("--candidates", type=int, default=1_000_000)
    add("--k", type=int, default=10)
    add("--repeats", type=int, default=3, help="rounds, each with a new process of each side")
    add("--seed", type=int, default=0)
    add("--json", help="file for the results")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    cores = cores[: options.threads or len(cores)]
    os.sched_setaffinity(0, cores)  # child processes inherit these
    os.environ |= {"OMP_NUM_THREADS": str(len(cores)), "JAX_PLATFORMS": "cpu"}
    wanted = [name for name in PEERS if options.peers is None or name.startswith(tuple(options.peers))]
    modules = {name: PEERS[name][0].removesuffix("-cpu").replace("-", "_") for name in wanted}
    peers = [name for name in wanted if importlib.util.find_spec(modules[name])]
    if missing := sorted({PEERS[name][0] for name in wanted} - {PEERS[name][0] for name in peers}):
        print(f"not installed, left out: {', '.join(missing)}")
    rows = measure(options, peers)
    print(common.table(rows))
    packages = {PEERS[name][0] for name in peers} | ({"torch"} if any(name in TRAINERS for name in peers) else set())
    common.write(options.json, vars(options), rows, versions=common.versions(*sorted(packages)))


if __name__ == "__main__":
    use_large_pages()  # as `endx train` does; the peers inherit it
    main()
