"""Client of a server with OpenAI's chat API, which waits and repeats requests that failed for a passing reason."""

import dataclasses
import email.utils
import http.client
import json
import random
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from endx_jax import json_files
from endx_jax.errors import EndxError

MOST_BYTES = 1_000_000  # of a response
MOST_TOKENS = 1 << 30  # counts beyond it are not believed
MOST_WAIT = 300.0  # seconds before a request is repeated, whatever the server asks for
# Statuses of requests that may succeed later, beside those from 500 on; those that no other request would change.
PASSING, HOPELESS = (408, 409, 425, 429), (301, 302, 303, 307, 308, 401, 402, 403, 404, 405)


class NoAnswer(EndxError):
    """Failure of one request, after all repetitions; other requests may succeed."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Handler that follows no redirect, which would send the key to another server."""

    def redirect_request(self, *args, **kwargs):
        """Returns None, so that the response is one of an error."""
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)


class _Passing(Exception):
    """Failure for a passing reason; `wait` is the server's Retry-After in seconds, None without one."""

    def __init__(self, reason: str, wait: float | None = None):
        super().__init__(reason)
        self.wait = wait


@dataclasses.dataclass(frozen=True)
class Reply:
    """Reply of the model: its text, true if it ended by itself, and the tokens of request and reply that count."""

    text: str
    complete: bool
    tokens: tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Chat:
    """Client; threads may share it.

    Attributes:
      url: address of the API: `http://HOST`, `http://HOST/v1` or the whole `.../chat/completions`.
      fields: fields of each request beside its messages, such as `model`.
      key: key of the API, which is sent to this address only and is in no message; empty for none.
      timeout: most seconds for a whole response.
      retries: how often a request is repeated.
      stop: set to end all waiting, and to send nothing more.
    """

    url: str
    fields: Mapping[str, Any]
    key: str = dataclasses.field(default="", repr=False)
    timeout: float = 120.0
    retries: int = 6
    stop: threading.Event = dataclasses.field(default_factory=threading.Event)

    def __post_init__(self):
        if not re.fullmatch(r"https?://([\w.-]+|\[[\da-fA-F:]+\])(:\d+)?(/[\w./~-]*)?", self.url):
            raise EndxError("--endpoint must be http(s)://HOST[:PORT][/PATH], without a user or a query")
        if not self.key.isascii() or not self.key.isprintable():
            raise EndxError("the key of the API holds characters that no key has, such as a line break: set it again")

    def ask(self, prompt: str) -> Reply:
        """Returns the reply to a prompt.

        Raises:
          NoAnswer: the request was refused, or it failed in each repetition.
          EndxError: the server refuses all requests, as for a wrong key.
        """
        for again in range(self.retries + 1):
            if self.stop.is_set():
                raise NoAnswer("stopped")
            try:
                return self._reply(self._post(prompt))
            except _Passing as failure:
                reason, wait = str(failure), failure.wait
                if wait is None:
                    wait = 2.0**again * random.uniform(0.5, 1.0)
            if again < self.retries:
                self.stop.wait(min(wait, MOST_WAIT))
        raise NoAnswer(f"{reason}, {self.retries + 1} times")

    def _post(self, prompt: str) -> bytes:
        """Returns the body of a successful response, of at most `MOST_BYTES`."""
        url = self.url.rstrip("/")
        if not url.endswith("/chat/completions"):
            url += ("" if urllib.parse.urlsplit(url).path else "/v1") + "/chat/completions"
        body = json.dumps({**self.fields, "messages": [{"role": "user", "content": prompt}]}).encode()
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self.key}"} if self.key else {})
        until = time.monotonic() + self.timeout
        try:
            request = urllib.request.Request(url, body, headers)
            try:
                response = _OPENER.open(request, timeout=self.timeout)
            except urllib.error.HTTPError as refusal:  # also a response
                response = refusal
            with response:
                content = self._read(response, until)
        except TimeoutError:
            raise _Passing(f"no answer in {self.timeout:g} s") from None
        except (OSError, http.client.HTTPException, UnicodeError) as failure:
            reason = getattr(failure, "reason", None) or failure
            raise _Passing(f"the connection failed ({type(reason).__name__})") from None
        if response.status == 200:
            return content
        if response.status in PASSING or response.status >= 500:
            raise _Passing(f"status {response.status}", _seconds(response.headers.get("Retry-After", "")))
        said = ascii(self._hidden(content.decode("utf-8", "replace")).strip()[:300])[1:-1]
        kind = EndxError if response.status in HOPELESS else NoAnswer
        raise kind(f"{url} answers with status {response.status}: {said}")

    def _read(self, response, until: float) -> bytes:
        content = b""
        while block := response.read1(65536):  # what has come, unlike `read`
            content += block
            if len(content) > MOST_BYTES:
                raise NoAnswer(f"an answer of over {MOST_BYTES:,} bytes")
            if time.monotonic() > until:
                raise _Passing(f"no whole answer in {self.timeout:g} s")
        return content

    def _hidden(self, text: str) -> str:
        return text.replace(self.key, "***") if self.key else text

    def _reply(self, content: bytes) -> Reply:
        try:
            found = json_files.parse(content, "the answer", dict)
            (choice, *_) = json_files.list_at(found, "choices", "the answer") or [{}]
            message = json_files.mapped(json_files.value(choice, "message", "choices[0]"), "message")
            text = json_files.text(message.get("content") or "", "content", may_be_empty=True)
            usage = found.get("usage")
            used = usage if isinstance(usage, dict) else {}
            tokens = [used.get(name) for name in ("prompt_tokens", "completion_tokens")]
            counts = [n if isinstance(n, int) and 0 <= n <= MOST_TOKENS else 0 for n in tokens]
            return Reply(text, choice.get("finish_reason") != "length", (counts[0], counts[1]))
        except EndxError as failure:
            kind = "HTML" if content.lstrip()[:1] == b"<" else self._hidden(str(failure))[:200]
            raise _Passing(f"status 200 with no answer of a chat ({kind})") from None


def _seconds(header: str) -> float | None:
    """Returns the seconds of a Retry-After header, which is a number or a date; None for others."""
    if header.strip().isdecimal() and len(header) < 10:
        return float(header)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(header).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None
