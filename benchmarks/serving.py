"""Latency and throughput over HTTP, compared with FastAPI: `python benchmarks/serving.py --data=FOLDER`.

Compares `endx serve` with peer_server.py (FastAPI with sentence-transformers): the same MiniLM in float32, the same
embeddings of 10,000 sentences of SQuAD, and the same questions, from 1, 8 and 32 clients. Each client sends its next
request once the last one is answered. Both servers encode the questions that wait in one batch, run all the time, get
load in alternation, and share the machine's cores with the clients. The scores of the ten best must agree to 1e-5.

`--soak=600` then runs 32 clients against `endx serve` for ten minutes and prints failures and resident memory for each
minute. `--slow=8` adds eight refused clients that send a byte every five seconds, and eight that send requests but do
not read; `longest s` is the longest lifetime of their connections.
"""

import argparse
import contextlib
import http.client
import json
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping

import common
import numpy as np
from load import Load, put_load_on

import endx_jax
from endx_jax.data import reqa
from endx_jax.data.formats import squad
from endx_jax.data.sets.documents import Document
from endx_jax.index.index import write_index
from endx_jax.pretrained.locate import locate

HERE = pathlib.Path(__file__).parent
PATIENCE = 300  # maximum seconds until a server is ready
TOLERANCE = 1e-5
SAME = 50  # number of questions whose answers are compared


def questions(options: argparse.Namespace) -> list[bytes]:
    """Draws questions of SQuAD's dev file; returns the bodies of their requests."""
    asked = reqa.from_squad(squad.files_of(options.data)[1], "sentences").questions
    random = np.random.default_rng(options.seed)
    chosen = random.permutation(len(asked))[: options.questions]
    return [json.dumps({"query": asked[n], "k": 10, "mode": "dense"}).encode() for n in chosen]


def make_index(options: argparse.Namespace, path: pathlib.Path) -> None:
    """Writes an index of the first sentences of SQuAD's dev file."""
    records = reqa.from_squad(squad.files_of(options.data)[1], "sentences")
    texts, ids = (column[: options.documents] for column in (records.candidates, records.candidate_ids))
    model = endx_jax.load(options.model)
    documents = [Document(id, text) for id, text in zip(ids, texts, strict=True)]
    about = {"name": model.name, "identity": model.identity}
    write_index(path, model.encode_document(texts), documents, metric="cosine", model=about)


class Server:
    """Server in a separate process, with other variables of its environment if they are given.

    Attributes:
      port: its port, a free one of this machine.
    """

    def __init__(self, *command: str, environment: Mapping[str, str] | None = None):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        whole = [sys.executable, *command, f"--port={self.port}"]
        self._started = time.perf_counter()
        self._process = subprocess.Popen(whole, stdout=subprocess.DEVNULL, env=environment)

    def wait(self) -> float:
        """Waits until the server is ready; returns the seconds since its process began."""
        while time.perf_counter() - self._started < PATIENCE:
            if self._process.poll() is not None:
                raise SystemExit(f"a server ended with status {self._process.returncode} before it was ready")
            with contextlib.suppress(OSError), contextlib.closing(self._connection()) as connection:
                connection.request("GET", "/readyz")
                if connection.getresponse().status == 200:
                    return time.perf_counter() - self._started
            time.sleep(0.02)
        raise SystemExit(f"a server was not ready after {PATIENCE} seconds")

    def search(self, body: bytes) -> list[dict]:
        """Returns the results of one request."""
        with contextlib.closing(self._connection()) as connection:
            connection.request("POST", "/search", body, {"Content-Type": "application/json"})
            return json.loads(connection.getresponse().read())["results"]

    def resident(self) -> float:
        """Returns the resident memory in MB."""
        return common.memory(self._process.pid)["VmRSS"]

    def stop(self) -> None:
        """Stops the server."""
        self._process.terminate()
        self._process.wait(30)

    def _connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)


@contextlib.contextmanager
def running(options: argparse.Namespace, index: pathlib.Path) -> Iterator[dict[str, Server]]:
    """Context with all servers by name, once they are ready."""
    ours = ["-m", "endx_jax", "serve", f"--model={options.model}", f"--index={index}"]
    peer = [str(HERE / "peer_server.py"), f"--model={locate(options.model)}", f"--index={index}"]
    commands = {"endx serve": ours} | ({"peer": peer} if options.peer else {})
    servers: dict[str, Server] = {}
    try:
        for name, command in commands.items():
            servers[name] = Server(*command)
            print(f"{name} is ready after {servers[name].wait():.1f} s", flush=True)
        yield servers
    finally:
        for server in servers.values():
            server.stop()


def check_same_work(servers: dict[str, Server], bodies: list[bytes]) -> None:
    """Ends the script if the scores of a peer differ from those of `endx serve`."""
    for body in bodies:
        found = {name: server.search(body) for name, server in servers.items()}
        ours = found.pop("endx serve")
        for name, theirs in found.items():
            scores = [[result["score"] for result in results] for results in (ours, theirs)]
            if not np.allclose(*scores, rtol=0, atol=TOLERANCE):
                raise SystemExit(f"{name} finds scores {scores[1]} and endx serve {scores[0]}: {body.decode()}")


def measure(servers: dict[str, Server], bodies: list[bytes], options: argparse.Namespace) -> list[dict]:
    """Returns a row for each number of clients and server."""
    rows = []
    for clients in options.clients:
        loads: dict[str, list[Load]] = {name: [] for name in servers}
        for round_ in range(1 + options.rounds):
            for name, server in servers.items():
                seconds = options.seconds if round_ else options.warmup
                loads[name].append(put_load_on(server.port, "/search", bodies, clients, seconds))
        ours, *peers = [_row(name, clients, parts[1:]) for name, parts in loads.items()]
        for peer in peers:
            ours |= {f"{what} / peer": ours[what] / peer[what] for what in ("p50 ms", "requests/s")}
        rows += [ours, *peers]
    return rows


def _row(name: str, clients: int, parts: list[Load]) -> dict:
    seconds = [second for part in parts for second in part.seconds]
    whole = Load(seconds, [failure for part in parts for failure in part.failures], sum(part.span for part in parts))
    return {
        "clients": clients,
        "server": name,
        "p50 ms": whole.percentile(50),
        "p99 ms": whole.percentile(99),
        "requests/s": whole.rate,
        "failures": len(whole.failures),
    }


def soak(server: Server, bodies: list[bytes], options: argparse.Namespace) -> list[dict]:
    """Returns a row for each minute: requests, failures, and resident memory at its end."""
    rows, clients = [], max(options.clients)
    for minute in range(1, round(options.soak / 60) + 1):
        load = put_load_on(server.port, "/search", bodies, clients, 60, options.slow)
        rows.append({"minute": minute, **_row("endx serve", clients, [load]), "resident MB": server.resident()})
        if options.slow:
            rows[-1] |= {"slow connections": len(load.held), "longest s": max(load.held, default=0.0)}
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=pathlib.Path, help="folder of SQuAD 1.1")
    parser.add_argument("--model", default="all-MiniLM-L6-v2")
    parser.add_argument("--index", type=pathlib.Path, help="existing float32 index [a new one]")
    parser.add_argument("--documents", type=int, default=10_000, help="documents of a new index")
    parser.add_argument("--questions", type=int, default=2000, help="number of distinct questions")
    parser.add_argument("--clients", nargs="*", type=int, default=[1, 8, 32])
    parser.add_argument("--seconds", type=float, default=10, help="duration of a round")
    parser.add_argument("--warmup", type=float, default=2, help="duration of an untimed first round")
    parser.add_argument("--rounds", type=int, default=2, help="timed rounds for each number of clients")
    parser.add_argument("--no_peer", dest="peer", action="store_false", help="do not run the peer")
    parser.add_argument("--soak", type=float, default=0, help="duration of the soak in seconds, whole minutes; 0: none")
    parser.add_argument("--slow", type=int, default=0, help="slow clients of each kind during the soak")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", help="file for the results")
    options = parser.parse_args()
    bodies = questions(options)
    with tempfile.TemporaryDirectory() as folder:
        index = options.index or pathlib.Path(folder) / "index.sqlite"
        if not options.index:
            make_index(options, index)
        with running(options, index) as servers:
            check_same_work(servers, bodies[:SAME])
            rows = measure(servers, bodies, options)
            print(common.table(rows), flush=True)
            soaked = soak(servers["endx serve"], bodies, options)
    if soaked:
        print(common.table(soaked))
    packages = ("fastapi", "hypercorn", *(("torch", "sentence-transformers", "uvicorn") if options.peer else ()))
    common.write(options.json, vars(options), rows, soak=soaked, versions=common.versions(*packages))


if __name__ == "__main__":
    main()
