"""Batched encoding of texts, sorted by length so that little padding is computed."""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
import tqdm
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from endx_jax.batch import Tokens
from endx_jax.data.batches.ragged import RaggedVectors
from endx_jax.data.batches.token_tables import TokenTable
from endx_jax.data.tokenization import TextProcessor
from endx_jax.errors import EndxError
from endx_jax.inference.identity import model_identity
from endx_jax.inference.text_batches import Shapes, batches, compute_batches
from endx_jax.json_files import as_whole
from endx_jax.models.dual_encoder import DualEncoder
from endx_jax.numerics import Quantized, l2_normalize, quantize
from endx_jax.parallel.environment import cores
from endx_jax.parallel.execution import Execution
from endx_jax.parallel.mesh import check_process
from endx_jax.parallel.sharding import local_rows, to_global
from endx_jax.settings import check_choice

Array = jax.Array
Precision = Literal["float32", "bfloat16", "float16", "int8"]


@dataclasses.dataclass(frozen=True)
class EmbeddingFormat:
    """Operations on embeddings, applied on the device in the order of the attributes.

    Attributes:
      width: number of leading dimensions to keep; None keeps all.
      normalize: true to scale to unit norm.
      precision: precision of the results.
    """

    width: int | None = None
    normalize: bool = False
    precision: Precision = "float32"

    def __post_init__(self):
        check_choice("precision", self.precision, get_args(Precision))
        if self.width is not None:
            as_whole(self.width, "truncate_dim", least=1)

    def __call__(self, embeddings: Array) -> Array | Quantized:
        """Converts embeddings, float32 [..., E]; raises EndxError if `width` is greater than E."""
        if self.width is not None:
            as_whole(self.width, "truncate_dim", least=1, most=embeddings.shape[-1])
        embeddings = embeddings[..., : self.width]
        if self.normalize:
            embeddings = l2_normalize(embeddings)
        return self.rounded(embeddings)

    def rounded(self, embeddings: Any, xp: Any = jnp) -> Any:
        """Rounds embeddings to the precision; with `xp=np` on the host."""
        return quantize(embeddings, xp) if self.precision == "int8" else embeddings.astype(jnp.dtype(self.precision))


PLAIN = EmbeddingFormat()


class TextEncoder:
    """Encodes texts with either tower of a dual encoder.

    One encoder serves any parameters of its dual encoder and keeps the compiled programs. There are at most a few
    dozen: widths are those of `text_batches.Shapes`, and all batches of a width but the last have the same number of
    rows.

    Attributes:
      compiled: shapes (side, rows, width) of the compiled programs; the side is `question` if both towers have the same
        architecture.
      cut: number of texts so far that were truncated to the maximum length of their side.
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
        """Creates an encoder without compiling anything.

        Args:
          model: dual encoder.
          processors: text processors of the sides `question` and `answer`.
          mesh: device mesh over which each batch is split.
          batch_size: number of texts of maximum length to encode together over all devices, at least one on each.
            Batches of shorter texts have more rows and the same number of padded tokens. CPUs, which are fastest with
            small batches, get at most `text_batches.CPU_TOKENS` tokens per device.
          part: function (params, side, tokens [B, L]) -> [B, ...] to compute instead of embeddings, such as
            `model.base`.
        """
        self.model, self.processors, self.mesh, self.batch_size = model, processors, mesh, batch_size
        self.compiled: set[tuple[str, int, int]] = set()
        self.cut, self._lock = 0, threading.Lock()
        replicated = NamedSharding(mesh, PartitionSpec())
        self._part = part or model.encode

        def encode(params: dict, side: str, tokens: Tokens) -> Array:
            return Execution(mesh).on_all(lambda params, tokens: self._part(params, side, tokens), params, tokens)

        self._encode = jax.jit(encode, static_argnums=1, out_shardings=replicated)
        self._finish = jax.jit(self.converted, static_argnums=0, out_shardings=replicated)

    def __call__(
        self,
        params: dict,
        side: str,
        texts: Sequence[str],
        *,
        batch_size: int | None = None,
        progress: bool = False,
        output: EmbeddingFormat = PLAIN,
        prompt: str | None = None,
    ) -> Any:
        """Encodes texts.

        Args:
          params: parameters of the dual encoder.
          side: `question` or `answer`.
          texts: N texts.
          batch_size: overrides the encoder's `batch_size`; raises EndxError if below 1.
          progress: true to show a progress bar.
          output: operations on the embeddings before they are fetched.
          prompt: string prepended to every text; None for the prompt of the side.

        Returns:
          NumPy [N, E] in the order of the texts and the precision of `output`, the same on every process; `Quantized`
          for int8. With an embedding for each token, `RaggedVectors` of such values [T, E].

        Raises:
          EndxError: `batch_size` is below 1, or an embedding has a number that float16 can't hold.
        """
        check_process()  # before the tokenizer's threads, which a forked process does not have
        processor = self.processors[side]
        if prompt is not None:
            processor = dataclasses.replace(processor, prompt=prompt)
        shapes = self.shapes(
            side, self.batch_size if batch_size is None else as_whole(batch_size, "batch_size", least=1)
        )
        bar = tqdm.tqdm(total=len(texts), desc=f"encoding {side}s", unit="text", disable=not progress, leave=False)
        towers = self.model.encoding_params(params, side)
        tower = "question" if self.model.question == self.model.answer else side

        programs: dict[tuple[int, ...], Future] = {}

        def compile_new(shapes: list[tuple[int, int]]) -> None:
            """Compiles programs ahead of their batches, in parallel, since on a GPU each takes seconds of one core."""
            new = [shape for shape in shapes if (tower, *shape) not in self.compiled and shape not in programs]
            if new:
                pool = compiling.enter_context(ThreadPoolExecutor(cores()))
                programs.update((shape, pool.submit(compile_one, shape)) for shape in new)

        # The caller's settings of JAX hold for its thread only.
        precision, device = jax.config.jax_default_matmul_precision, jax.config.jax_default_device

        def compile_one(shape: tuple[int, int]) -> None:
            rows, width = shape
            ids = np.zeros((len(local_rows(self.mesh, rows)), width), np.int32)
            with jax.default_matmul_precision(precision), jax.default_device(device):
                tokens = to_global(Tokens(ids, ids == 0), self.mesh, rows)  # type: ignore[arg-type]
                self._encode.lower(towers, tower, tokens).compile()

        def encode(tokens: Tokens) -> Array | Quantized:
            rows, width = shape = tokens.ids.shape
            if shape in programs:
                bar.set_postfix_str(f"programs to compile (first use): {len(programs)}")
                programs.pop(shape).result()
                self.compiled.add((tower, rows, width))
                bar.set_postfix_str("")
            return self._finish(output, self._encode(towers, tower, tokens))

        prepared = batches(self._counting(processor), texts, shapes, compile_new)
        with contextlib.ExitStack() as compiling, contextlib.closing(prepared):
            results = compute_batches(prepared, encode, self.mesh, bar)
        if results is None:
            shape = self._result_shape(params, side, output)
            one = shape.values if self.model.by_token else shape  # type: ignore[union-attr]
            results = jax.tree.map(lambda part: np.empty((0, *part.shape[1 + self.model.by_token :]), part.dtype), one)
            results = RaggedVectors(results, np.zeros(1, np.int64)) if self.model.by_token else results
        if output.precision == "float16" and not np.isfinite(results.values if self.model.by_token else results).all():
            raise EndxError('embeddings exceed 65,504, the largest number of float16: use precision="bfloat16"')
        return results

    def width(self, params: dict, output: EmbeddingFormat = PLAIN) -> int:
        """Returns the width of embeddings after `output`."""
        return jax.tree.leaves(self._result_shape(params, "question", output))[0].shape[-1]

    def identity(self, params: dict) -> str:
        """Returns the identity of the model with these parameters: see `model_identity`."""
        return model_identity(self.model, params, self.processors)

    def shapes(self, side: str, batch_size: int) -> Shapes:
        """Returns the batch shapes of one side for this `batch_size`."""
        return Shapes.of(self.mesh, self.processors[side].length, batch_size)

    def _counting(self, processor: TextProcessor) -> Callable[[Sequence[str]], TokenTable]:
        """Returns a function that applies the processor and adds the number of truncated texts to `cut`."""

        def tokenize(texts: Sequence[str]) -> TokenTable:
            table = processor(texts)
            with self._lock:  # runs in a thread, and calls may overlap
                self.cut += table.cut
            return table

        return tokenize

    def _result_shape(self, params: dict, side: str, output: EmbeddingFormat) -> jax.ShapeDtypeStruct | Quantized:
        """Returns the shapes of the results for one text."""
        tokens = Tokens(jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1), bool))
        return jax.eval_shape(lambda params: self.converted(output, self._part(params, side, tokens)), params)

    def converted(self, output: EmbeddingFormat, embeddings: Any) -> Any:
        """Applies `output` to embeddings of texts or of tokens."""
        return embeddings.replace(values=output(embeddings.values)) if self.model.by_token else output(embeddings)
