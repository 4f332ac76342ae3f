import importlib.util

from helpers import one_line_error

from reproduction.figures import style


def test_a_missing_package_is_named_with_what_to_install(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "sklearn" else find(name))
    with one_line_error(r"figures need sklearn: pip install 'endx_jax\[plot\]'"):
        style.require()


def test_no_two_models_look_alike_in_any_way():
    looks = [style.look(number) for number in range(7)]
    for part in ("color", "marker", "linestyle"):
        assert len({look[part] for look in looks}) == 7
    assert style.look(7) == looks[0]
