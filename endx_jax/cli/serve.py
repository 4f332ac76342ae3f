"""`endx serve`: serves a model and its index over HTTP, with a web page for search."""

import argparse
import dataclasses
import os
import pathlib
import signal
import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from etils import epath

from endx_jax.buckets import url_of
from endx_jax.cli.data_flags import add_corpus_flags, add_product_flag, check_reading
from endx_jax.cli.parser import main_of
from endx_jax.errors import EndxError, RunInterrupted, install
from endx_jax.index.approximate import ENGINES, EXACT
from endx_jax.serving.settings import Limits, ServingSettings, is_loopback
from endx_jax.settings import require

if TYPE_CHECKING:
    from endx_jax.index.index import Index
    from endx_jax.serving.service import Service

TOKEN = "ENDX_TOKEN"

Path = str | os.PathLike  # empty for none


def serve(
    *,
    workdir: epath.Path | None = None,
    index: epath.Path | None = None,
    corpus: str = "",
    model: str = "",
    engine: str = EXACT,
    rerank: epath.Path | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    token_file: pathlib.Path | None = None,
    allow_anonymous: bool = False,
    **further: Any,
) -> None:
    """Loads a model and its index, and serves them until the process is told to stop.

    Args:
      workdir: workdir of a run with a model and an index
      index: index, as written by endx encode [index.sqlite in WORKDIR]
      corpus: folder of documents, CSV, or another corpus of endx encode, to serve
      model: folder or name of the model that encoded the index [the run's, or the one that the index names]
      engine: exact search, or by faiss
      rerank: workdir of a pair classifier or of late interaction, or folder or name of a CrossEncoder or
        MultiVectorEncoder, for /v1/rerank
      host: address to listen on [127.0.0.1: this machine only]
      port: port; 0 chooses a free one
      token_file: file with the token that clients must send [ENDX_TOKEN in the environment; none]
      allow_anonymous: serve without a token on another host, or for other names of this one
      **further: the fields of `Limits`; split and columns of the corpus, as for `read_corpus`
    """
    served = workdir or index or (corpus and model)
    require(bool(served), "nothing to serve: set --workdir=RUN, --index=FILE, or --model=NAME and --corpus=FOLDER")
    require(not (corpus and index), "--corpus gets an index of its own: leave out --index")
    require(0 <= port < 1 << 16, f"--port={port}: it must be from 1 to 65535, or 0 for a free port")
    try:
        from endx_jax.serving.app import make_app
        from endx_jax.serving.server import bind, run_server
    except ModuleNotFoundError as missing:
        raise EndxError(f"a server needs the package {missing.name}: {install('serve')}") from None
    from endx_jax.experiment.workdir import run_index, run_language
    from endx_jax.parallel.console import say

    limits = Limits(**{field.name: further.pop(field.name) for field in dataclasses.fields(Limits)})
    check_reading(further, "--corpus", corpus)
    token, loopback = _token(token_file), is_loopback(host)
    if not (loopback or token or allow_anonymous):
        raise EndxError(
            f"--host={host} lets everyone who can connect read and change the index: set --token-file=FILE "
            "or --allow-anonymous"
        )
    settings = ServingSettings(limits, token, loopback_only=loopback and token is None and not allow_anonymous)
    with bind(host, port) as bound:
        if corpus:
            further["language"] = run_language(workdir)
        place = index or ("" if corpus else run_index(workdir or ""))
        service = _service(model or workdir or "", place, corpus, engine, rerank or "", limits.max_text, further)
        shown = f"[{host}]" if ":" in host else host
        ready = f"ready: open http://{shown}:{bound.getsockname()[1]} (Ctrl-C stops the server)"
        run_server(make_app(service, settings, when_ready=lambda: say(ready)), bound, limits)
    say("stopped")
    sys.stderr.flush()
    os._exit(0)  # do not wait for the compute thread, which may be compiling, or reading from a disconnected disk


def _service(
    source: Path, index: Path, corpus: str, engine: str, rerank: Path, max_text: int, reading: Mapping[str, Any]
) -> "Service":
    """Loads the model `source` and an index, which is made from the corpus if there is one, and logs them."""
    from endx_jax.index.index_model import open_index
    from endx_jax.parallel.console import say
    from endx_jax.parallel.environment import keep_programs
    from endx_jax.serving.service import Service

    keep_programs()
    pairs = None
    if rerank:
        from endx_jax.experiment.saved_model import load_pair_scorer  # with all that trains

        pairs = load_pair_scorer(rerank)
    if corpus:
        from endx_jax.index.corpus_encoding import encode_corpus

        index = encode_corpus(source, corpus, **reading)
    opened = open_index(index, source, engine=engine)
    encoder = opened.encoder.model
    if url_of(index) and hasattr(signal, "SIGHUP"):
        _follow(opened)
    say(opened.describe(opened.default_mode))
    say(f"encoded by {encoder.name}; warming up")
    return Service(encoder, opened, max_text, pairs)


def _follow(index: "Index") -> None:
    """Opens the present version of an index in a bucket whenever the process gets SIGHUP."""
    from endx_jax.parallel.console import say

    def reopen() -> None:
        try:
            index.reopen()
            say(index.describe(index.default_mode))
        except (EndxError, RunInterrupted) as failure:
            say(f"the index was not opened again: {failure}")

    signal.signal(signal.SIGHUP, lambda *_: threading.Thread(target=reopen, daemon=True).start())


def _token(file: pathlib.Path | None) -> str | None:
    """Returns the token of a file, or of the environment, or None."""
    source, token = f"the variable {TOKEN}", os.environ.get(TOKEN, "")
    if file is not None:
        source = f"--token-file={file}"
        try:
            token = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as failure:
            raise EndxError(f"{source} can't be read: {failure}") from None
    elif not token:
        return None
    token = token.strip()
    if not token.isascii() or not token or any(character.isspace() for character in token):
        raise EndxError(f"{source} must contain the token: one line of ASCII without spaces")
    return token


def _add_limits(parser: argparse.ArgumentParser) -> None:
    for field in dataclasses.fields(Limits):
        about = f"{field.metadata['doc']} [{field.default:,}]"
        option = f"--{field.name.replace('_', '-')}"
        parser.add_argument(option, type=type(field.default), default=field.default, help=about)


CHANGES = {"rerank": {"metavar": "WORKDIR"}, "engine": {"choices": (EXACT, *ENGINES)}}
main = main_of(__doc__, serve, add_corpus_flags, add_product_flag, _add_limits, **CHANGES)
