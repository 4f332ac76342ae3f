import jax
import pytest

from endx_jax.parallel.environment import keep_programs, use_compilation_cache


@pytest.fixture
def settings():
    """The two settings of JAX, which are as they were afterwards."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    yield lambda: tuple(getattr(jax.config, name) for name in names)
    for name, value in before.items():
        jax.config.update(name, value)


def test_a_cache_that_is_configured_stays(settings):
    jax.config.update("jax_compilation_cache_dir", "/chosen")
    before = settings()
    keep_programs()
    assert settings() == before


def test_without_one_programs_are_kept_where_training_keeps_them(settings, monkeypatch):
    monkeypatch.setenv("HOME", "/home/of/tests")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    jax.config.update("jax_compilation_cache_dir", None)
    keep_programs()
    assert settings() == ("/home/of/tests/.cache/endx_jax/xla", 0.0)


def test_no_folder_changes_nothing(settings):
    before = settings()
    use_compilation_cache("")
    assert settings() == before
    use_compilation_cache("/some/folder", 2.0)
    assert settings() == ("/some/folder", 2.0)
