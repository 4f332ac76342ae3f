"""Copies, uploads and errors of buckets, against servers on the loopback."""

import concurrent.futures
import json
import os
import pathlib
import re
import signal
import time
import types

import pytest
from fake_buckets import BUCKET, clients_of, gcs_server, s3_server
from helpers import raising
from loopback import LoopbackServer, always
from refusals import check_refusal

from endx_jax import buckets, uploads
from endx_jax.errors import EndxError, InUse, RunInterrupted

SERVERS = {"gs": gcs_server, "s3": s3_server}


@pytest.fixture(scope="module", params=SERVERS)
def scheme(request):
    with SERVERS[request.param]() as variables, clients_of(variables):
        yield request.param


@pytest.fixture
def url(scheme, request, tmp_path, variables) -> str:
    variables(XDG_CACHE_HOME=str(tmp_path / "cache"))
    return f"{scheme}://{BUCKET}/ein Ördner/{request.node.originalname}"


def contents_of(folder) -> dict[str, str]:
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {file.relative_to(folder).as_posix(): file.read_text() for file in files}


def test_a_copy_is_made_once_and_follows_what_changes(url):
    for name in ("a.txt", "b/c d.txt", "skipped/e"):
        buckets.write_bytes(f"{url}/{name}", name.encode())
    assert contents_of(buckets.local_copy(url, skip=("skip*",))) == {"a.txt": "a.txt", "b/c d.txt": "b/c d.txt"}
    copy = buckets.local_copy(f"{url}/", skip=("skip*",))
    before = (copy / "b" / "c d.txt").stat().st_mtime_ns, (copy / "a.txt").stat().st_mtime_ns
    assert buckets.local_copy(url, skip=("skip*",)) == copy
    assert ((copy / "b" / "c d.txt").stat().st_mtime_ns, (copy / "a.txt").stat().st_mtime_ns) == before
    buckets.write_bytes(f"{url}/a.txt", b"A.txt")
    assert contents_of(buckets.local_copy(url)) == {
        "a.txt": "A.txt",
        "b/c d.txt": "b/c d.txt",
        "skipped/e": "skipped/e",
    }
    assert (copy / "b" / "c d.txt").stat().st_mtime_ns == before[0]
    assert buckets.local_copy(f"{url}/b/c d.txt").read_text() == "b/c d.txt"
    assert buckets.read_bytes(f"{url}/a.txt") == b"A.txt"


def test_a_copy_follows_what_is_deleted(url):
    for name in ("a", "d/b", "d/c", "skipped/e"):
        buckets.write_bytes(f"{url}/{name}", b"old")
    (buckets.local_copy(url) / "a-wal").write_text("of SQLite")
    for name in ("a", "d/b", "d/c", "skipped/e"):
        buckets.remove(f"{url}/{name}")
    for name in ("a/f", "d"):  # folders and objects take each other's names
        buckets.write_bytes(f"{url}/{name}", b"new")
    kept = {"a/f": "new", "d": "new", "a-wal": "of SQLite"}
    assert contents_of(buckets.local_copy(url, skip=("skip*",))) == kept | {"skipped/e": "old"}
    assert contents_of(buckets.local_copy(url)) == kept
    buckets.remove(f"{url}/a/f")
    assert contents_of(buckets.local_copy(url)) == {"d": "new", "a-wal": "of SQLite"}


def test_a_log_of_an_earlier_copy_is_not_applied_to_the_next_one(url):
    for version in ("old", "new"):
        buckets.write_bytes(f"{url}/a", version.encode())
        copy = buckets.local_copy(url)
        assert contents_of(copy) == {"a": version}
        for log in ("a-wal", "a-shm"):
            (copy / log).write_text(f"of SQLite, {version}")


def test_a_folder_and_a_file_in_it_are_not_copied_at_once(url, monkeypatch):
    running, together, fetch = [], [], buckets.fetch

    def slowly(*arguments):
        running.append(arguments)
        time.sleep(0.2)
        together.append(len(running))
        fetch(*arguments)
        running.pop()

    buckets.write_bytes(f"{url}/a", b"a")
    monkeypatch.setattr(buckets, "fetch", slowly)
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        assert len([*threads.map(buckets.local_copy, (url, f"{url}/a"))]) == 2
    assert together == [1]


def test_an_open_file_stays_as_it_is_when_a_later_version_is_copied(url):
    buckets.write_bytes(url, b"old")
    old = buckets.local_copy(url, by_version=True)
    assert buckets.local_copy(url, by_version=True) == old
    with open(old) as stream:
        buckets.write_bytes(url, b"new")
        new = buckets.local_copy(url, by_version=True)
        assert stream.read() == "old"
    assert (new.name, new.read_text(), old.exists()) == (old.name, "new", False)
    assert contents_of(new.parent.parent) == {f"{new.parent.name}/{new.name}": "new"}


def test_what_changes_while_it_is_copied_is_refused(url, monkeypatch):
    buckets.write_bytes(f"{url}/a", b"0")
    writes, fetch = iter(range(1, 10)), buckets.fetch

    def changing(url, objects, folder):
        fetch(url, objects, folder)
        buckets.write_bytes(f"{url}/a", str(next(writes)).encode())

    monkeypatch.setattr(buckets, "fetch", changing)
    with pytest.raises(InUse, match="is changing: read it once it is written"):
        buckets.local_copy(url)


def test_a_copy_that_was_interrupted_is_made_again(url, monkeypatch):
    fetch = buckets.fetch

    def interrupted(*arguments):
        fetch(*arguments)
        raise ZeroDivisionError

    buckets.write_bytes(url, b"old")
    buckets.local_copy(url)
    buckets.write_bytes(url, b"new")
    with monkeypatch.context() as patch:
        patch.setattr(buckets, "fetch", interrupted)
        with pytest.raises(ZeroDivisionError):
            buckets.local_copy(url)
    buckets.write_bytes(url, b"old")
    assert buckets.local_copy(url).read_text() == "old"


def test_uploads_are_in_the_order_of_writing_and_removals_come_first(url, tmp_path, monkeypatch):
    for name in ("old", "kept"):
        buckets.write_bytes(f"{url}/{name}", b"0")
    mirror = uploads.Mirror(url, tmp_path / "m")
    order = []
    files = buckets.filesystem(url)

    def put(local, remote):
        order.append(remote)
        files.pipe_file(remote, pathlib.Path(local).read_bytes())

    monkeypatch.setattr(files, "put_file", put)
    mirror.upload()
    assert order == []
    (tmp_path / "m" / "old").unlink()
    (tmp_path / "m" / "z").write_text("first")
    (tmp_path / "m" / "a").write_text("second")
    (tmp_path / "m" / ".a.part").write_text("unfinished")
    mirror.upload("a*")
    mirror.upload()
    mirror.upload()
    assert order == [f"{url}/a", f"{url}/z"]
    assert {*buckets.listing(url)} == {"a", "z", "kept"}
    (tmp_path / "m" / "z").write_text("changed")
    (tmp_path / "m" / "a").write_text("changed")
    mirror.upload()
    assert order[2:] == [f"{url}/z", f"{url}/a"]


def test_an_output_is_uploaded_when_it_is_whole(url):

    def fail():
        with uploads.uploading(f"{url}/out") as folder:
            folder.mkdir()
            (folder / "a").write_text("a")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert buckets.listing(url) == {}
    with uploads.uploading(f"{url}/one.txt") as file:
        file.write_text("whole")
    assert buckets.read_bytes(f"{url}/one.txt") == b"whole"
    assert {*buckets.listing(url)} == {"one.txt"}

    @uploads.uploads("file")
    def write(file):
        file.write_text(f"{file.read_text()} again")
        return file

    assert write(f"{url}/one.txt") == f"{url}/one.txt"
    assert buckets.read_bytes(f"{url}/one.txt") == b"whole again"
    buckets.remove(url)
    buckets.remove(url)
    assert buckets.listing(url) == {}


@pytest.mark.parametrize("failure", [KeyboardInterrupt, RunInterrupted])
def test_an_output_that_is_resumed_is_uploaded_after_an_interrupt(url, failure):
    def fail():
        with uploads.uploading(f"{url}/part", resumable=True) as file:
            file.write_text("a part")
            if failure is RunInterrupted:
                os.kill(os.getpid(), signal.SIGTERM)
            raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(failure):
        fail()
    assert buckets.read_bytes(f"{url}/part") == b"a part"
    assert signal.getsignal(signal.SIGTERM) is before


def test_what_does_not_exist_is_one_line(url, scheme):
    check_refusal(lambda: buckets.local_copy(url), url, "there is no such object or")
    assert buckets.read_bytes(url) is None
    check_refusal(lambda: buckets.write_bytes(f"{scheme}://no-such-bucket/a", b""), f"{scheme}://no-such-bucket/a")


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("gs:/x", ["gs:/x", "write gs://... or ./gs:/x"]),
        ("s3:/x/y", ["s3:/x/y", "write s3://"]),
        ("gs://", ["''", "no name of a bucket"]),
        ("gs://ab/x", ["'ab'", "no name of a bucket"]),
        ("gs://Bücket/x", ["no name of a bucket"]),
        ("gs://bucket/a//b", ["may not contain //"]),
        ("gs://bucket/a/../b", ["/./, /../"]),
        ("gs://bucket/a*", ["may not contain"]),
        ("gs://bucket/a\nb", ["may not contain"]),
        ("x" * 300, ["xxx can't be read"]),
    ],
)
def test_a_wrong_path_is_one_line(path, named):
    check_refusal(lambda: buckets.local_copy(path), *named)


@pytest.mark.parametrize(
    ("setting", "workdir", "message"),
    [
        ("", "gs:/x", "gs:/x is a local path that looks like a bucket"),
        ("", "s3://bucket/x", "Orbax writes checkpoints to gs:// and to folders only"),
        ("--config.data.tokens=gs://bucket/tokens", "", "data.tokens=gs://bucket/tokens is in a bucket: name a local"),
    ],
)
def test_training_refuses_places_that_it_cannot_use(endx, pairs_csv, tiny_bert, tmp_path, setting, workdir, message):
    data = [f"--config.data.path={pairs_csv}", f"--config.data.test_path={pairs_csv}"]
    arguments = [f"--workdir={workdir or tmp_path / 'run'}", *data, f"--config.model.pretrained={tiny_bert}"]
    arguments += ["--config.data.answer_length=24", "--config.data.question_length=24"]
    assert message in endx("train", "--config=minilm", *arguments, *filter(None, [setting]), status=2).err


def test_paths_and_markers_that_are_no_objects_are_told_apart(monkeypatch):
    assert buckets.url_of("gs://bucket/ein Ördner/x/") == "gs://bucket/ein Ördner/x"
    assert [buckets.url_of(path) for path in ("runs/x", "./gs:/x", "/gs", "C:/x", "")] == [None] * 5
    # As web consoles make them.
    found = {f"bucket/x/{name}": {"size": 3, "generation": 1} for name in ("", "folder/", "folder/file")}
    files = types.SimpleNamespace(invalidate_cache=lambda: None, find=lambda url, detail: found)
    monkeypatch.setattr(buckets, "filesystem", lambda url: files)
    assert [*buckets.listing("gs://bucket/x")] == ["folder/file"]


def test_of_two_processes_that_try_to_write_one_may_find_its_object_removed(monkeypatch):
    files = types.SimpleNamespace(pipe_file=lambda *_: None, rm_file=raising(FileNotFoundError("404")))
    monkeypatch.setattr(uploads, "filesystem", lambda url: files)
    uploads.try_writing("gs://bucket/x")


def test_without_the_extra_one_line_names_it(monkeypatch):
    monkeypatch.setattr("fsspec.filesystem", raising(ImportError("Please install gcsfs")))
    check_refusal(lambda: buckets.local_copy("gs://bucket/x"), "gs://bucket/x", "pip install -e")


def answering(status: int):
    return always(json.dumps({"error": {"code": status, "message": "no"}}).encode(), status)


@pytest.mark.parametrize("status", [401, 403])
def test_denied_access_is_one_line(status):
    pytest.importorskip("gcsfs", reason="gcsfs is not installed")
    with LoopbackServer(answering(status)) as server, clients_of(anonymous(server.address)):
        check_refusal(lambda: buckets.write_bytes("gs://bucket/x", b""), "gs://bucket/x", "access is denied")
        check_refusal(lambda: buckets.read_bytes("gs://bucket/x"), "gs://bucket/x", "access is denied")


@pytest.mark.parametrize(
    ("status", "kind", "message"),
    [
        (401, EndxError, "gs://bucket/x: access is denied .*"),
        (403, EndxError, "gs://bucket/x: access is denied .*gs://bucket/a/.zarray.*; check the permissions.*"),
        (503, RunInterrupted, "gs://bucket/x can't be reached .*gs://bucket/a/.zarray.*; run the same command again"),
    ],
)
def test_an_error_of_tensorstore_is_one_line(status, kind, message, variables):
    import tensorstore

    store = {"driver": "gcs", "bucket": "bucket", "path": "a/"}
    with LoopbackServer(answering(status)) as server:
        variables(TENSORSTORE_GCS_HTTP_URL=server.address)
        context = tensorstore.Context({"gcs_request_retries": {"max_retries": 1}})
        with pytest.raises(kind) as raised, buckets.bucket_errors("gs://bucket/x"):
            tensorstore.open({"driver": "zarr", "kvstore": store}, context=context).result(timeout=30)
    assert re.fullmatch(message, str(raised.value))


def test_an_unreachable_bucket_asks_to_run_again(monkeypatch):
    retry = pytest.importorskip("gcsfs.retry", reason="gcsfs is not installed")

    async def at_once(seconds):
        pass

    monkeypatch.setattr(retry, "asyncio", types.SimpleNamespace(sleep=at_once))
    with (
        LoopbackServer(answering(503)) as server,
        clients_of(anonymous(server.address)),
        pytest.raises(RunInterrupted, match="gs://bucket/x can't be reached .*503.*; run the same command again"),
    ):
        buckets.read_bytes("gs://bucket/x")


def anonymous(address):
    return {"STORAGE_EMULATOR_HOST": address, "FSSPEC_GCS_TOKEN": "anon", "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}
