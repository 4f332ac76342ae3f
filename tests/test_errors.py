import pytest

from endx_jax.errors import MAX_MESSAGE, DiskFull, EndxError


def test_a_message_is_one_line():
    assert str(EndxError("a file named x\ny is missing")) == "a file named x y is missing"
    assert str(DiskFull("a\u2028b")) == "a b"


def test_a_long_message_keeps_its_beginning_and_its_end():
    message = str(EndxError("start " + "x" * 10_000 + " end"))
    assert len(message) == MAX_MESSAGE
    assert message.startswith("start x")
    assert message.endswith("x end")


def test_other_arguments_are_refused():
    with pytest.raises(TypeError):
        EndxError("a", "b")
