"""Data sets by their name on the hub, which here is a server on this machine."""

import pathlib

import pytest
from fake_hub import FakeHub, use_hub
from helpers import write_files
from loopback import NO_API, LoopbackServer, always
from refusals import check_refusal

from endx_jax.data.settings import DataSettings
from endx_jax.data.sources import read_splits
from endx_jax.hub import dataset_path, local_path
from endx_jax.pretrained import locate


def write_shards(folder: pathlib.Path) -> pathlib.Path:
    rows = {split: "".join(f"{split} {n},answer {n}\n" for n in range(8)) for split in ("train", "test")}
    files = {f"pairs/{split}-0.csv": f"question,answer\n{text}" for split, text in rows.items()}
    return write_files(folder, files | {"pairs/picture.png": b"not data"})


@pytest.fixture
def use(monkeypatch, tmp_path):
    """Function that sets the hub's address; without one, the hub is offline."""

    def set_address(address=""):
        use_hub(monkeypatch, address, HF_HUB_CACHE=str(tmp_path / "cache"))
        dataset_path.cache_clear()

    return set_address


def test_folders_and_patterns_of_a_data_set_of_the_hub_are_read(use, tmp_path):
    with FakeHub("some/pairs", write_shards(tmp_path / "hub"), dataset=True) as hub:
        use(hub.address)
        found = read_splits(DataSettings(path="hf://datasets/some/pairs/pairs/tr*.csv", test_fraction=0.0))
        assert found.train.questions[0].startswith("train")
        assert hub.fetched == ["pairs/train-0.csv"]
        path = "hf://datasets/some/pairs@v1/pairs"
        splits = read_splits(DataSettings(path=path, test_path=path, validation_fraction=0.0))
        assert [len(part.questions) for part in (splits.train, splits.test)] == [8, 8]
        assert (hub.fetched[1:], hub.revisions) == (["pairs/test-0.csv"], {"main", "v1"})
        check_refusal(lambda: local_path("hf://datasets/some/pairs/triplets"), "name another folder")


def test_a_data_set_of_the_hub_without_a_file_of_data_is_named(use, tmp_path):
    with FakeHub("some/code", write_files(tmp_path / "hub", {"script.py": "", "README.md": ""}), dataset=True) as hub:
        use(hub.address)
        check_refusal(lambda: local_path("hf://datasets/some/code"), "hf://datasets/some/code", ".csv", "name another")


def test_what_is_not_on_the_hub_is_one_line(use):
    use()
    check_refusal(lambda: local_path("hf://datasets/no/such"), "hf://datasets/no/such", "check")
    check_refusal(lambda: local_path("hf://datasets/"), "hf://datasets/", "check the name")


@pytest.mark.parametrize("body", [*NO_API, b'{"id": 5, "sha": []}'])
def test_a_hub_that_answers_something_else_is_one_line(use, body):
    with LoopbackServer(always(body)) as hub:
        use(hub.address)
        check_refusal(lambda: local_path("hf://datasets/some/pairs"), "hf://datasets/some/pairs", "check the name")
        check_refusal(lambda: locate("some/pairs"), "'some/pairs'", "from the hub")


def test_a_part_in_the_cache_is_not_the_whole_without_the_hub(use, tmp_path):
    published = write_shards(tmp_path / "published")
    (published / "more.csv").write_text("question,answer\nq,a\n")
    with FakeHub("some/part", published, dataset=True) as hub:
        use(hub.address)
        local_path("hf://datasets/some/part/pairs")
    assert sorted(hub.fetched) == ["pairs/test-0.csv", "pairs/train-0.csv"]
    dataset_path.cache_clear()
    assert local_path("hf://datasets/some/part/pairs").endswith("pairs")
    check_refusal(lambda: local_path("hf://datasets/some/part"), "some/part", "hub's")
