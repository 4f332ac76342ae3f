"""Settings of the server: limits and access."""

import dataclasses
import ipaddress

from endx_jax.settings import key, require


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits on requests; requests beyond them are refused with a 4xx status.

    Every field is an option of `endx serve`, such as `--max-body`.
    """

    max_body: int = key(4_000_000, "bytes of a request's body")
    max_text: int = key(20_000, "characters of text and of metadata in a result")
    max_text_bytes: int = key(1_000_000, "bytes of a text in a request; the model reads the beginning of a long one")
    max_texts: int = key(2048, "texts or documents of a request")
    max_k: int = key(100, "results of a search")
    max_waiting: int = key(256, "requests that wait or are computed; further ones get status 429")
    max_seconds: float = key(10.0, "seconds for a client to send headers, and to send a body")

    def __post_init__(self):
        for field in dataclasses.fields(self):
            require(getattr(self, field.name) > 0, f"--{field.name.replace('_', '-')} must be positive")


@dataclasses.dataclass(frozen=True)
class ServingSettings:
    """Limits and access.

    Attributes:
      limits: bounds on requests.
      token: token that clients must send as `Authorization: Bearer TOKEN`; None for no token.
      loopback_only: requires a Host header that names this machine, against DNS rebinding: requests of web pages whose
        host name resolves to this machine.
    """

    limits: Limits = Limits()
    token: str | None = None
    loopback_only: bool = True


def is_loopback(host: str) -> bool:
    """Returns true for `localhost` and addresses that only this machine reaches, such as 127.0.0.1 and ::1."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
