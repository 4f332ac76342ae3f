"""Which way to avoid padding is fastest? `python benchmarks/padding.py --data=FOLDER`.

Times the value and the gradient, with respect to all parameters, of sum(embeddings * a constant) for the answers of one
training batch of SQuAD, encoded in four ways that take turns in this process, in float32 and without dropout:

- padded: every text to the longest, rounded up to a multiple of 32;
- buckets: texts sorted by length and cut into up to 8 groups, each padded to its own width, encoded one after another;
- end to end: as training does it: dense layers see no padding, attention sees buckets. The packing is one of those that
  a whole run shares; the shapes of all other ways are cut to this very batch, which flatters them;
- segments: texts set first-fit-decreasing into rows of --row tokens, over which attention runs whole. The mask that
  keeps the texts of a row apart is left out: its values are NOT right, and its seconds are a lower bound.

The first three must agree. Prints a table: seconds, over the padded form's; tokens that dense layers compute over real
tokens; cells of attention that are computed over those needed (W^2 of each row over length^2 of each text); seconds of
compilation. With --json=FILE, writes it with the machine and the versions.
"""

import argparse
import dataclasses
import functools
import pathlib
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import common
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from endx_jax.batch import Tokens
from endx_jax.cli.memory import keep_memory
from endx_jax.data.batches import LENGTH_STEP
from endx_jax.data.packing import WIDTH, cut
from endx_jax.data.tokenization import TokenTable, padded_length
from endx_jax.experiment.prepare import Run, prepare
from endx_jax.models.layout import Padded
from endx_jax.parallel import place, state_shardings

Array = jax.Array
# What a form encodes, and the function of (parameters, that) to embeddings [B, E].
Encode = Callable[[dict, Any], Array]

STEPS = 100  # of the run whose packings these are
MOST_GROUPS = 8
TOLERANCE = 1e-4  # of the value, and of the gradient over its largest entry


@dataclasses.dataclass(frozen=True)
class Form:
    """One way to encode the batch.

    Attributes:
      encode: what is timed.
      inputs: what it encodes.
      tokens: that dense layers compute.
      rows: (rows, width) of what attention computes.
      right: whether its values are.
    """

    encode: Encode
    inputs: Any
    tokens: int
    rows: Sequence[tuple[int, int]]
    right: bool = True


@functools.partial(flax.struct.dataclass, kw_only=True)
class Segments(Padded):
    """Several texts a row, [R, W], each of which sees all of its row: right in cost alone.

    Attributes:
      position: int32 [R, W], of each token in its text.
      places: int32 [B, L], where in the rows, end to end, each text's tokens stand; R * W for padding.
    """

    position: Array
    places: Array

    @property
    def width(self) -> int:
        """As `Padded.width`."""
        return self.places.shape[1]

    def by_position(self, table: Array) -> Array:
        """As `Padded.by_position`."""
        return table[self.position]

    def pad(self, tokens: Array) -> Array:
        """As `Padded.pad`; zero where there is no token."""
        return tokens.reshape(-1, tokens.shape[-1]).at[self.places].get(mode="fill", fill_value=0)


def padded(run: Run, table: TokenTable, texts: np.ndarray) -> Form:
    """All texts as wide as the longest."""
    width = padded_length(table.lengths[texts].max(), run.stream.pairs.answer_length, LENGTH_STEP)
    encode = functools.partial(_encode, run)
    return Form(encode, table.pad(texts, width), len(texts) * width, [(len(texts), width)])


def buckets(run: Run, table: TokenTable, texts: np.ndarray) -> Form:
    """Groups of like lengths, one after another."""
    order = np.argsort(table.lengths[texts], kind="stable")
    widths = -(-table.lengths[texts[order]] // WIDTH) * WIDTH
    counts = cut(widths, MOST_GROUPS, lambda width: width)
    ends = np.cumsum(counts)
    groups = np.split(texts[order], ends[:-1])
    rows = [(count, int(widths[end - 1])) for count, end in zip(counts, ends, strict=True)]
    tokens = [table.pad(group, width) for group, (_, width) in zip(groups, rows, strict=True)]

    def encode(params: dict, inputs: Any) -> Array:
        groups, back = inputs
        return jnp.concatenate([_encode(run, params, group) for group in groups])[back]

    return Form(encode, (tokens, np.argsort(order)), sum(count * width for count, width in rows), rows)


def end_to_end(run: Run, table: TokenTable, texts: np.ndarray) -> Form:
    """As a run of `STEPS` steps packs its first batch, on one device and in one piece."""
    del table, texts
    tokens = run.stream.without_padding(STEPS)[0].answer
    return Form(functools.partial(_encode, run), tokens, tokens.packing.tokens, tokens.packing.buckets)


def segments(run: Run, table: TokenTable, texts: np.ndarray, row: int) -> Form:
    """Several texts a row."""
    lengths = table.lengths[texts]
    text_row, text_start, count = first_fit(lengths, row)
    tokens = table.pad(texts, int(lengths.max()))
    column = np.arange(tokens.mask.shape[1])
    places = np.where(tokens.mask, (text_row * row + text_start)[:, None] + column, count * row)
    ids, mask, position = (np.zeros(count * row, kind) for kind in (np.int32, bool, np.int32))
    at = places[tokens.mask]
    ids[at], mask[at], position[at] = tokens.ids[tokens.mask], True, np.broadcast_to(column, places.shape)[tokens.mask]
    mask, position = (x.reshape(count, row) for x in (mask, position))
    layout = Segments(mask=mask, position=position, places=places.astype(np.int32))
    model = run.model.dual_encoder

    def encode(params: dict, inputs: Any) -> Array:
        return model.tower("answer").apply(
            {"params": model.tower_params(params, "answer")}, *inputs, method=_encode_rows
        )

    return Form(encode, (ids.reshape(count, row), layout, tokens.mask), count * row, [(count, row)], right=False)


def first_fit(lengths: np.ndarray, row: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Sets texts into rows of `row` tokens, the longest first, each into the first row that has room.

    Returns:
      Of each text its row and where in it it begins, int [B] each; and how many rows there are.
    """
    rows, starts, used = np.zeros_like(lengths), np.zeros_like(lengths), list[int]()
    for text in np.argsort(-lengths, kind="stable"):
        found = next((n for n, taken in enumerate(used) if taken + lengths[text] <= row), len(used))
        used += [0] * (found == len(used))
        rows[text], starts[text] = found, used[found]
        used[found] += int(lengths[text])
    return rows, starts, len(used)


def _encode(run: Run, params: dict, tokens: Tokens) -> Array:
    return run.model.dual_encoder.encode(params, "answer", tokens)


def _encode_rows(tower, ids: Array, layout: Segments, mask: Array) -> Array:
    """As `Tower.__call__` up to pooling; projection and norm are next to nothing."""
    return tower.pooling(layout.pad(tower.encoder(tower.token_embedder(ids), layout, None)), mask)


def compare(options: argparse.Namespace) -> list[dict]:
    """The table: a row a form."""
    run = prepare(_config(options), pathlib.Path(tempfile.mkdtemp()))
    params = run.model.initial_params(run.mesh)["dual_encoder"]
    params = jax.device_put(place(params, state_shardings(params, run.mesh)), jax.devices()[0])
    table, texts = run.stream.pairs.answers, run.stream[0].answer_id
    lengths = table.lengths[texts]
    forms = {form.__name__: form(run, table, texts) for form in (padded, buckets, end_to_end)}
    forms["segments"] = segments(run, table, texts, options.row)
    programs, compiling = {}, {}
    for name, form in forms.items():
        start = time.perf_counter()
        programs[name] = _program(form, params, options.seed)
        compiling[name] = time.perf_counter() - start
    check_same_work({name: programs[name]() for name, form in forms.items() if form.right})
    seconds = common.alternate(programs, options.repeats, warmup=1)
    medians = {name: common.median(times) for name, times in seconds.items()}
    return [
        {
            "form": name,
            "seconds": medians[name],
            "to_padded": medians["padded"] / medians[name],
            "tokens_to_real": form.tokens / int(lengths.sum()),
            "cells_to_needed": sum(count * width**2 for count, width in form.rows) / int((lengths**2).sum()),
            "compile_seconds": compiling[name],
            "attention_rows": ", ".join(f"{count} x {width}" for count, width in form.rows),
            "right": "yes" if form.right else "no",
            "all_seconds": [round(time, 3) for time in seconds[name]],
        }
        for name, form in forms.items()
    ]


def _program(form: Form, params: dict, seed: int) -> Callable[[], Any]:
    """Compiles a form; calls give its value and gradient."""

    def value(params: dict, inputs: Any) -> Array:
        embeddings = form.encode(params, inputs)
        return jnp.sum(embeddings * jax.random.normal(jax.random.key(seed), embeddings.shape))

    inputs = jax.device_put(form.inputs, jax.devices()[0])
    compiled = jax.jit(jax.value_and_grad(value)).lower(params, inputs).compile()
    return lambda: jax.block_until_ready(compiled(params, inputs))


def check_same_work(results: dict[str, tuple[Array, Any]]) -> None:
    """Ends the script where (value, gradient) of one form are not those of the first."""
    names = list(results)
    value, gradient = results[names[0]]
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(gradient)]
    largest = max(np.abs(leaf).max() for leaf in leaves)
    for name in names[1:]:
        others = jax.tree.leaves(results[name][1])
        apart = max(np.abs(leaf - other).max() for leaf, other in zip(leaves, others, strict=True)) / largest
        # Written so that NaN stops it too.
        if not (abs(value - results[name][0]) <= TOLERANCE and apart <= TOLERANCE):
            raise SystemExit(
                f"{name} and {names[0]} differ by more than {TOLERANCE}, and so does the work: values "
                f"{results[name][0]} and {value}, gradients {apart:.1e} of the largest entry apart"
            )


def _config(options: argparse.Namespace):
    config = common.pairs_config(options)
    config.model.dtype = "float32"
    # No cache of programs, for their compilation is timed.
    config.train.update(steps=STEPS, tower_chunk=0, compilation_cache="")
    return config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder of SQuAD 1.1, or another data.path")
    parser.add_argument("--model", default="all-MiniLM-L6-v2")
    parser.add_argument("--batch", type=int, default=128, help="answers")
    parser.add_argument("--length", type=int, default=256, help="tokens that answers are cut to")
    parser.add_argument("--row", type=int, default=256, help="tokens of a row of segments; at least --length")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    if options.row < options.length:
        parser.error(f"--row is {options.row}, and a text may have --length={options.length} tokens")
    results = compare(options)
    print(common.table([{key: value for key, value in row.items() if key != "all_seconds"} for row in results]))
    common.write(options.json, vars(options), results)


if __name__ == "__main__":
    keep_memory()  # as training has it
    main()
