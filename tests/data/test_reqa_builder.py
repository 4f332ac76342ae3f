import dataclasses
import gzip
import json
import shutil
import time

import pytest
from helpers import one_line_error
from small_mrqa import HEADER, asked, line
from small_squad import Publisher, sha256, write_squad

from endx_jax.data import origins, reqa, reqa_builder, reqa_dataset
from endx_jax.data.origins import ORIGINS, SPLITS, PublishedFile
from endx_jax.data.readers.squad import FILES


@pytest.fixture
def published(tmp_path, monkeypatch):
    """A server that publishes a small SQuAD, whose files are the pinned ones."""
    folder = write_squad(tmp_path / "published")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Publisher(folder) as publisher:
        pinned = tuple(
            (PublishedFile(f"{publisher.address}/{name}", (folder / name).stat().st_size, sha256(folder / name)),)
            for name in FILES
        )
        origin = dataclasses.replace(ORIGINS["reqa/squad"], published=lambda: pinned)
        monkeypatch.setitem(ORIGINS, "reqa/squad", origin)
        yield publisher


def test_the_published_files_are_fetched_checked_and_converted(published, tmp_path, capfd):
    reqa_dataset.prepare(data_dir=tmp_path / "data")
    assert set(published.fetched) == set(FILES)
    for split, name in zip(SPLITS, FILES, strict=True):
        expected = reqa.read(tmp_path / "published" / name, "sentences")
        assert reqa_dataset.read("reqa/squad", split, data_dir=tmp_path / "data") == expected
    told = reqa_dataset.summary("reqa/squad", data_dir=tmp_path / "data")
    assert [told[split]["published"] for split in SPLITS] == [True, True]
    assert capfd.readouterr() == ("", "")


def test_packed_files_are_fetched_and_joined(tmp_path, monkeypatch):
    """MultiReQA: boundaries and texts from two places, all packed; what is fetched lies under names of tfds' making."""
    context = "Bees fly. They sting."
    folder, parts = tmp_path / "published", []
    folder.mkdir()
    for split in ("train", "dev"):
        text = f"In {split}: {context}"
        bounds = {"candidate_id": "SQuAD_b1/_0", "response_start": 0, "response_end": text.index(" They")}
        for name, rows in ((f"{split}-c.json.gz", [bounds]), (f"{split}-t.jsonl.gz", mrqa_rows(text))):
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (folder / name).write_bytes(gzip.compress(lines.encode()))
            parts.append(folder / name)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Publisher(folder) as publisher:
        pinned = [PublishedFile(f"{publisher.address}/{p.name}", p.stat().st_size, sha256(p)) for p in parts]
        published = (tuple(pinned[:2]), tuple(pinned[2:]))
        origin = dataclasses.replace(ORIGINS["multireqa/squad"], published=lambda: published)
        monkeypatch.setitem(ORIGINS, "multireqa/squad", origin)
        found = reqa_dataset.read("multireqa/squad", "validation", data_dir=tmp_path / "data")
    assert (found.questions, found.candidates) == (("what?",), ("In dev: Bees fly.",))
    assert (tmp_path / "data" / "multireqa" / "squad" / "1.1.0").is_dir()
    # The published files under their published names are the same source.
    for part, name in zip(parts, (n for names in origin.names for n in names), strict=True):
        (tmp_path / "local" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(part, tmp_path / "local" / f"{name}.gz")
    reqa_dataset.prepare("multireqa/squad", source=tmp_path / "local", data_dir=tmp_path / "data")


def mrqa_rows(text: str) -> list[dict]:
    return [HEADER, line(text, asked("b1", "what?", text, ("Bees",)))]


def test_a_local_copy_of_the_published_files_is_the_same_source(published, tmp_path):
    reqa_dataset.prepare(data_dir=tmp_path / "data")
    packed = write_squad(tmp_path / "packed", packed=True)
    reqa_dataset.prepare(source=packed, data_dir=tmp_path / "data")


def test_fetched_files_must_have_the_pinned_hash(published, tmp_path):
    dev = tmp_path / "published" / FILES[1]
    dev.write_bytes(dev.read_bytes().replace(b"Bees", b"Wasp"))
    with one_line_error(r"does not have the published sha256.*--source=FOLDER"):
        reqa_dataset.prepare(data_dir=tmp_path / "data")
    assert not (tmp_path / "data" / "reqa" / "squad" / "1.1.0").exists()


def test_a_file_that_is_not_there_is_refused(published, tmp_path):
    (tmp_path / "published" / FILES[0]).unlink()
    with one_line_error(r"can't be downloaded from http://127.0.0.1:\d+ \(HTTP status 404\): put train-v1.1.json and"):
        reqa_dataset.prepare(data_dir=tmp_path / "data")


def test_a_network_that_refuses_is_refused_at_once(published, tmp_path):
    published.__exit__()
    began = time.monotonic()
    with one_line_error(r"not prepared in .*data, and SQuAD can't be downloaded .* \(ConnectionError\)"):
        reqa_dataset.read("reqa/squad", "train", data_dir=tmp_path / "data")
    assert time.monotonic() - began < reqa_builder.TIMEOUT


def test_a_network_that_is_silent_is_refused_in_time(published, tmp_path, monkeypatch):
    published.silent = True
    monkeypatch.setattr(reqa_builder, "TIMEOUT", 0.3)
    began = time.monotonic()
    with one_line_error(r"can't be downloaded .* \((no answer within 0.3 s|ReadTimeout)\)"):
        reqa_dataset.prepare(data_dir=tmp_path / "data")
    assert time.monotonic() - began < 5


def test_the_pinned_files_of_squad_are_those_that_tfds_lists():
    """Its list is a second witness of what the authors publish."""
    from tensorflow_datasets.core.download.checksums import load_url_infos
    from tensorflow_datasets.core.utils.resource_utils import tfds_path

    witness = load_url_infos(tfds_path() / "datasets" / "squad" / "checksums.tsv")
    for file in origins.SQUAD.values():
        assert (witness[file.url].size, witness[file.url].checksum) == (file.size, file.sha256)


def test_every_set_has_a_pinned_file_for_each_of_its_names():
    for name, origin in ORIGINS.items():
        for names, files in zip(origin.names, origin.published(), strict=True):
            assert len(files) == len(names) or name == "reqa/nq"
            assert all(len(file.sha256) == 64 and file.size > 0 for file in files)
