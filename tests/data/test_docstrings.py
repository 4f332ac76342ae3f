import gc
import random
import sysconfig

import pytest

from endx_jax.data import docstrings
from endx_jax.data.docstrings import docstring_pairs

FUNCTION = '''def {name}():
    """{question}

    {answer}
    """
'''
TAIL = "says enough about itself in these words."


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of sources that would fail if they were imported; the only place where docstrings are looked for."""
    folder = tmp_path / "site" / "made_up"
    folder.mkdir(parents=True)
    (tmp_path / "stdlib").mkdir()
    monkeypatch.setattr(docstrings, "PACKAGES", ("made_up", "not_installed_at_all"))
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / name))
    monkeypatch.syspath_prepend(tmp_path / "site")
    return folder


def write(path, *functions):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("1 / 0\n" + "\n".join(FUNCTION.format(name=n, question=q, answer=a) for n, q, a in functions))


def test_name_and_rest_answer_the_summary(package, tmp_path):
    write(package / "__init__.py", ("first", "Return the first of all.", f"First {TAIL}"))
    write(package / "_private" / "_deeper.py", ("second", "Return the second of all.", f"Second {TAIL}"))
    write(tmp_path / "stdlib" / "plain.py", ("third", "Return the third of all.", f"Third {TAIL}"))
    records = docstring_pairs()
    found = {text: records.candidates[right] for text, (right,) in zip(records.questions, records.qrels, strict=True)}
    assert found == {
        "Return the first of all.": f"made_up.first: First {TAIL}",
        "Return the second of all.": f"made_up.second: Second {TAIL}",
        "Return the third of all.": f"plain.third: Third {TAIL}",
    }
    assert sorted(records.question_ids) == ["made_up.first", "made_up.second", "plain.third"]
    assert records.question_ids == records.candidate_ids


def test_with_a_cache_sources_are_parsed_once_until_one_changes(package, tmp_path, monkeypatch):
    write(package / "__init__.py", ("first", "Return the first of all.", f"First {TAIL}"))
    found = docstring_pairs(cache=str(tmp_path / "cache"))
    assert found == docstring_pairs()
    with monkeypatch.context() as patched:
        patched.setattr(docstrings, "_docstrings", lambda *_: pytest.fail("parsed again"))
        assert docstring_pairs(cache=str(tmp_path / "cache")) == found
    write(package / "__init__.py", ("other", "Return the other of all.", f"Other {TAIL}"))
    assert docstring_pairs(cache=str(tmp_path / "cache")).question_ids == ("made_up.other",)


def test_classes_methods_and_branches_are_looked_into_and_private_names_and_bodies_not(package):
    documented = '"""Return the {0} of all.\n\n    The {0} one ' + TAIL + '\n    """'
    source = f"""
class Outer:
    {documented.format("outer class")}
    async def method(self):
        {documented.format("method")}
        def inner():
            {documented.format("inner function")}
    def _hidden(self):
        {documented.format("hidden method")}
class _Hidden:
    def method(self):
        {documented.format("hidden class")}
if True:
    def branch():
        {documented.format("branch")}
"""
    (package / "module.py").write_text(source)
    names = {"made_up.module.Outer", "made_up.module.Outer.method", "made_up.module.branch"}
    assert set(docstring_pairs().question_ids) == names


@pytest.mark.parametrize("place", ["tests/a.py", "test_a.py", "a_test.py", "_vendor/a.py", "models/a.py", "a.pyi"])
def test_tests_and_copies_are_skipped(package, place):
    write(package / place, ("skipped", "Return the skipped of all.", f"Skipped {TAIL}"))
    write(package / "unittest.py", ("kept", "Return the kept of all.", f"Kept {TAIL}"))
    assert docstring_pairs().question_ids == ("made_up.unittest.kept",)


def test_files_that_do_not_parse_are_skipped_and_their_warnings_silenced(package):
    (package / "a.py").write_bytes(b'"""docs"""\nx = (')
    (package / "b.py").write_bytes(b'"""docs"""\nx = "\xff"')
    (package / "c.py").write_bytes(b'"""docs"""\n\0')
    (package / "d.py").symlink_to(package / "nowhere.py")
    write(package / "kept.py", ("kept", "Return the kept of all.", rf"Kept \d {TAIL}"))
    assert docstring_pairs().question_ids == ("made_up.kept.kept",)


def test_ambiguous_questions_and_answers_are_dropped_and_equal_pairs_kept_once(package):
    write(
        package / "a.py",
        ("one", "Return a name of it.", f"One {TAIL}"),
        ("two", "Returns the names of it.", f"Two {TAIL}"),
        ("three", "Return the third of all.", f"Shared {TAIL}"),
        ("four", "Return the fourth of all.", f"shared {TAIL}"),
        ("kept", "Return the kept of all.", f"Kept {TAIL}"),
    )
    write(package / "longer.py", ("kept", "Return the kept of all.", f"Kept {TAIL}"))
    assert docstring_pairs().question_ids == ("made_up.a.kept",)


def test_the_order_of_files_does_not_matter():
    found = [(f"m.f{n}", f"Return number {n} of all.", f"Number {n} {TAIL}") for n in range(300)]
    found += [(f"m.g{n % 50}", f"Give number {n} to all.", f"Given {n} {TAIL}") for n in range(100)]
    whole = docstrings._records(iter(found))
    assert len(whole.questions) == 350  # A name that stands twice is taken once.
    random.Random(0).shuffle(found)
    assert docstrings._records(iter(found)) == whole


def test_the_collector_is_left_as_it_was(package):
    docstring_pairs()
    assert gc.isenabled()
    gc.disable()
    try:
        docstring_pairs()
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.slow
def test_every_installation_has_thousands_of_clean_pairs():
    records = docstring_pairs()
    assert 5000 < len(records.questions) <= 8000
    assert records.qrels == tuple((row,) for row in range(len(records.questions)))
    assert len({text.casefold() for text in records.questions}) == len(records.questions)
    assert len(set(records.candidates)) == len(records.candidates) == len(set(records.candidate_ids))
    texts = [*records.questions, *records.candidates]
    for leftover in (">>>", "```", "`", ".. math", ":class:", ":param", "%("):
        assert not [text for text in texts if leftover in text], leftover
    for question, answer in zip(records.questions, records.candidates, strict=True):
        assert 4 <= len(question.split()) <= 40
        assert question.casefold() not in answer.casefold()
