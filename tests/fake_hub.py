"""A Hugging Face hub of one model on this machine: the few answers that a download asks for."""

import hashlib
import http.server
import json
import pathlib

from loopback import LoopbackServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub(LoopbackServer):
    """Serves the files of a folder as the model `name`; any other name is not found.

    Attributes:
      endpoint: what to give as `HF_ENDPOINT`.
      fetched: paths of the files that were downloaded.
    """

    def __init__(self, name: str, folder: pathlib.Path):
        self.fetched: list[str] = []
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *args):
                pass

            def do_HEAD(self):
                self.answer(body=False)

            def do_GET(self):
                self.answer(body=True)

            def answer(self, body: bool):
                path = self.path.partition("?")[0]
                if path in (f"/api/models/{name}", f"/api/models/{name}/revision/main"):
                    self.send_json({"id": name, "sha": COMMIT, "siblings": [], "tags": []})
                elif path == f"/api/models/{name}/tree/{COMMIT}":
                    self.send_json([describe(folder, file) for file in sorted(folder.rglob("*")) if file.is_file()])
                elif path.startswith(f"/{name}/resolve/{COMMIT}/"):
                    file = folder / path.partition(f"{COMMIT}/")[2]
                    if body:
                        hub.fetched.append(file.relative_to(folder).as_posix())
                    headers = {"ETag": f'"{blob_id(file)}"', "X-Repo-Commit": COMMIT}
                    self.send(file.read_bytes(), "application/octet-stream", headers, body)
                else:
                    self.send_response(404)
                    self.send_header("X-Error-Code", "RepoNotFound")
                    self.send_header("Content-Length", "0")
                    self.end_headers()

            def send_json(self, contents):
                self.send(json.dumps(contents).encode(), "application/json", {}, body=True)

            def send(self, data: bytes, kind: str, headers: dict, body: bool):
                self.send_response(200)
                for key, value in {"Content-Type": kind, "Content-Length": str(len(data)), **headers}.items():
                    self.send_header(key, value)
                self.end_headers()
                if body:
                    self.wfile.write(data)

        super().__init__(Handler)


def describe(folder: pathlib.Path, file: pathlib.Path) -> dict:
    """A file as the hub lists it."""
    path = file.relative_to(folder).as_posix()
    return {"type": "file", "path": path, "size": file.stat().st_size, "oid": blob_id(file)}


def blob_id(file: pathlib.Path) -> str:
    """Git's name for the contents of a file."""
    data = file.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
