"""Client of a server with OpenAI's chat API, by the package openai: its retries and time-outs, our errors."""

import dataclasses
import functools
import re
import threading
import urllib.parse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from endx_jax import json_files
from endx_jax.errors import EndxError, install

if TYPE_CHECKING:
    import openai

MOST_TOKENS = 1 << 30  # counts beyond it are not believed
MOST_BYTES = 1_000_000  # of a response
HOPELESS = (301, 302, 303, 307, 308, 401, 402, 403, 404, 405)  # statuses that no other request would change
PATH = "/chat/completions"


class NoAnswer(EndxError):
    """Failure of one request, after all repetitions; other requests may succeed."""


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
      timeout: most seconds to wait for the next part of a response.
      retries: how often a request is repeated.
      stop: set to send no further requests.
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

    @property
    def base_url(self) -> str:
        """Address of the API without the path of its chat."""
        url = self.url.rstrip("/")
        if url.endswith(PATH):
            return url.removesuffix(PATH)
        return url if urllib.parse.urlsplit(url).path else f"{url}/v1"

    @functools.cached_property
    def _client(self) -> "openai.OpenAI":
        import openai

        return openai.OpenAI(
            api_key=self.key or "none",
            base_url=self.base_url,
            timeout=self.timeout,
            max_retries=self.retries,
            http_client=openai.DefaultHttpxClient(
                follow_redirects=False,  # prompts go to no other server
                event_hooks={"request": [self._check_goes_on]},
            ),
        )

    def _check_goes_on(self, request: Any) -> None:
        if self.stop.is_set():
            raise NoAnswer("stopped")
        for name in ("OpenAI-Organization", "OpenAI-Project"):  # from the environment, and meant for OpenAI alone
            request.headers.pop(name, None)

    def ask(self, prompt: str) -> Reply:
        """Returns the reply to a prompt.

        Raises:
          NoAnswer: the request was refused, failed in each repetition, or was answered by no reply of a chat.
          EndxError: the server refuses all requests, as for a wrong key; or the package openai is not installed.
        """
        try:
            import openai
        except ModuleNotFoundError:
            raise EndxError(f"asking a model needs the package openai: {install('generate')}") from None
        try:
            response = self._client.chat.completions.with_raw_response.create(
                model=self.fields["model"],
                messages=[{"role": "user", "content": prompt}],
                extra_body=self.fields,
                extra_headers=None if self.key else {"Authorization": openai.Omit()},
            )
        except openai.APITimeoutError:
            raise NoAnswer(f"no answer in {self.timeout:g} s, {self.retries + 1} times") from None
        except (openai.APIConnectionError, UnicodeError) as failure:  # UnicodeError: a name that no host has
            reason = type(failure.__cause__ or failure).__name__
            raise NoAnswer(f"the connection failed ({reason}), {self.retries + 1} times") from None
        except openai.APIStatusError as refusal:
            said = ascii(self._hidden(refusal.response.content.decode("utf-8", "replace")).strip()[:300])[1:-1]
            kind = EndxError if refusal.status_code in HOPELESS else NoAnswer
            raise kind(f"{self.base_url}{PATH} answers with status {refusal.status_code}: {said}") from None
        if len(response.content) > MOST_BYTES:
            raise NoAnswer(f"an answer of {len(response.content):,} bytes, of which {MOST_BYTES:,} are allowed")
        return self._reply(response.content)

    def _hidden(self, text: str) -> str:
        return text.replace(self.key, "***") if self.key else text

    def _reply(self, content: bytes) -> Reply:
        try:
            answer = json_files.parse(content, "the answer", dict)
            (choice, *_) = json_files.list_at(answer, "choices", "the answer") or [{}]
            message = json_files.as_object(json_files.value(choice, "message", "choices[0]"), "message")
            text = json_files.as_text(message.get("content") or "", "content", may_be_empty=True)
            usage = answer.get("usage")
            used = usage if isinstance(usage, dict) else {}
            tokens = [used.get(name) for name in ("prompt_tokens", "completion_tokens")]
            counts = [n if isinstance(n, int) and 0 <= n <= MOST_TOKENS else 0 for n in tokens]
            return Reply(text, choice.get("finish_reason") != "length", (counts[0], counts[1]))
        except EndxError as failure:
            kind = "HTML" if content.lstrip()[:1] == b"<" else self._hidden(str(failure))[:200]
            raise NoAnswer(f"status 200 with no answer of a chat ({kind})") from None
