"""`endx serve`: serves a model and its index over HTTP, with a web page for search."""

import argparse
import dataclasses
import ipaddress
import os
import pathlib
import signal
import sys
import threading
from typing import TYPE_CHECKING

from etils import epath

from endx_jax.buckets import url_of
from endx_jax.cli.data_flags import add_corpus_flags, add_engine_flag, add_product_flag, add_rerank_flag, corpus_options
from endx_jax.errors import EndxError, RunInterrupted, install
from endx_jax.serving.settings import Limits, ServingSettings
from endx_jax.settings import require

if TYPE_CHECKING:
    from endx_jax.index.index import Index
    from endx_jax.serving.service import Service

TOKEN = "ENDX_TOKEN"


def main(argv: list[str]) -> None:
    """Runs the verb with the arguments of the command line."""
    arguments = _parser().parse_args(argv)
    served = arguments.workdir or arguments.index or (arguments.corpus and arguments.model)
    require(bool(served), "nothing to serve: set --workdir=RUN, --index=FILE, or --model=NAME and --corpus=FOLDER")
    require(not (arguments.corpus and arguments.index), "--corpus gets an index of its own: leave out --index")
    require(0 <= arguments.port < 1 << 16, f"--port={arguments.port}: it must be from 1 to 65535, or 0 for a free port")
    try:
        from endx_jax.serving.app import make_app
        from endx_jax.serving.server import bind, run_server
    except ModuleNotFoundError as missing:
        raise EndxError(f"a server needs the package {missing.name}: {install('serve')}") from None
    from endx_jax.parallel.console import say

    limits = Limits(**{field.name: getattr(arguments, field.name) for field in dataclasses.fields(Limits)})
    token = _token(arguments.token_file)
    loopback = _is_loopback(arguments.host)
    if not (loopback or token or arguments.allow_anonymous):
        raise EndxError(
            f"--host={arguments.host} lets everyone who can connect read and change the index: set --token-file=FILE "
            "or --allow-anonymous"
        )
    anyone = token is not None or arguments.allow_anonymous
    settings = ServingSettings(limits, token, loopback_only=loopback and not anyone)
    with bind(arguments.host, arguments.port) as bound:
        host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
        service = _service(arguments)
        ready = f"ready: open http://{host}:{bound.getsockname()[1]} (Ctrl-C stops the server)"
        run_server(make_app(service, settings, when_ready=lambda: say(ready)), bound, limits)
    say("stopped")
    sys.stderr.flush()
    os._exit(0)  # do not wait for the compute thread, which may be compiling, or reading from a disconnected disk


def _service(arguments: argparse.Namespace) -> "Service":
    """Loads the model and the index, which is made from the corpus if there is one, and logs them."""
    from endx_jax.experiment.workdir import run_index
    from endx_jax.index.index_model import open_index
    from endx_jax.parallel.console import say
    from endx_jax.parallel.environment import keep_programs
    from endx_jax.serving.service import Service

    keep_programs()
    source = arguments.model or arguments.workdir
    pairs = None
    if arguments.rerank:
        from endx_jax.experiment.saved_model import load_pair_scorer  # with all that trains

        pairs = load_pair_scorer(arguments.rerank)
    if arguments.corpus:
        from endx_jax.index.corpus_encoding import encode_corpus

        arguments.index = encode_corpus(source, arguments.corpus, **corpus_options(arguments))
    path = arguments.index or run_index(arguments.workdir)
    index = open_index(path, source, engine=arguments.engine)
    model = index.encoder.model
    if arguments.index and url_of(arguments.index) and hasattr(signal, "SIGHUP"):
        _follow(index)
    say(index.describe(index.default_mode))
    say(f"encoded by {model.name}; warming up")
    return Service(model, index, arguments.max_text, pairs)


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


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="endx serve", description=__doc__.partition(": ")[2])
    parser.add_argument("--workdir", type=epath.Path, help="workdir of a run with a model and an index")
    parser.add_argument("--index", type=epath.Path, help="index, as written by endx encode [index.sqlite in WORKDIR]")
    parser.add_argument("--corpus", help="folder of documents, CSV, or another corpus of endx encode, to serve")
    add_corpus_flags(parser)
    add_product_flag(parser)
    add_engine_flag(parser)
    parser.add_argument(
        "--model",
        help="folder or name of the model that encoded the index [the run's, or the one that the index names]",
    )
    add_rerank_flag(parser, "for /v1/rerank")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on [127.0.0.1: this machine only]")
    parser.add_argument("--port", type=int, default=8000, help="port; 0 chooses a free one [8000]")
    parser.add_argument(
        "--token-file",
        type=pathlib.Path,
        help=f"file with the token that clients must send [{TOKEN} in the environment; none]",
    )
    parser.add_argument("--allow-anonymous", action="store_true", help="serve on another host without a token")
    for field in dataclasses.fields(Limits):
        option = f"--{field.name.replace('_', '-')}"
        kind = type(field.default)
        parser.add_argument(
            option, type=kind, default=field.default, help=f"{field.metadata['doc']} [{field.default:,}]"
        )
    return parser
