import dataclasses
import gzip
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import time
from concurrent import futures

import pytest
from helpers import one_line_error, times
from refusals import check_refusal
from small_mrqa import HEADER, asked, line
from small_natural_questions import annotation, full, page, span
from small_squad import Publisher, sha256, write_squad

from endx_jax.data import reqa
from endx_jax.data.formats import origins, reqa_dataset
from endx_jax.data.formats.origins import ORIGINS, SPLITS, PublishedFile
from endx_jax.data.formats.reqa_dataset import from_record, prepare, read_prepared, summary, to_record
from endx_jax.data.formats.squad import FILES
from endx_jax.data.sets.paragraphs import AnswerSpan, Paragraph, Question, convert_paragraphs
from endx_jax.data.sets.records import RetrievalSet


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> pathlib.Path:
    return write_squad(tmp_path_factory.mktemp("squad"))


@pytest.fixture
def data(tmp_path, source) -> pathlib.Path:
    """A data directory with the small set prepared."""
    prepare(source=source, data_dir=tmp_path / "data")
    return tmp_path / "data"


def records(name, split, data_dir) -> RetrievalSet:
    return convert_paragraphs(read_prepared(name, split, data_dir=data_dir), [name], "sentences").records


def test_the_prepared_set_equals_the_conversion_and_tfds_can_read_it(data, source):
    for split, name in zip(SPLITS, FILES, strict=True):
        assert records("reqa/squad", split, data) == reqa.from_squad(source / name, "sentences")
    tfds = pytest.importorskip("tensorflow_datasets")
    assert (data / "reqa" / "squad" / "1.2.0" / "features.json").is_file()
    rows = tfds.data_source("reqa/squad", split="validation", data_dir=data)
    assert [row["title"] for row in rows] == [b"Bees", b"Ants"]
    assert rows[1]["questions"]["text"] == [b"who walks?"]


def test_its_counts_and_what_was_left_out_are_kept(data):
    train, validation = summary("reqa/squad", data_dir=data).values()
    # Candidates: 3 of Cats, 1 more of Dogs, none more of Birds, 2 of Fish; pairs: "who barks?" has two.
    assert (train["questions"], train["candidates"], train["pairs"]) == (4, 6, 5)
    assert (validation["questions"], validation["candidates"], validation["pairs"]) == (2, 3, 2)
    assert (validation["unplaced_answers"], validation["unplaced_questions"]) == (1, 1)
    assert not train["published"]
    # "They eat." and the two others that answer; four questions' sentences, of which "who eats?" has the one twice.
    assert (train["answers"], train["rows"]) == (3, 6)


def test_natural_questions_in_parts_are_one_set(tmp_path):
    html = "<P>Bees fly. They sting.</P>"
    tokens = page(html)
    whole = annotation({"start_token": 0, "end_token": len(tokens)}, span(tokens, "sting"))
    for name, numbers in (("train/nq-train-00", (1,)), ("train/nq-train-01", (2, 3)), ("dev/nq-dev-00", (4,))):
        path = tmp_path / "nq" / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(full(n, f"q{n}", html, whole, title=f"T{n}")) + "\n" for n in numbers))
    folder = prepare("reqa/nq", source=tmp_path / "nq", data_dir=tmp_path / "data")
    found = records("reqa/nq", "train", tmp_path / "data")
    assert (found.questions, found.groups) == (("q1", "q2", "q3"), ("T1", "T2", "T3"))
    assert (found.candidates, found.qrels) == (("Bees fly.", "They sting."), ((1,), (1,), (1,)))
    (tmp_path / "nq" / "train" / "nq-train-01.jsonl").unlink()
    with one_line_error(rf"{folder} was made from other files than .*|was made from another file than"):
        prepare("reqa/nq", source=tmp_path / "nq", data_dir=tmp_path / "data")


def test_the_same_source_also_packed_is_converted_once_and_another_one_is_refused(data, source, tmp_path):
    before = times(data)
    for same in ({}, {"source": source}, {"source": write_squad(tmp_path / "packed", packed=True)}):
        assert prepare(**same, data_dir=data) == data / "reqa" / "squad" / "1.2.0"
    assert times(data) == before
    other = write_squad(tmp_path / "other")
    (other / FILES[1]).write_text((other / FILES[1]).read_text().replace("Bees", "Wasps"))
    check_refusal(lambda: prepare(source=other, data_dir=data), "1.2.0 was", "dev-v1.1.json", "sha256")


@pytest.mark.parametrize(
    ("packed", "damage"),
    [
        (False, lambda contents: contents[:-20]),
        (False, lambda contents: contents.replace(b'"context"', b'"content"', 1)),
        (True, lambda contents: contents[:-9]),
    ],
)
def test_a_damaged_source_is_refused_by_name_and_leaves_nothing(tmp_path, packed, damage):
    folder = write_squad(tmp_path / "damaged", packed=packed)
    file = folder / (FILES[1] + ".gz" * packed)
    file.write_bytes(damage(file.read_bytes()))
    check_refusal(lambda: prepare(source=folder, data_dir=tmp_path / "data"), file.name)
    assert not any((tmp_path / "data" / "reqa" / "squad").iterdir())


def test_an_interrupted_preparation_is_never_taken_for_whole(source, tmp_path, monkeypatch):
    def interrupted(*article):
        if done:
            raise KeyboardInterrupt
        done.append(article)
        return whole(*article)

    whole, done = reqa_dataset.to_record, []
    with monkeypatch.context() as patch:
        patch.setattr(reqa_dataset, "to_record", interrupted)
        with pytest.raises(KeyboardInterrupt):
            prepare(source=source, data_dir=tmp_path / "data")
    assert not any((tmp_path / "data" / "reqa" / "squad").iterdir())
    prepare(source=source, data_dir=tmp_path / "data")
    assert len(records("reqa/squad", "train", tmp_path / "data").questions) == 4


def test_of_two_concurrent_preparations_one_waits_for_the_set(source, tmp_path, monkeypatch):
    def started(builder, progress):
        both.wait(timeout=60)  # both have seen that there is no set
        generate(builder, progress)

    def converted(*article):
        titles.append(article[0])
        return to_record(*article)

    both, titles, generate, to_record = threading.Barrier(2), [], reqa_dataset._generate, reqa_dataset.to_record
    monkeypatch.setattr(reqa_dataset, "_generate", started)
    monkeypatch.setattr(reqa_dataset, "to_record", converted)
    with futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: prepare(source=source, data_dir=tmp_path / "data"), range(2)))
    assert len(titles) == len(set(titles))
    assert [file.name for file in (tmp_path / "data" / "reqa" / "squad").iterdir()] == ["1.2.0"]
    assert len(records("reqa/squad", "train", tmp_path / "data").questions) == 4


def test_damaged_records_and_a_folder_that_is_not_whole_are_refused(data, source):
    folder = data / "reqa" / "squad" / "1.2.0"
    (records,) = folder.glob("reqa-train.array_record*")
    # Past the header of the file: within the first article.
    contents = bytearray(records.read_bytes())
    contents[200] ^= 4
    records.write_bytes(contents)
    check_refusal(lambda: next(read_prepared("reqa/squad", "train", data_dir=data)), "1.2.0 is")
    (folder / "dataset_info.json").unlink()
    check_refusal(lambda: prepare(source=source, data_dir=data), "1.2.0 exists", "remove the folder")


def test_a_data_directory_that_cannot_be_written_is_refused(source, tmp_path):
    (tmp_path / "file").write_text("in the way")
    check_refusal(lambda: prepare(source=source, data_dir=tmp_path / "file"), "/file/reqa/squad/1.2.0", "can't write")


def test_unknown_names_and_a_download_of_gigabytes_are_refused(tmp_path):
    check_refusal(lambda: prepare("reqa/squid", data_dir=tmp_path), "'reqa/squid'", "'reqa/squad'")
    check_refusal(lambda: next(read_prepared("reqa/squad", "test", data_dir=tmp_path)), "reqa/squad", "'test'")
    check_refusal(lambda: next(read_prepared("reqa/nq", "train", data_dir=tmp_path)), "GB", "`endx prepare reqa/nq`")


def test_tensorflow_is_never_asked_for(source, tmp_path):
    (tmp_path / "traps").mkdir()
    (tmp_path / "traps" / "tensorflow.py").write_text("raise AssertionError('TensorFlow was imported')")
    program = (
        "from endx_jax.data.formats.reqa_dataset import prepare, read_prepared\n"
        f"prepare(source={str(source)!r}); print(len([*read_prepared('reqa/squad', 'train')]))"
    )
    paths = [str(tmp_path / "traps"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "TFDS_DATA_DIR": str(tmp_path / "data")}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert (run.stdout, run.stderr, run.returncode) == ("5\n", "", 0)
    assert (tmp_path / "data" / "reqa").is_dir()


@pytest.fixture
def published(tmp_path, monkeypatch):
    """A server that publishes a small SQuAD, whose files are the pinned ones."""
    folder = write_squad(tmp_path / "published")
    with Publisher(folder) as publisher:
        files = [folder / name for name in FILES]
        urls = [f"{publisher.address}/{file.name}" for file in files]
        sizes = zip(urls, files, strict=True)
        pinned = tuple((PublishedFile(url, file.stat().st_size, sha256(file)),) for url, file in sizes)
        origin = dataclasses.replace(ORIGINS["reqa/squad"], published=lambda: pinned)
        monkeypatch.setitem(ORIGINS, "reqa/squad", origin)
        yield publisher


def test_the_published_files_are_fetched_checked_and_converted(published, tmp_path, capfd):
    prepare(data_dir=tmp_path / "data")
    assert set(published.fetched) == set(FILES)
    for split, name in zip(SPLITS, FILES, strict=True):
        expected = reqa.from_squad(tmp_path / "published" / name, "sentences")
        assert records("reqa/squad", split, tmp_path / "data") == expected
    told = summary("reqa/squad", data_dir=tmp_path / "data")
    assert [told[split]["published"] for split in SPLITS] == [True, True]
    prepare(source=write_squad(tmp_path / "packed", packed=True), data_dir=tmp_path / "data")  # the same source
    assert capfd.readouterr() == ("", "")


def test_packed_files_are_fetched_and_joined(tmp_path, monkeypatch):
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
    with Publisher(folder) as publisher:
        pinned = [PublishedFile(f"{publisher.address}/{p.name}", p.stat().st_size, sha256(p)) for p in parts]
        published = (tuple(pinned[:2]), tuple(pinned[2:]))
        origin = dataclasses.replace(ORIGINS["multireqa/squad"], published=lambda: published)
        monkeypatch.setitem(ORIGINS, "multireqa/squad", origin)
        found = records("multireqa/squad", "validation", tmp_path / "data")
    assert (found.questions, found.candidates) == (("what?",), ("In dev: Bees fly.",))
    assert (tmp_path / "data" / "multireqa" / "squad" / "1.2.0").is_dir()
    # The published files under their published names are the same source.
    for part, name in zip(parts, (n for names in origin.names for n in names), strict=True):
        (tmp_path / "local" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(part, tmp_path / "local" / f"{name}.gz")
    prepare("multireqa/squad", source=tmp_path / "local", data_dir=tmp_path / "data")


def mrqa_rows(text: str) -> list[dict]:
    return [HEADER, line(text, asked("b1", "what?", text, ("Bees",)))]


def test_fetched_files_must_be_there_and_have_the_pinned_hash(published, tmp_path):
    dev = tmp_path / "published" / FILES[1]
    dev.write_bytes(dev.read_bytes().replace(b"Bees", b"Wasp"))
    check_refusal(lambda: prepare(data_dir=tmp_path / "data"), "sha256", "--source=FOLDER")
    assert not (tmp_path / "data" / "reqa" / "squad" / "1.2.0").exists()
    (tmp_path / "published" / FILES[0]).unlink()
    check_refusal(lambda: prepare(data_dir=tmp_path / "data"), "http://127.0.0.1", "status 404", "train-v1.1.json")


def test_a_network_that_refuses_is_refused_at_once(published, tmp_path):
    published.__exit__()
    began = time.monotonic()
    with one_line_error(r"not prepared in .*data, and SQuAD can't be downloaded .* \(ConnectionError\)"):
        next(read_prepared("reqa/squad", "train", data_dir=tmp_path / "data"))
    assert time.monotonic() - began < reqa_dataset.TIMEOUT


def test_a_network_that_is_silent_is_refused_in_time(published, tmp_path, monkeypatch):
    published.silent = True
    monkeypatch.setattr(reqa_dataset, "TIMEOUT", 0.3)
    began = time.monotonic()
    with one_line_error(r"can't be downloaded .* \((no answer within 0.3 s|ReadTimeout)\)"):
        prepare(data_dir=tmp_path / "data")
    assert time.monotonic() - began < 5


def test_the_pinned_files_of_squad_are_those_that_tfds_lists():
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


def test_a_record_has_all_of_the_paragraphs_of_an_article():
    asked = Question("q0", "who sleeps?", (AnswerSpan("Cats", 1), AnswerSpan("Mäuse", 13))), Question("q1", " who?", ())
    paragraph = Paragraph("Cats", " Cats sleep. Mäuse – nicht.", asked, ((1, 12), (13, 27)))

    def encoded(value):  # as tensorflow-datasets returns texts
        if isinstance(value, dict):
            return {name: encoded(inner) for name, inner in value.items()}
        return (
            [*map(encoded, value)] if isinstance(value, list) else value.encode() if isinstance(value, str) else value
        )

    article = [paragraph, dataclasses.replace(paragraph, questions=(), sentences=()), paragraph]
    assert [*from_record(encoded(to_record("Cats", article)))] == article
