"""Batched encoding of many texts, sorted by length internally to avoid padding."""

import dataclasses
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, get_args, overload

import jax
import jax.numpy as jnp
import numpy as np
import tqdm
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from endx_jax.batch import Tokens
from endx_jax.data.token_tables import TokenTable
from endx_jax.data.tokenization import TextProcessor
from endx_jax.errors import EndxError, nearest
from endx_jax.inference.identity import model_identity
from endx_jax.inference.text_batches import Shapes, TextBatch, batches, late
from endx_jax.models.dual_encoder import DualEncoder
from endx_jax.numerics import Quantized, l2_normalize, quantize
from endx_jax.parallel.execution import Execution
from endx_jax.parallel.sharding import to_global
from endx_jax.progress import ticking

Array = jax.Array
Precision = Literal["float32", "bfloat16", "float16", "int8"]

# Batches that the device may have before it when the results of the one before are fetched.
IN_FLIGHT = 1


@dataclasses.dataclass(frozen=True)
class Output:
    """Operations on embeddings on the device, before they are fetched, in this order.

    Attributes:
      width: leading dimensions to keep; None keeps all.
      normalize: scales to unit norm.
      precision: of the numbers.
    """

    width: int | None = None
    normalize: bool = False
    precision: Precision = "float32"

    def __post_init__(self):
        choices = get_args(Precision)
        if self.precision not in choices:
            hint = nearest(self.precision, choices)
            raise EndxError(f"unknown precision {self.precision!r}{hint}; embeddings come in {', '.join(choices)}")
        if self.width is not None and self.width < 1:
            raise EndxError(f"embeddings cannot be cut to {self.width} dimensions; keep at least 1, or None for all")

    def __call__(self, embeddings: Array) -> Array | Quantized:
        """Converts float32 [B, E]."""
        embeddings = embeddings[:, : self.width]
        if self.normalize:
            embeddings = l2_normalize(embeddings)
        return quantize(embeddings) if self.precision == "int8" else embeddings.astype(self.precision)


PLAIN = Output()


class TextEncoder:
    """Encodes texts with either tower of a dual encoder.

    It keeps the compiled programs, so create one and pass it the current parameters. There are at most a few dozen
    programs: widths are multiples, and each has one number of rows for all batches but the last.

    Attributes:
      compiled: shapes (side, rows, width) that were compiled so far; `question` stands for both sides if both towers
        have the same architecture.
      cut: number of texts so far that were cut to their side's maximum length.
    """

    def __init__(
        self,
        model: DualEncoder,
        processors: Mapping[str, TextProcessor],
        mesh: Mesh,
        batch_size: int = 64,
        *,
        part: Callable[[dict, str, Tokens], Array] | None = None,
    ):
        """Sets what does not change between calls.

        Args:
          model: both towers.
          processors: text processors of each side, `question` and `answer`.
          mesh: over which each batch is split.
          batch_size: texts of the maximum length that are encoded together, over all devices and at least one on
            each. Of shorter ones as many as have the same number of padded tokens; on a CPU, which is fastest with
            small batches, at most `text_batches.CPU_TOKENS` tokens per device.
          part: (parameters, side, tokens [B, L]) to [B, ...], computed in place of embeddings, such as `model.base`.
        """
        self.model, self.processors, self.mesh, self.batch_size = model, processors, mesh, batch_size
        self.compiled: set[tuple[str, int, int]] = set()
        self.cut, self._lock = 0, threading.Lock()
        everywhere = NamedSharding(mesh, PartitionSpec())
        self._part = part or model.encode
        self._encode = jax.jit(self._on_devices, static_argnums=1, out_shardings=everywhere)
        self._finish = jax.jit(Output.__call__, static_argnums=0, out_shardings=everywhere)

    @overload
    def __call__(
        self, params: dict, side: str, texts: Sequence[str], *, batch_size: int | None = None, progress: bool = False
    ) -> np.ndarray: ...

    @overload
    def __call__(
        self,
        params: dict,
        side: str,
        texts: Sequence[str],
        *,
        batch_size: int | None = None,
        progress: bool = False,
        output: Output,
        prompt: str | None = None,
    ) -> np.ndarray | Quantized: ...

    def __call__(
        self,
        params: dict,
        side: str,
        texts: Sequence[str],
        *,
        batch_size: int | None = None,
        progress: bool = False,
        output: Output = PLAIN,
        prompt: str | None = None,
    ) -> np.ndarray | Quantized:
        """Encodes texts.

        Args:
          params: the dual encoder's.
          side: `question` or `answer`.
          texts: N texts.
          batch_size: replaces the encoder's batch size.
          progress: shows a progress bar.
          output: operations on the embeddings before they are fetched.
          prompt: put before every text; None for the side's prompt.

        Returns:
          NumPy [N, E], row i for text i, the same on every process, in the precision of `output`; `Quantized` for int8.
        """
        processor = self.processors[side]
        if prompt is not None:
            processor = dataclasses.replace(processor, prompt=prompt)
        shapes = self.shapes(side, batch_size or self.batch_size)
        bar = tqdm.tqdm(total=len(texts), desc=f"encoding {side}s", unit="text", disable=not progress, leave=False)
        encoded = self._encoded(params, side, batches(self._counting(processor), texts, shapes), output, bar)
        results = None
        with ticking(bar):
            for places, found in late(encoded, IN_FLIGHT):
                results = _room_for(len(texts), found) if results is None else results
                jax.tree.map(functools.partial(_put, places), results, found)
                bar.update(len(places))
        return _room_for(0, self._of_one_token(params, side, output)) if results is None else results

    def width(self, params: dict, output: Output = PLAIN) -> int:
        """Returns E, the dimensions of the output with these parameters."""
        found = jax.tree.leaves(self._of_one_token(params, "question", output))[0]
        return found.shape[1]

    def identity(self, params: dict) -> str:
        """Returns the identity of the model with these parameters: see `model_identity`."""
        return model_identity(self.model, params, self.processors)

    def shapes(self, side: str, batch_size: int) -> Shapes:
        """Returns the shapes of batches of one side for this `batch_size`."""
        return Shapes.of(self.mesh, self.processors[side].length, batch_size)

    def _on_devices(self, params: dict, side: str, tokens: Tokens) -> Array:
        return Execution(self.mesh).on_all(lambda params, tokens: self._part(params, side, tokens), params, tokens)

    def _counting(self, processor: TextProcessor) -> Callable[[Sequence[str]], TokenTable]:
        """Wraps the processor to count cut texts in `cut`."""

        def tokenize(texts: Sequence[str]) -> TokenTable:
            table = processor(texts)
            with self._lock:  # this is done in a thread, and calls may overlap
                self.cut += table.cut
            return table

        return tokenize

    def _encoded(
        self, params: dict, side: str, prepared: Iterable[TextBatch], output: Output, bar: tqdm.tqdm
    ) -> Iterator[tuple[np.ndarray, Array | Quantized]]:
        """Yields the indices of texts and their results, whose transfer from the devices may be under way."""
        params = {"shared": self.model.tower_params(params, side)}
        tower = "question" if self.model.question == self.model.answer else side
        for places, (rows, width), tokens in prepared:
            new = (tower, rows, width) not in self.compiled
            if new:
                bar.set_postfix_str(f"compiling for {width} tokens, the first time only")
            embeddings = self._encode(params, tower, to_global(tokens, self.mesh, rows))
            if new:
                self.compiled.add((tower, rows, width))
                bar.set_postfix_str("")
            found = self._finish(output, embeddings)
            jax.tree.map(lambda part: part.copy_to_host_async(), found)
            yield places, found

    def _of_one_token(self, params: dict, side: str, output: Output) -> jax.ShapeDtypeStruct | Quantized:
        """Returns the shapes of the output for a batch of one text."""
        tokens = Tokens(jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1), bool))
        return jax.eval_shape(lambda params: output(self._part(params, side, tokens)), params)


def _room_for(texts: int, found):
    """Allocates arrays like those of a batch for the given number of texts."""
    return jax.tree.map(lambda part: np.empty((texts, *part.shape[1:]), part.dtype), found)


def _put(places: np.ndarray, results: np.ndarray, found: Array) -> None:
    results[places] = np.asarray(found)[: len(places)]
