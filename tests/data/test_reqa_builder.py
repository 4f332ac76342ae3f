import time

import pytest
from helpers import one_line_error
from small_squad import Publisher, sha256, write_squad

from endx_jax.data import reqa, reqa_builder, reqa_dataset
from endx_jax.data.readers.squad import FILES
from endx_jax.data.reqa_builder import PUBLISHED, Published, digest


@pytest.fixture
def published(tmp_path, monkeypatch):
    """A server that publishes a small SQuAD, whose files are the pinned ones."""
    folder = write_squad(tmp_path / "published")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Publisher(folder) as publisher:
        files = {
            split: Published(f"{publisher.address}/{name}", (folder / name).stat().st_size, sha256(folder / name))
            for split, name in zip(PUBLISHED, FILES, strict=True)
        }
        monkeypatch.setattr(reqa_builder, "PUBLISHED", files)
        yield publisher


def test_the_published_files_are_fetched_checked_and_converted(published, tmp_path, capfd):
    reqa_dataset.prepare(data_dir=tmp_path / "data")
    assert set(published.fetched) == set(FILES)
    for split, name in zip(PUBLISHED, FILES, strict=True):
        expected = reqa.from_squad(tmp_path / "published" / name, "sentences")
        assert reqa_dataset.read("squad", split, data_dir=tmp_path / "data") == expected
    told = reqa_dataset.summary("squad", data_dir=tmp_path / "data")
    assert [told[split]["published"] for split in PUBLISHED] == [True, True]
    assert capfd.readouterr() == ("", "")


def test_a_local_copy_of_the_published_files_is_the_same_source(published, tmp_path):
    reqa_dataset.prepare(data_dir=tmp_path / "data")
    packed = write_squad(tmp_path / "packed", packed=True)
    reqa_dataset.prepare(source=packed, data_dir=tmp_path / "data")


def test_what_is_fetched_must_have_the_pinned_hash(published, tmp_path):
    dev = tmp_path / "published" / FILES[1]
    dev.write_bytes(dev.read_bytes().replace(b"Bees", b"Wasp"))
    with one_line_error(r"does not have the published sha256.*--source=FOLDER.*--config.data.path=FOLDER"):
        reqa_dataset.prepare(data_dir=tmp_path / "data")
    assert not (tmp_path / "data" / "reqa" / "squad" / "1.0.0").exists()


def test_a_file_that_is_not_there_is_refused(published, tmp_path):
    (tmp_path / "published" / FILES[0]).unlink()
    with one_line_error(r"can't be downloaded from http://127.0.0.1:\d+ \(HTTP status 404\): put train-v1.1.json and"):
        reqa_dataset.prepare(data_dir=tmp_path / "data")


def test_a_second_file_that_is_not_there_is_refused(published, tmp_path):
    (tmp_path / "published" / FILES[1]).unlink()
    with one_line_error(r"can't be downloaded .* \(DownloadError\)"):
        reqa_dataset.prepare(data_dir=tmp_path / "data")


def test_a_network_that_refuses_is_refused_at_once(published, tmp_path):
    published.__exit__()
    began = time.monotonic()
    with one_line_error(r"not prepared in .*data, and SQuAD can't be downloaded .* \(ConnectionError\)"):
        reqa_dataset.read("squad", "train", data_dir=tmp_path / "data")
    assert time.monotonic() - began < reqa_builder.PATIENCE


def test_a_network_that_is_silent_is_refused_in_time(published, tmp_path, monkeypatch):
    published.silent = True
    monkeypatch.setattr(reqa_builder, "PATIENCE", 0.3)
    began = time.monotonic()
    with one_line_error(r"can't be downloaded .* \((no answer within 0.3 s|ReadTimeout)\)"):
        reqa_dataset.prepare(data_dir=tmp_path / "data")
    assert time.monotonic() - began < 5


def test_the_pinned_files_are_those_of_tfds_own_squad():
    """Its list is a second witness of what the authors publish."""
    from tensorflow_datasets.core.download.checksums import load_url_infos
    from tensorflow_datasets.core.utils.resource_utils import tfds_path

    witness = load_url_infos(tfds_path() / "datasets" / "squad" / "checksums.tsv")
    for file in PUBLISHED.values():
        assert (witness[file.url].size, witness[file.url].checksum) == (file.size, file.sha256)


def test_a_digest_is_of_what_is_inside(tmp_path):
    plain, packed = write_squad(tmp_path), write_squad(tmp_path, packed=True)
    for name in FILES:
        assert digest(str(plain / name)) == digest(str(packed / f"{name}.gz")) == sha256(plain / name)
