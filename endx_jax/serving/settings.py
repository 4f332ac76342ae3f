"""What a server accepts."""

import dataclasses

from endx_jax.settings import check, key


def _limit(default: float, doc: str):
    return key(default, doc, changes_results=False)


@dataclasses.dataclass(frozen=True)
class Limits:
    """Bounds on what one client may ask, so that all are served; beyond them it is told so with a 4xx status.

    Every field is an option of `endx serve`: `--max-body` and so on.
    """

    max_body: int = _limit(4_000_000, "bytes of a request's body")
    max_text: int = _limit(20_000, "characters of a text; the model itself cuts texts to its own length")
    max_texts: int = _limit(1024, "texts or documents of a request")
    max_k: int = _limit(100, "answers to a question")
    max_waiting: int = _limit(256, "requests that wait or are worked on; one more is told to come again")
    max_connections: int = _limit(1000, "open connections")
    max_seconds: float = _limit(10.0, "for a client to send its headers, to send a body, or to take an answer")

    def __post_init__(self):
        for field in dataclasses.fields(self):
            check(getattr(self, field.name) > 0, f"--{field.name.replace('_', '-')} must be positive")


@dataclasses.dataclass(frozen=True)
class ServingSettings:
    """How a server treats its clients.

    Attributes:
      limits: on what they may ask.
      token: what they must show, as `Authorization: Bearer TOKEN`; None: nothing.
      loopback_only: whether requests must be addressed to this machine by a name of its own. It keeps web pages out
        that a browser here has open and whose site's name leads to this machine ("DNS rebinding").
    """

    limits: Limits = Limits()
    token: str | None = None
    loopback_only: bool = True
