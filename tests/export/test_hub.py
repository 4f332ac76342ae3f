"""Upload to a hub, which here is a server on this machine."""

import base64
import json

import pytest
from fake_hub import COMMIT, use_hub
from loopback import NO_API, Handler, LoopbackServer, always

import endx_jax
from endx_jax.cli.entry import run_verb

NO_REPOSITORY = [b'{"id": "x", "siblings": 5}', b'{"id": "x", "siblings": [5]}', b'{"id": "x", "siblings": [{}]}']


class Hub(LoopbackServer):
    """Accepts uploads; large files, the safetensors here, are sent to an address that it gives.

    Attributes:
      repositories: contents of the files of each repository; whether it is private under `private`.
      refusal: status of the answer to every upload; 0 to accept.
    """

    def __init__(self):
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.refusal, self.large = 0, {}
        hub = self

        class Uploads(Handler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                name, tree, _ = self.path.removeprefix("/api/models/").partition("/tree/main")
                found = hub.repositories.get(name)
                if found is None:
                    self.answer({}, 404, X_Error_Code="RepoNotFound")
                elif tree:
                    self.answer([{"type": "file", "path": path, "size": 1, "oid": "0"} for path in found])
                else:
                    self.answer({"id": "x", "sha": COMMIT, "siblings": [{"rfilename": name} for name in found]})

            def do_PUT(self):
                hub.large[self.path.rpartition("/")[2]] = self.body()
                self.answer({})

            def do_POST(self):
                body = self.body()
                if self.headers["Authorization"] != "Bearer secret":
                    return self.answer({"error": "Invalid token"}, 401)
                if hub.refusal:
                    return self.answer({"error": "Forbidden"}, hub.refusal)
                if self.path == "/api/repos/create":
                    asked = json.loads(body)
                    name = "/".join(filter(None, (asked.get("organization"), asked["name"])))
                    hub.repositories[name] = {}
                    # Earlier versions of huggingface_hub send `private`, later ones `visibility`.
                    hub.private[name] = asked.get("private", asked.get("visibility") == "private")
                    return self.answer({"url": f"{hub.address}/{name}"})
                if "/preupload/" in self.path:
                    paths = [file["path"] for file in json.loads(body)["files"]]
                    modes = {path: "lfs" if path.endswith(".safetensors") else "regular" for path in paths}
                    told = [{"path": path, "uploadMode": mode, "shouldIgnore": False} for path, mode in modes.items()]
                    return self.answer({"files": told})
                if self.path.endswith("/info/lfs/objects/batch"):
                    href = f"{hub.address}/large/"
                    asked = json.loads(body)["objects"]
                    objects = [one | {"actions": {"upload": {"href": href + one["oid"]}}} for one in asked]
                    return self.answer({"transfer": "basic", "objects": objects})
                if "/commit/" in self.path:
                    name = self.path.removeprefix("/api/models/").partition("/commit/")[0]
                    for line in body.splitlines():
                        hub.apply(name, json.loads(line))
                    url = f"{hub.address}/{name}/commit/{COMMIT}"
                    return self.answer({"commitUrl": url, "commitOid": COMMIT, "success": True})
                return self.answer({})

            def body(self) -> bytes:
                return self.rfile.read(int(self.headers["Content-Length"]))

            def answer(self, contents, status=200, **headers):
                self.reply(json.dumps(contents).encode(), status, **headers)

        super().__init__(Uploads)

    def apply(self, name: str, line: dict) -> None:
        """Applies a line of a commit to a repository."""
        value = line["value"]
        if line["key"] == "file":
            self.repositories[name][value["path"]] = base64.b64decode(value["content"])
        elif line["key"] == "lfsFile":
            self.repositories[name][value["path"]] = self.large[value["oid"]]
        elif line["key"] == "deletedFile":
            del self.repositories[name][value["path"]]


@pytest.fixture
def use(monkeypatch, variables):
    """Function that sets the hub's address, and the login."""
    variables(HF_TOKEN="secret")
    return lambda address: use_hub(monkeypatch, address, HF_HUB_DISABLE_XET=True)


@pytest.fixture
def hub(use):
    with Hub() as running:
        use(running.address)
        yield running


@pytest.fixture(scope="module")
def exported(bert_workdir, tmp_path_factory):
    output = tmp_path_factory.mktemp("exported") / "model"
    assert run_verb(["export", f"--workdir={bert_workdir}", f"--output={output}"]) == 0
    return output


@pytest.fixture
def refused(endx):
    """Runs an `endx push` that is refused; returns the line."""
    return lambda *arguments: endx("push", *arguments, status=2).err.removeprefix("endx push: ")


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # huggingface_hub's upload by httpx
def test_a_run_is_uploaded_as_its_export_and_updated(hub, bert_workdir, exported, tmp_path, endx):
    assert endx("push", bert_workdir, "me/cats").out.splitlines()[-1] == f"{bert_workdir} is at {hub.address}/me/cats"
    assert hub.private["me/cats"] is True
    files = hub.repositories["me/cats"]
    same = {path.relative_to(exported).as_posix() for path in exported.rglob("*") if path.is_file()}
    assert set(files) == same
    assert files["model.safetensors"] == (exported / "model.safetensors").read_bytes()
    assert 'SentenceTransformer("me/cats")' in files["README.md"].decode()
    for name, data in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    assert endx_jax.load(tmp_path).identity == endx_jax.load(exported).identity
    files["stale.bin"], files[".gitattributes"] = b"", b""
    endx("push", exported, "me/cats")
    assert set(files) == same | {".gitattributes"}
    endx("push", exported, "me/dogs", "--public")
    assert hub.private["me/dogs"] is False


def test_refusals_are_one_line(hub, exported, bert_workdir, tmp_path, variables, refused):
    assert "holds neither a run nor an export" in refused(tmp_path, "me/cats")
    assert "write OWNER/NAME" in refused(exported, "me/cats/more")
    assert "'cats' is not a name on the hub: write OWNER/NAME" in refused(exported, "cats")
    hub.repositories["me/taken"] = {".gitattributes": b"", "weights.bin": b""}
    assert refused(exported, "me/taken").startswith("me/taken on the hub holds files that are not an export")
    hub.refusal = 403
    assert "does not take you/cats (HfHubHTTPError: 403 " in refused(exported, "you/cats")
    variables(HF_TOKEN="other")
    assert "does not take me/cats (HfHubHTTPError: Client error '401 " in refused(exported, "me/cats")
    variables(HF_TOKEN=None)
    assert "there is no login for the hub: run `hf auth login`" in refused(exported, "me/cats")


@pytest.mark.parametrize("body", [*NO_API, *NO_REPOSITORY, None])
def test_a_hub_that_answers_something_else_or_not(exported, use, refused, body):
    with LoopbackServer(always(body or b"")) as hub:
        address = "http://127.0.0.1:9" if body is None else hub.address
        use(address)
        assert f"the hub at {address} does not take me/cats" in refused(exported, "me/cats")
