import io
import sys
from unittest import mock

import jax
import pytest
from jax._src import xla_bridge

import endx_jax.__main__ as program
from endx_jax.cli import entry


@pytest.mark.parametrize(("verb", "keeps"), [("train", True), ("plan", True), ("serve", False), ("encode", False)])
def test_the_allocator_settings_of_training_apply_to_no_other_verb(verb, keeps, monkeypatch):
    called = []
    monkeypatch.setattr(program.sys, "argv", ["endx", verb])
    monkeypatch.setattr(program, "use_large_pages", lambda: called.append(verb))
    monkeypatch.setattr(program, "run_verb", lambda argv: 0)
    assert program.main() == 0
    assert bool(called) is keeps


@pytest.fixture
def use(monkeypatch):
    """Function that puts another function of the arguments in place of every verb."""
    return lambda main: monkeypatch.setattr(entry, "_verb", lambda name: mock.Mock(["main"], main=main))


@pytest.mark.parametrize("failure", [MemoryError(), RuntimeError("RESOURCE_EXHAUSTED: 9 bytes\nmore")])
def test_running_out_of_memory_is_one_line(failure, use, endx):
    use(mock.Mock(side_effect=failure))
    error = endx("train", status=2).err
    assert error.startswith("endx train: out of memory: ")
    assert "--config.train.tower_chunk" in error


@pytest.mark.parametrize(
    ("platform", "line"),
    [
        ("tpuu", "Unable to initialize backend 'tpuu': Backend 'tpuu' is not in the list of known backends: "),
        ("cuda", "JAX has no such device; unset it, or install jax[cuda13]"),
    ],
)
def test_a_platform_that_is_absent_is_one_line(monkeypatch, use, endx, platform, line):
    monkeypatch.setenv("JAX_PLATFORMS", platform)
    monkeypatch.setattr("jax._src.hardware_utils.has_visible_nvidia_gpu", lambda: False)
    monkeypatch.setattr(xla_bridge, "_backends", {})
    monkeypatch.setattr(xla_bridge, "_default_backend", None)
    use(lambda arguments: xla_bridge.backends())
    before = jax.config.jax_platforms
    jax.config.update("jax_platforms", platform)
    try:
        error = endx("check", status=2).err
    finally:
        jax.config.update("jax_platforms", before)
    assert error.startswith(f"endx check: JAX_PLATFORMS={platform}: {line}")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("encoding", "printed"),
    [("ascii", rb"caf\xe9 \u2192"), ("latin-1", b"caf\xe9 \\u2192"), ("utf-8", "caf\xe9 \u2192".encode())],
)
def test_characters_that_an_encoding_does_not_have_are_printed_as_escapes(monkeypatch, use, encoding, printed):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding))
    use(lambda arguments: print("caf\xe9 \u2192"))
    assert entry.run_verb(["plan"]) == 0
    sys.stdout.flush()
    assert sys.stdout.buffer.getvalue() == printed + b"\n"
