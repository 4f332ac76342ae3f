r"""Teacher of ENDX, a cross-encoder with an embedding for question and answer (Wang et al. 2021, section 3.3).

It reads the encodings of a matched question (N tokens) and answer (M tokens) and computes an embedding of each. For the
question, literally by Eqs. 2 to 4, the answer's tokens are queries and the question's tokens are keys and values:

$$ head_q^i = softmax(H_a W_q^i (H_q W_k^i)^T / \sqrt{d_h}) H_q W_v^i, \quad
   H'_q = [head_q^1; ...] W_o, \quad H_q^{cross} = LayerNorm(H'_q + FFN(H'_q)) $$

So the "question" has the answer's length M, its content comes from the question only, and the answer sets the attention
weights. The answer's embedding is computed with the roles exchanged and the same weights.
"""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from endx_jax.errors import EndxError
from endx_jax.models.attention import attend
from endx_jax.models.pooling import Pooling
from endx_jax.numerics import l2_normalize

Array = jax.Array


class CrossEncoder(nn.Module):
    """Cross-attention, feed-forward network, norm and pooling over the encodings of matched pairs.

    Attributes:
      pooling: encodings [B, L, D] and mask [B, L] to [B, E]: a module, or a function without parameters.
      heads: of the attention (ENDX: 12); D must be a multiple of it.
      residual: adds the queries' input to the attention's output, as in a Transformer block. ENDX has no residual;
        with it the answer's content enters the question's embedding.
      normalize: scales embeddings to unit L2 norm.
      dtype: of the computation.
    """

    pooling: Pooling
    heads: int = 12
    residual: bool = False
    normalize: bool = False
    dtype: jnp.dtype = jnp.dtype(jnp.float32)

    def setup(self):
        """Creates the submodules, which both directions use."""
        self.attention = CrossAttention(self.heads, self.dtype)
        self.refinement = Refinement(self.dtype)

    def __call__(self, question: Array, question_mask: Array, answer: Array, answer_mask: Array) -> tuple[Array, Array]:
        """Embeds matched pairs; row i of each input belongs to pair i.

        Args:
          question: encodings [B, N, D].
          question_mask: bool [B, N].
          answer: encodings [B, M, D].
          answer_mask: bool [B, M].

        Returns:
          Cross-embeddings of the questions and of the answers, both float32 [B, E].
        """
        return (
            self._embed(answer, answer_mask, question, question_mask),
            self._embed(question, question_mask, answer, answer_mask),
        )

    def _embed(self, asking: Array, asking_mask: Array, source: Array, source_mask: Array) -> Array:
        """Embeds the `source` side, with one position for each position of the querying side."""
        attended = self.attention(asking, source, source_mask)
        if self.residual:
            attended = attended + asking
        embedding = self.pooling(self.refinement(attended), asking_mask)
        return l2_normalize(embedding) if self.normalize else embedding


class CrossAttention(nn.Module):
    """Multi-head attention of one text's positions over another's, without biases (Eqs. 2 and 3)."""

    heads: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, asking: Array, source: Array, source_mask: Array) -> Array:
        """Maps [B, M, D] asking and [B, N, D] source to [B, M, D]."""
        width = source.shape[-1]
        if width % self.heads:
            raise EndxError(f"encodings {width} wide do not divide into objective.cross_heads={self.heads} heads")
        head_width = width // self.heads

        def project(x, name):
            return _dense(width, self.dtype, name, use_bias=False)(x).reshape(*x.shape[:2], self.heads, head_width)

        attended = attend(
            project(asking, "query"),
            project(source, "key"),
            project(source, "value"),
            source_mask,
            scale=1 / math.sqrt(head_width),
        )
        return _dense(width, self.dtype, "output", use_bias=False)(attended.reshape(asking.shape))


class Refinement(nn.Module):
    """Feed-forward network of hidden width 4 D (Vaswani et al. 2017) with residual and norm (Eq. 4)."""

    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Maps [B, L, D] to [B, L, D]."""
        width = x.shape[-1]
        hidden = nn.gelu(_dense(4 * width, self.dtype, "mlp_up")(x), approximate=False)
        x = x + _dense(width, self.dtype, "mlp_down")(hidden)
        return nn.LayerNorm(epsilon=1e-6, dtype=self.dtype, use_fast_variance=False, name="mlp_norm")(x)


def _dense(width: int, dtype: jnp.dtype, name: str, use_bias: bool = True) -> nn.Dense:
    # Xavier, as Vaswani et al. 2017: without a residual around the attention, its result must not start out tiny.
    return nn.Dense(width, use_bias=use_bias, dtype=dtype, kernel_init=nn.initializers.xavier_uniform(), name=name)
