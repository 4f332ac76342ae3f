"""Models that embed by a formula, and questions to show them on, for figures in milliseconds."""

import zlib

import numpy as np

from endx_jax.data.records import RetrievalSet
from reproduction.figures import Source, Study

WIDTH = 8


def records(answers: int = 12, questions: int = 4) -> RetrievalSet:
    """Answers with as many questions each; the first question of each answer n is also right for answer n + 1."""
    pairs = [(f"{n}: question {k}", f"answer {n}") for n in range(answers) for k in range(questions)]
    pairs += [(f"{n}: question 0", f"answer {n + 1}") for n in range(answers - 1)]
    return RetrievalSet.from_pairs(pairs)


class TinyStudy(Study):
    """A study of sources `near` and `far`: near embeds a text close to the answer it names, far at random."""

    def __init__(self, *names: str, answers: int = 12, questions: int = 4):
        super().__init__([Source(name, name) for name in names])
        self.records = records(answers, questions)

    def embed(self, source, side, texts):
        def row(text):
            topic = int(text.split()[1]) if side == "answer" else int(text.partition(":")[0])
            noise = np.random.default_rng(zlib.crc32(f"{source.place} {side} {text}".encode())).normal(size=WIDTH)
            own = np.random.default_rng(topic).normal(size=WIDTH) if source.place == "near" else 0
            return own + 0.3 * noise

        return np.asarray([row(text) for text in texts], np.float32)
