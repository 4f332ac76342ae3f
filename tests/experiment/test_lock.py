"""The lock of a workdir, held by a process that is really killed, and files of a workdir, whatever they hold."""

import errno
import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys

import pytest
from fuzzing import damaged_json, damaged_json_lines, fuzzed, only_user_errors
from helpers import one_line_error, raising
from hypothesis import given
from hypothesis import strategies as st

from endx_jax.errors import EndxError
from endx_jax.experiment import workdir as workdirs
from endx_jax.experiment.comparison import read_per_question
from endx_jax.experiment.config import resolve
from endx_jax.experiment.workdir import LOCK, run_lock
from endx_jax.methods.config import base_config, load_recipe
from endx_jax.ranking.results import read_results
from endx_jax.training import checkpoints, metric_log

HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "a+")
fcntl.flock(file, fcntl.LOCK_EX)
file.write('{"host": "h", "process": 7, "since": "then"}')
file.flush()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path / LOCK)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_run_is_refused_until_the_first_one_dies(tmp_path, holder):
    message = f"{tmp_path} is in use by process 7 on h since then: wait for it, stop it or choose another workdir"
    with one_line_error(message), run_lock(tmp_path):
        pass
    holder.kill()
    holder.wait()
    with run_lock(tmp_path):
        assert set(json.loads((tmp_path / LOCK).read_text())) == {"host", "process", "since"}


@pytest.mark.parametrize(
    "signed",
    [b"", b"[1]", b"{}", b"[" * 100_000, b"9" * 5_000, b"\xff", b'{"host": "a\\nb", "process": 7, "since": ""}'],
    ids=range(7),
)
def test_a_holder_that_has_not_signed_is_refused_too(tmp_path, holder, signed):
    (tmp_path / LOCK).write_bytes(signed)
    with one_line_error(f"in use by another process \\(`fuser {tmp_path}/.lock` names it\\): wait"), run_lock(tmp_path):
        pass


def test_a_process_that_has_ended_is_not_named_as_the_holder(tmp_path, holder):
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    (tmp_path / LOCK).write_text(json.dumps({"host": platform.node(), "process": ended.pid, "since": "then"}))
    with one_line_error("in use by another process"), run_lock(tmp_path):
        pass


def test_a_symbolic_link_and_a_folder_that_cannot_be_written_are_refused(tmp_path):
    (tmp_path / "precious").write_text("contents")
    with one_line_error("can't be written"), run_lock(tmp_path / "precious" / "run"):
        pass
    (tmp_path / LOCK).symlink_to("precious")
    with one_line_error(f"can't write {tmp_path}/.lock: it is a symbolic link; remove it"), run_lock(tmp_path):
        pass
    assert (tmp_path / "precious").read_text() == "contents"


def test_a_folder_in_which_nothing_was_written_is_taken_back(tmp_path, monkeypatch):
    fresh = tmp_path / "runs" / "fresh"
    with run_lock(fresh):
        assert fresh.is_dir()
    assert not fresh.exists()
    with run_lock(fresh):
        (fresh / "config.json").touch()
    assert {file.name for file in fresh.iterdir()} == {LOCK, "config.json"}
    with run_lock(tmp_path):
        pass
    assert tmp_path.is_dir()  # it was there before
    monkeypatch.setattr(os, "unlink", raising(OSError(errno.EBUSY, "open")))  # as on NFS and Windows
    with one_line_error("a wrong setting"), run_lock(tmp_path / "again"):
        raise EndxError("a wrong setting")
    monkeypatch.undo()
    with one_line_error("stopped"), run_lock(tmp_path / "removed"):
        shutil.rmtree(tmp_path / "removed")
        raise EndxError("stopped")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EIO])
def test_a_file_system_without_locks_is_reported_in_one_line(tmp_path, monkeypatch, capsys, number):
    monkeypatch.setattr(fcntl, "flock", raising(OSError(number, os.strerror(number))))
    with run_lock(tmp_path):
        pass
    found = capsys.readouterr().out
    assert f"can't be locked ({os.strerror(number)}): do not start a second run in this workdir\n" in found
    assert found.count("\n") == 1


CONFIG = resolve(base_config()).as_dict()
MIXED = CONFIG | {"data": CONFIG["data"] | {"path": "a", "mixture": [["b", 1.0]]}}
MIXED["model"] = MIXED["model"] | {"layer_weights": [0.5, 0.5]}
RECIPES = [resolve(load_recipe(name).get_config()).as_dict() for name in ("minilm_pairs", "vae_squad")]
RESULTS = {
    "systems": {"bm25": {"mrr": 0.5}},
    "evaluations": [
        {"pool": "answers", "system": "trained", "direction": "question_to_answer", "candidates": 30}
        | {"metrics": {"mrr": 0.5, "recall@1": 0.25}}
    ],
}
HASHES = {"sha256": {"a": "b"}}
CHECKPOINT = f"{checkpoints.FOLDER}/2"
LOG = b'{"step": 1, "loss": 1.0}\n{"step": 2, "loss": 0.5}\n{"step": 3, "mrr": 0.5}\n'
QUESTIONS = b'{"id": "a", "question": 0, "mrr": 0.5}\n{"id": "b", "question": 1, "mrr": 1.0}\n'


def encoded(value) -> bytes:
    return json.dumps(value).encode()


def read_settings(workdir):
    settings = workdirs.read_config(workdir)
    assert resolve(settings.as_dict()) == settings


def read_log(workdir):
    metric_log.MetricLog(workdir, resume_step=2).close()
    assert all(line["step"] <= 2 for line in metric_log.read_metrics(workdir / metric_log.FILE))


def read_checkpoint(workdir):
    assert checkpoints.best_step(workdir, "mrr") in (2, None)
    checkpoints.find_damage(workdir, 2)


@pytest.mark.parametrize(
    ("name", "contents", "read"),
    [
        (workdirs.CONFIG, st.one_of(damaged_json(encoded(one)) for one in (MIXED, *RECIPES)), read_settings),
        (workdirs.DATA, damaged_json(encoded({"sha256": "ab", "questions": {"train": 5}})), workdirs.read_data),
        (metric_log.FILE, damaged_json_lines(LOG), read_log),
        (workdirs.RESULTS, damaged_json(encoded(RESULTS)), lambda workdir: read_results(workdir / workdirs.RESULTS)),
        (workdirs.RESULTS, damaged_json(encoded(RESULTS)), read_per_question),
        ("trained.per_question.jsonl", damaged_json_lines(QUESTIONS), read_per_question),
        (f"{CHECKPOINT}/{checkpoints.HASHES}", damaged_json(encoded(HASHES)), read_checkpoint),
        (f"{CHECKPOINT}/{checkpoints.METRICS}", damaged_json(encoded({"mrr": 0.5, "step": 2})), read_checkpoint),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@fuzzed
@given(data=st.data())
def test_no_file_of_a_workdir_gives_a_traceback(tmp_path, name, contents, read, data):
    (tmp_path / CHECKPOINT / "metrics").mkdir(parents=True, exist_ok=True)
    (tmp_path / CHECKPOINT / checkpoints.HASHES).write_bytes(encoded(HASHES))
    (tmp_path / "trained.per_question.jsonl").write_bytes(QUESTIONS)
    (tmp_path / name).write_bytes(data.draw(contents))
    with only_user_errors():
        read(tmp_path)


def test_a_workdir_at_home_is_no_folder_named_tilde(tmp_path, variables):
    variables(HOME=str(tmp_path))
    with workdirs.opened("~/run") as home:
        assert (home.folder, str(home)) == (tmp_path / "run", f"{tmp_path}/run")
        assert (tmp_path / "run").is_dir()
