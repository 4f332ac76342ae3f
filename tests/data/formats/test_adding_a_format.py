"""The format of docs/adding-a-format.md, run as the page gives it."""

import pathlib
import re

import pytest
from helpers import refusal, written

from endx_jax.data.formats import FORMATS, open_data, read, read_corpus

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "adding-a-format.md"


@pytest.fixture
def cards(tmp_path):
    file, entry, *_ = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert file.count("\n") <= 30
    assert "CARDS, " in entry
    names: dict = {}
    exec(file, names)
    FORMATS.insert(2, names["CARDS"])
    return written(tmp_path / "capitals.cards", "Capital of Peru? => Lima\nWhat then?\nCapital of Chile? => Santiago\n")


def test_the_format_of_the_page_is_read_by_all(cards):
    assert open_data(cards).format.name == "cards"
    records = read(cards, skip_invalid=True)
    assert (records.questions, records.candidates) == (("Capital of Peru?", "Capital of Chile?"), ("Lima", "Santiago"))
    assert refusal(lambda: read(cards)).startswith(f"{cards}, line 2: no ' => ' between question and answer")
    written(cards, "Capital of Peru? => Lima\n")
    assert [document.text for document in read_corpus(cards)] == ["Lima"]


def test_without_the_entry_the_ending_is_unknown(tmp_path):
    file = written(tmp_path / "capitals.cards", "Capital of Peru? => Lima\n")
    assert "unknown ending '.cards'" in refusal(lambda: read(file))
