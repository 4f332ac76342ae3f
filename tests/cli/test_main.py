from unittest import mock

import jax
import pytest
from jax._src import xla_bridge

import endx_jax.__main__ as program
from endx_jax.cli import train


@pytest.mark.parametrize(("verb", "keeps"), [("train", True), ("plan", True), ("serve", False), ("encode", False)])
def test_the_allocator_settings_of_training_apply_to_no_other_verb(verb, keeps, monkeypatch):
    called = []
    monkeypatch.setattr(program.sys, "argv", ["endx", verb])
    monkeypatch.setattr(program, "use_large_pages", lambda: called.append(verb))
    monkeypatch.setattr(program, "run_verb", lambda argv: 0)
    assert program.main() == 0
    assert bool(called) is keeps


@pytest.mark.parametrize(
    ("failure", "status", "named"),
    [
        (MemoryError(), 2, ["out of memory", "--config.train.tower_chunk"]),
        (RuntimeError("RESOURCE_EXHAUSTED: 9 bytes\nmore"), 2, ["out of memory", "--config.train.tower_chunk"]),
        (KeyboardInterrupt(), 130, ["interrupted", "the same command resumes from its checkpoint"]),
    ],
)
def test_a_verb_that_cannot_go_on_ends_with_one_line(failure, status, named, monkeypatch, endx):
    monkeypatch.setattr(train, "main", mock.Mock(side_effect=failure))
    error = endx("train", status=status).err
    assert error.startswith("endx train: ")
    assert error.count("\n") == 1
    assert [part for part in named if part not in error] == []


@pytest.mark.parametrize(
    ("platform", "line"),
    [
        ("tpuu", "Unable to initialize backend 'tpuu': Backend 'tpuu' is not in the list of known backends: "),
        ("cuda", "JAX has no such device; unset it, or install jax[cuda13]"),
    ],
)
def test_a_platform_that_is_absent_is_one_line(monkeypatch, endx, platform, line):
    monkeypatch.setenv("JAX_PLATFORMS", platform)
    monkeypatch.setattr("jax._src.hardware_utils.has_visible_nvidia_gpu", lambda: False)
    monkeypatch.setattr(xla_bridge, "_backends", {})
    monkeypatch.setattr(xla_bridge, "_default_backend", None)
    monkeypatch.setattr(train, "main", lambda arguments: xla_bridge.backends())
    jax.config.update("jax_platforms", platform)
    assert endx("train", status=2).err.startswith(f"endx train: JAX_PLATFORMS={platform}: {line}")
