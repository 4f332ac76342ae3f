"""What does a decoder's softmax over a vocabulary take? `python benchmarks/vocabulary.py`.

Times the value and the gradients of the likelihood of a padded batch's words: by `endx_jax.losses.vocabulary_nll`,
which makes gradients beside values, tile by tile, of real words alone; and in the plain form, with the scores of all
places in one array. The two must agree. Prints a table: seconds, and bytes that the compiled program holds beside its
arguments and results. With --json=FILE, writes it with the machine and the versions.
"""

import argparse

import common
import jax
import jax.numpy as jnp
import numpy as np

from endx_jax.losses import vocabulary_nll

TOLERANCE = 1e-4  # of the value, and of each gradient over its largest entry


def plain(hidden, kernel, bias, words, weights):
    """The same with all scores in one array."""
    logarithms = jax.nn.log_softmax(hidden @ kernel.T + bias[None], axis=1)
    return -jnp.sum(weights * jnp.take_along_axis(logarithms, words, axis=1))


FORMS = {"vocabulary_nll": vocabulary_nll, "plain": plain}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--words", type=int, default=30522, help="of the vocabulary [30522]")
    parser.add_argument("--widths", type=int, nargs="+", default=[128, 768], help="of the decoder [128 768]")
    parser.add_argument("--texts", type=int, default=64, help="of the batch [64]")
    parser.add_argument("--length", type=int, default=64, help="that texts are padded to [64]")
    parser.add_argument("--mean_length", type=int, default=39, help="of the texts, as SQuAD's answers [39]")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json")
    options = parser.parse_args()
    rows = [row for width in options.widths for row in measure(options, width)]
    print(common.table(rows))
    common.write(options.json, vars(options), rows)


def measure(options: argparse.Namespace, width: int) -> list[dict]:
    """A row for each form."""
    draw, places = np.random.default_rng(options.seed), options.texts * options.length
    moving = tuple(
        jnp.asarray(draw.normal(0, 0.1, shape), jnp.float32)
        for shape in ((places, width), (options.words, width), (options.words,))
    )
    lengths = np.clip(draw.poisson(options.mean_length, options.texts), 1, options.length)
    real = (np.arange(options.length) < lengths[:, None]).reshape(-1, 1)
    rest = jnp.asarray(draw.integers(0, options.words, (places, 1))), jnp.asarray(real, jnp.float32)
    compiled = {
        name: jax.jit(jax.value_and_grad(form, (0, 1, 2))).lower(*moving, *rest).compile()
        for name, form in FORMS.items()
    }
    check_same_work({name: jax.device_get(run(*moving, *rest)) for name, run in compiled.items()})
    cases = {name: lambda run=run: jax.block_until_ready(run(*moving, *rest)) for name, run in compiled.items()}
    seconds = common.alternate(cases, options.repeats)
    return [
        {
            "width": width,
            "form": name,
            "seconds": common.median(seconds[name]),
            "memory, MB": compiled[name].memory_analysis().temp_size_in_bytes / 1e6,
            "real places": f"{int(real.sum()):,} of {places:,}",
        }
        for name in FORMS
    ]


def check_same_work(results: dict) -> None:
    """Stops when values or gradients differ."""
    (value, gradients), (other_value, other_gradients) = results.values()
    errors = [abs(value - other_value) / abs(other_value)]
    errors += [np.abs(x - y).max() / np.abs(y).max() for x, y in zip(gradients, other_gradients, strict=True)]
    if not max(errors) <= TOLERANCE:
        raise SystemExit(f"{' and '.join(results)} differ by {max(errors):.2g}, more than {TOLERANCE}")


if __name__ == "__main__":
    main()
