"""Encoder of sentence-transformers, the peer of encoding.py."""

import common
import numpy as np


class PeerEncoder:
    """Encoder of given texts; each call encodes them all."""

    def __init__(self, folder: str, device: str, dtype: str, length: int, texts: list[str], batch_size: int):
        """Loads the model, which truncates texts to `length` tokens."""
        with common.needs("sentence-transformers torch"):
            import sentence_transformers
        model = sentence_transformers.SentenceTransformer(folder, device=device, model_kwargs={"dtype": dtype})
        model.max_seq_length = length
        self._model, self._texts, self._batch_size = model, texts, batch_size

    def __call__(self) -> np.ndarray:
        """Returns the embeddings, [N, E]."""
        return self._model.encode(self._texts, batch_size=self._batch_size, show_progress_bar=False)
