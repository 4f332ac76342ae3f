import os

import pytest

from endx_jax.data.cache_folder import CacheFolder
from endx_jax.data.docstring_cache import kept, sources_key

FOUND = [("a.b", "Return the b of a.", "It has no effect on ☃."), ("c", "Do c.", "Nothing else.")]


def test_what_was_found_once_is_kept(tmp_path):
    folder = CacheFolder(tmp_path)
    assert kept(folder, "key", lambda: iter(FOUND)) == FOUND
    assert kept(folder, "key", lambda: pytest.fail("looked for again")) == FOUND
    assert kept(folder, "other", list) == []


@pytest.mark.parametrize("damage", [lambda body: body[:-1], lambda body: body[:-3] + b"x" + body[-2:], lambda _: b""])
def test_a_damaged_file_is_made_again(tmp_path, damage):
    kept(CacheFolder(tmp_path), "key", lambda: FOUND)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    assert kept(CacheFolder(tmp_path), "key", lambda: FOUND) == FOUND
    assert file.read_bytes() == whole


def test_the_key_follows_sources_names_and_code(tmp_path):
    source, code = tmp_path / "a.py", tmp_path / "code.py"
    source.write_text("1")
    code.write_text("2")
    sources = [(str(source), ("a",))]
    keys = [sources_key(sources, str(code))]
    keys.append(sources_key([(str(source), ("b",))], str(code)))
    keys.append(sources_key([*sources, (str(tmp_path / "gone.py"), ("gone",))], str(code)))
    source.write_text("12")
    keys.append(sources_key(sources, str(code)))
    os.utime(source, (1, 1))
    keys.append(sources_key(sources, str(code)))
    code.write_text("3")
    keys.append(sources_key(sources, str(code)))
    assert len(set(keys)) == len(keys)
    assert sources_key(sources, str(code)) == keys[-1]
