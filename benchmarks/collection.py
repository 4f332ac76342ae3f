"""What memory does a large collection take? `python benchmarks/collection.py --folder=FOLDER`.

Passages of made-up words are written as MS MARCO lays out its collection, with questions of a few words of one passage
each, and a BERT of one narrow layer and random weights that knows those words. Then the commands that anyone would
use do their work, each in a process of its own: `endx encode`, `endx search` in bulk, `endx evaluate --index`.

What is printed: seconds, passages or questions a second, and the most memory that the process held at any time (the
kernel's ru_maxrss, in which pages of mapped files count). Interrupted, it goes on: what is there is not made again, and
`endx encode` is resumed.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

import common
import numpy as np

WORDS, FIRST_WORD = 20_000, 5
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
WIDTH, INNER, POSITIONS = 32, 64, 128
# Passages that are made at a time.
BLOCK = 10_000


def make(folder: pathlib.Path, options: argparse.Namespace) -> None:
    """Writes collection, questions, judgements and model, unless they are there."""
    if (folder / "model").is_dir():
        return
    folder.mkdir(parents=True, exist_ok=True)
    words = np.array([_word(n) for n in range(WORDS)])
    asked = set(np.random.default_rng(options.seed).choice(options.passages, options.questions, replace=False).tolist())
    with (
        open(folder / "collection.tsv", "w") as collection,
        open(folder / "queries.dev.tsv", "w") as queries,
        open(folder / "qrels.dev.tsv", "w") as qrels,
    ):
        for number, passage in enumerate(_passages(words, options)):
            collection.write(f"{number}\t{' '.join(passage)}\n")
            if number in asked:
                queries.write(f"{number}\t{' '.join(sorted(set(passage))[:: max(1, len(passage) // 8)])}\n")
                qrels.write(f"{number}\t0\t{number}\t1\n")
    _write_model(folder / "model", words.tolist(), options.seed)


def _word(number: int) -> str:
    """A word of its own for every number: the more frequent, the shorter."""
    base = len(SYLLABLES)
    return SYLLABLES[number % base] + (_word(number // base - 1) if number >= base else "")


def _passages(words: np.ndarray, options: argparse.Namespace) -> Iterator[list[str]]:
    """Passages of 20 to 80 words, as frequent as words are (Zipf)."""
    draw = np.random.default_rng(options.seed + 1)
    shares = 1 / np.arange(3, WORDS + 3)
    steps = np.cumsum(shares / shares.sum())
    for start in range(0, options.passages, BLOCK):
        lengths = draw.integers(20, 81, min(BLOCK, options.passages - start))
        drawn = words[np.minimum(np.searchsorted(steps, draw.random(lengths.sum())), WORDS - 1)]
        yield from (part.tolist() for part in np.split(drawn, np.cumsum(lengths)[:-1]))


def _write_model(folder: pathlib.Path, words: Sequence[str], seed: int) -> None:
    """A BERT of one layer in Hugging Face's format."""
    import tokenizers
    from safetensors.numpy import save_file
    from tokenizers import models, pre_tokenizers, processors

    folder.mkdir()
    vocabulary = [*SPECIAL, *words]
    config = {
        "model_type": "bert",
        "vocab_size": len(vocabulary),
        "hidden_size": WIDTH,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": INNER,
        "max_position_embeddings": POSITIONS,
        "pad_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = tokenizers.Tokenizer(models.WordPiece({t: n for n, t in enumerate(vocabulary)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {f"{name.lower().strip('[]')}_token": name for name in SPECIAL}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **names}))
    save_file(_tensors(len(vocabulary), seed), folder / "model.safetensors")


def _tensors(vocabulary: int, seed: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed + 2)
    layer = "encoder.layer.0"
    shapes = {
        "embeddings.word_embeddings.weight": (vocabulary, WIDTH),
        "embeddings.position_embeddings.weight": (POSITIONS, WIDTH),
        "embeddings.token_type_embeddings.weight": (2, WIDTH),
        "embeddings.LayerNorm": (WIDTH,),
        **{f"{layer}.attention.self.{part}": (WIDTH, WIDTH) for part in ("query", "key", "value")},
        f"{layer}.attention.output.dense": (WIDTH, WIDTH),
        f"{layer}.attention.output.LayerNorm": (WIDTH,),
        f"{layer}.intermediate.dense": (INNER, WIDTH),
        f"{layer}.output.dense": (WIDTH, INNER),
        f"{layer}.output.LayerNorm": (WIDTH,),
    }
    tensors = {}
    for name, shape in shapes.items():
        if name.endswith(".weight"):
            # Words far apart, places hardly: what a passage is about is then its words.
            tensors[name] = draw.normal(0, 1 if "word" in name else 0.02, shape).astype(np.float32)
        else:
            weight = np.ones(shape) if name.endswith("LayerNorm") else draw.normal(0, 0.05, shape)
            tensors |= {f"{name}.weight": weight.astype(np.float32), f"{name}.bias": np.zeros(shape[0], np.float32)}
    return tensors


def measure(what: str, count: int, verb: Sequence[str]) -> dict:
    """A row about one command, which works on so many passages or questions."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "endx_jax", *verb])
    try:
        _, status, usage = os.wait4(process.pid, 0)
    except KeyboardInterrupt:  # which the command has had too
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds, peak = time.perf_counter() - start, usage.ru_maxrss * 1024 / 1e9
    if process.returncode:
        raise SystemExit(f"endx {verb[0]} ended with status {process.returncode}; it held {peak:.3f} GB at most")
    return {"what": what, "seconds": seconds, "a second": count / seconds, "peak memory, GB": round(peak, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=pathlib.Path, required=True, help="where everything is written")
    parser.add_argument("--passages", type=int, default=1_000_000)
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--parts", nargs="*", default=["encode", "search", "evaluate"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    folder, index = options.folder, options.folder / "index"
    make(folder, options)
    questions = folder / "questions.txt"
    lines = (folder / "queries.dev.tsv").read_text().splitlines(keepends=True)
    questions.write_text("".join(line.partition("\t")[2] for line in lines))
    commands = {
        "encode": ["encode", f"--model={folder / 'model'}", f"--corpus={folder}", f"--output={index}"],
        "search": ["search", f"--index={index}", f"--questions={questions}", f"--output={folder / 'found.trec'}"],
        "evaluate": [
            "evaluate",
            f"--index={index}",
            f"--data={folder}",
            "--split=dev",
            f"--output={folder / 'evaluation'}",
        ],
    }
    counts = {"encode": options.passages}
    results = [measure(part, counts.get(part, options.questions), commands[part]) for part in options.parts]
    print(common.table(results))
    common.write(options.json, vars(options), results)


if __name__ == "__main__":
    main()
