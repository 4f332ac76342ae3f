"""Finding a pretrained model: a folder, a package that carries it, or the hub, which may be away."""

import os
import pathlib
import subprocess
import sys
import time

import chex
import huggingface_hub
import pytest
from fake_hub import COMMIT, FakeHub
from huggingface_hub.errors import HFValidationError, HTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled
from refusals import check_refusal
from tiny_bert import write_tiny_bert
from tiny_modules import write_routes

from endx_jax.pretrained import load_sides, locate


@pytest.fixture
def no_package(monkeypatch):
    """As if the package that carries the published model were not installed."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


def set_hub(monkeypatch, answer, snapshot) -> None:
    """Replaces the hub's two functions; an exception is raised and anything else returned."""

    def acting(outcome):
        def act(*args, **keywords):
            if isinstance(outcome, Exception):
                raise outcome
            return outcome(*args, **keywords) if callable(outcome) else outcome

        return act

    monkeypatch.setattr(huggingface_hub, "model_info", acting(answer))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", acting(snapshot))


def test_a_folder_is_itself(tiny_bert, monkeypatch):
    assert locate(str(tiny_bert)) == tiny_bert
    monkeypatch.setenv("HOME", str(tiny_bert.parent))
    assert locate(f"~/{tiny_bert.name}") == tiny_bert


def test_a_package_carries_the_published_model(minilm):
    folder = locate(minilm)
    assert (folder / "model.safetensors").is_file()
    assert locate(f"sentence-transformers/{minilm}") == folder


def test_the_hub_is_asked_for_what_we_read_only(tmp_path, monkeypatch):
    asked = {}

    def snapshot(name, **keywords):
        asked.update(keywords, name=name)
        return str(tmp_path)

    set_hub(monkeypatch, object(), snapshot)
    assert locate("some/model") == tmp_path
    patterns = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
    assert (asked["name"], asked["allow_patterns"], asked["local_files_only"]) == ("some/model", patterns, False)


def test_a_published_name_goes_by_its_full_name_on_the_hub(tmp_path, monkeypatch, no_package):
    names = []
    set_hub(monkeypatch, lambda name, timeout: names.append(name), LocalEntryNotFoundError("away"))
    check_refusal(lambda: locate("all-MiniLM-L6-v2"), "'sentence-transformers/all-MiniLM-L6-v2'", "`pip", "--no-deps")
    assert names == ["sentence-transformers/all-MiniLM-L6-v2"]


@pytest.mark.parametrize("kind", [HTTPError, OfflineModeIsEnabled, TimeoutError, ValueError])  # of JSON, the last
def test_a_hub_that_is_away_leaves_the_cache(kind, tmp_path, monkeypatch):
    failure = kind("of the connection")

    def cached(name, local_files_only, **keywords):
        assert local_files_only
        return str(tmp_path)

    set_hub(monkeypatch, failure, cached)
    assert locate("some/model") == tmp_path
    set_hub(monkeypatch, failure, LocalEntryNotFoundError("not cached\nand more"))
    check_refusal(lambda: locate("some/model"), "'some/model'", f"{kind.__name__}")


def test_a_download_that_breaks_off_says_so(monkeypatch):
    set_hub(monkeypatch, object(), HTTPError("peer closed connection"))
    check_refusal(lambda: locate("some/model"), "cannot be downloaded from the hub")


@pytest.mark.parametrize("name", ["", "./no such folder", "/no/such/folder", "one/two/three", "not a name!"])
def test_unknown_names_are_refused_at_once(name):
    start = time.perf_counter()
    check_refusal(lambda: locate(name), f"{HFValidationError.__name__}", "is not a local folder")
    assert time.perf_counter() - start < 8  # less than `hub.PATIENCE`


def test_other_weights_under_a_published_name_or_none_are_refused(tmp_path, monkeypatch, no_package):
    set_hub(monkeypatch, object(), str(tmp_path))
    check_refusal(lambda: locate("all-MiniLM-L6-v2"), "model.safetensors", "delete the folder")
    write_tiny_bert(tmp_path)
    set_hub(monkeypatch, object(), str(tmp_path))
    check_refusal(lambda: locate("all-MiniLM-L6-v2"), "model.safetensors", "sha256", "53aa51172d14")
    assert locate("some/model") == tmp_path  # nothing is known of others


def located(name: str, endpoint: str, home) -> subprocess.CompletedProcess:
    """`locate` in a process of its own, as the hub's address is read when its client is imported."""
    program = f"from endx_jax.pretrained import locate; print(locate({name!r}))"
    environment = os.environ | {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0"}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=600)


@pytest.mark.slow
def test_a_model_is_downloaded_once_and_found_again_without_the_hub(tmp_path):
    published = write_routes(tmp_path / "published", ["Transformer", "Pooling"], ["Transformer-b", "Pooling-cls"])
    (published / "pytorch_model.bin").write_bytes(b"the same weights again")
    with FakeHub("some/model", published) as hub:
        first = located("some/model", hub.address, tmp_path / "home")
        unknown = located("some/other", hub.address, tmp_path / "home")
    again = located("some/model", hub.address, tmp_path / "home")
    folder = first.stdout.strip()
    assert folder.endswith(COMMIT), first.stderr
    for side, source in load_sides(folder).items():
        chex.assert_trees_all_equal(source.params(), load_sides(str(published))[side].params())
    files, found = (
        {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
        for root in (published, pathlib.Path(folder))
    )
    assert found == files - {"pytorch_model.bin"}
    assert len(hub.fetched) == len({*hub.fetched})
    assert again.stdout.strip() == folder, again.stderr
    assert "RepositoryNotFoundError" in unknown.stderr.splitlines()[-1]
