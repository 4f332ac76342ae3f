r"""Cross-encoder of ENDX (Wang et al. 2021, section 3.3): embeds each text of a pair conditioned on the other.

It maps the encodings of a matched question (N tokens) and answer (M tokens) to an embedding of each. For the question,
the answer's tokens are the attention queries, and the question's tokens the keys and values (Eqs. 2 to 4, literally):

$$ head_q^i = softmax(H_a W_q^i (H_q W_k^i)^T / \sqrt{d_h}) H_q W_v^i, \quad
   H'_q = [head_q^1; ...] W_o, \quad H_q^{cross} = LayerNorm(H'_q + FFN(H'_q)) $$

So the "question" output has the answer's length M. Its values come from the question only; the answer determines the
attention weights. The answer's embedding uses the same weights with the roles exchanged. `read_teacher` reads its
parameters from another run.
"""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from endx_jax import json_files
from endx_jax.buckets import read_bytes, url_of
from endx_jax.errors import EndxError
from endx_jax.files import expanded
from endx_jax.models.attention import Pattern, attend
from endx_jax.models.pooling import Pooling
from endx_jax.models.products import FLOAT32, dot_general_of
from endx_jax.numerics import l2_normalize
from endx_jax.parallel.sharding import parameter_paths
from endx_jax.settings import require
from endx_jax.training.checkpoints import best_step, restore_params

Array = jax.Array


class CrossEncoder(nn.Module):
    """Cross-attention, feed-forward network, norm and pooling over the encodings of matched pairs.

    Attributes:
      pooling: maps encodings [B, L, D] and a mask [B, L] to [B, E]; a module, or a function without parameters.
      heads: number of attention heads (ENDX: 12); D must be a multiple of it.
      residual: adds the query text's encodings to the attention output, as a Transformer block does. ENDX has no such
        residual: it would put the answer's content into the question's embedding.
      normalize: scales embeddings to unit L2 norm.
      dtype: dtype of the computation.
      product_dtype: data type of the factors of linear maps in a float32 computation: see `models.products`.
    """

    pooling: Pooling
    heads: int = 12
    residual: bool = False
    normalize: bool = False
    dtype: jnp.dtype = jnp.dtype(jnp.float32)
    product_dtype: str = FLOAT32

    def setup(self):
        """Creates the modules, which both directions share."""
        self.attention = CrossAttention(self.heads, self.dtype, self.product_dtype)
        self.refinement = Refinement(self.dtype, self.product_dtype)

    def __call__(self, question: Array, question_mask: Array, answer: Array, answer_mask: Array) -> tuple[Array, Array]:
        """Embeds matched pairs; row i of each input belongs to pair i.

        Args:
          question: encodings [B, N, D] of the questions.
          question_mask: bool [B, N], true for tokens.
          answer: encodings [B, M, D] of the answers.
          answer_mask: bool [B, M], true for tokens.

        Returns:
          The cross-embeddings of the questions and of the answers, both float32 [B, E].
        """
        return (
            self._embed(answer, answer_mask, question, question_mask),
            self._embed(question, question_mask, answer, answer_mask),
        )

    def _embed(self, query: Array, query_mask: Array, source: Array, source_mask: Array) -> Array:
        """Embeds the texts `source` [B, N, D], attended to by `query` [B, M, D], as [B, E]."""
        attended = self.attention(query, source, source_mask)
        if self.residual:
            attended = attended + query
        embedding = self.pooling(self.refinement(attended), query_mask)
        return l2_normalize(embedding) if self.normalize else embedding


class CrossAttention(nn.Module):
    """Multi-head cross-attention without biases (Eqs. 2 and 3)."""

    heads: int
    dtype: jnp.dtype
    product_dtype: str = FLOAT32

    @nn.compact
    def __call__(self, query: Array, source: Array, source_mask: Array) -> Array:
        """Maps `query` [B, M, D] and `source` [B, N, D] to [B, M, D]."""
        width = source.shape[-1]
        if width % self.heads:
            raise EndxError(f"encoding width {width} is not divisible by objective.cross_heads={self.heads}")
        head_width = width // self.heads

        def project(x, name):
            return _dense(self, width, name, use_bias=False)(x).reshape(*x.shape[:2], self.heads, head_width)

        attended = attend(
            project(query, "query"),
            project(source, "key"),
            project(source, "value"),
            source_mask,
            Pattern(1 / math.sqrt(head_width)),
        )
        return _dense(self, width, "output", use_bias=False)(attended.reshape(query.shape))


class Refinement(nn.Module):
    """Feed-forward network of hidden width 4 D (Vaswani et al. 2017) with residual and norm (Eq. 4)."""

    dtype: jnp.dtype
    product_dtype: str = FLOAT32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Maps [B, L, D] to [B, L, D]."""
        width = x.shape[-1]
        hidden = nn.gelu(_dense(self, 4 * width, "mlp_up")(x), approximate=False)
        x = x + _dense(self, width, "mlp_down")(hidden)
        return nn.LayerNorm(epsilon=1e-6, dtype=self.dtype, use_fast_variance=False, name="mlp_norm")(x)


def _dense(part: CrossAttention | Refinement, width: int, name: str, use_bias: bool = True) -> nn.Dense:
    # Xavier initialisation: attention without a residual needs an output of the input's scale from the start.
    draw, product = nn.initializers.xavier_uniform(), dot_general_of(part.product_dtype, part.dtype)
    return nn.Dense(width, use_bias=use_bias, dtype=part.dtype, kernel_init=draw, dot_general=product, name=name)


def read_teacher(workdir: str, like: dict) -> dict:
    """Reads the teacher of the best checkpoint of an ENDX run.

    Args:
      workdir: the run's folder, local or in a bucket.
      like: parameters of the teacher in the run that takes it, for their paths and shapes.

    Returns:
      A tree like `like`, as NumPy arrays.

    Raises:
      EndxError: there is no such run, its teacher has another architecture, or its checkpoint is missing or damaged.
    """
    where, folder = f"objective.teacher_from={workdir}", url_of(workdir) or expanded(workdir)
    file = f"{folder}/config.json"
    about = json_files.parse(read_bytes(file) or b"{}", file, dict)
    objective, evaluation = (
        json_files.as_object(about.get(name, {}), f"{file}: {name!r}") for name in ("objective", "evaluation")
    )
    require(
        objective.get("name") == "endx",
        f"{where} holds no run of objective.name=endx: name the workdir of one",
    )
    step = best_step(folder, str(evaluation.get("metric")))
    if step is None:
        raise EndxError(f"{where} holds no checkpoint yet: finish its training, or name another workdir")
    # Host arrays without memory of their own, so that Orbax restores to the host.
    wanted = jax.tree.map(lambda leaf: np.broadcast_to(np.float32(0), leaf.shape), like)
    teacher = restore_params(folder, step, {"teacher": wanted})["teacher"]
    for path, leaf in parameter_paths(teacher).items():
        finite = bool(np.isfinite(leaf).all())
        require(finite, f"{where}: {path} of checkpoint {step} holds NaN or infinity; name another workdir")
    return teacher
