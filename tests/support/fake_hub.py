"""A Hugging Face hub of one model or data set on this machine: the few answers that a download asks for."""

import hashlib
import json
import pathlib

import huggingface_hub
import huggingface_hub.constants
from loopback import Handler, LoopbackServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub(LoopbackServer):
    """Serves the files of a folder as the model or data set `name`; any other name is not found.

    `fetched` has the paths of the files that were downloaded, and `revisions` those that were asked for.
    """

    def __init__(self, name: str, folder: pathlib.Path, *, dataset: bool = False):
        self.fetched: list[str] = []
        self.revisions: set[str] = set()
        hub, api, files = self, f"/api/{'datasets' if dataset else 'models'}/{name}", "/datasets" * dataset + f"/{name}"

        class Files(Handler):
            def do_GET(self):
                path = self.path.partition("?")[0]
                if path == api or path.startswith(f"{api}/revision/"):
                    hub.revisions |= {path.rpartition("/")[2]} - {name.rpartition("/")[2]}
                    self.reply_json({"id": name, "sha": COMMIT, "siblings": [], "tags": []})
                elif path == f"{api}/tree/{COMMIT}":
                    self.reply_json([describe(folder, file) for file in sorted(folder.rglob("*")) if file.is_file()])
                elif path.startswith(f"{files}/resolve/{COMMIT}/"):
                    file = folder / path.partition(f"{COMMIT}/")[2]
                    if self.command == "GET":
                        hub.fetched.append(file.relative_to(folder).as_posix())
                    kind = "application/octet-stream"
                    self.reply(file.read_bytes(), Content_Type=kind, ETag=f'"{blob_id(file)}"', X_Repo_Commit=COMMIT)
                else:
                    self.reply(b"", 404, X_Error_Code="RepoNotFound")

            do_HEAD = do_GET

            def reply_json(self, contents):
                self.reply(json.dumps(contents).encode(), Content_Type="application/json")

        super().__init__(Files)


def use_hub(monkeypatch, address: str = "", **constants) -> None:
    """Sets the hub's address, and constants of its client, set at its import; none: offline."""
    template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    constants |= {"HF_HUB_OFFLINE": not address, "ENDPOINT": address, "HUGGINGFACE_CO_URL_TEMPLATE": template}
    for name, value in constants.items():
        monkeypatch.setattr(huggingface_hub.constants, name, value)
    monkeypatch.setattr(huggingface_hub.model_info.__self__, "endpoint", address)


def describe(folder: pathlib.Path, file: pathlib.Path) -> dict:
    path = file.relative_to(folder).as_posix()
    return {"type": "file", "path": path, "size": file.stat().st_size, "oid": blob_id(file)}


def blob_id(file: pathlib.Path) -> str:
    """Git's name for the contents of a file."""
    data = file.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
