"""What a refusal must be: an EndxError of one line that names what is wrong, and the remedy; its wording is free."""

import pytest

from endx_jax.errors import EndxError


def check_refusal(call, *named: str, kind: type[EndxError] = EndxError) -> None:
    """Expects that a call is refused by one line that contains all of these: a field and its value, and a remedy."""
    with pytest.raises(kind) as caught:
        call()
    line = str(caught.value)
    assert "\n" not in line
    assert [part for part in named if part not in line] == [], line
