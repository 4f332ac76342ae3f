import inspect
import sysconfig

import pytest

from endx_jax.methods.config import load_recipe

docstrings = load_recipe("quickstart").docstring_pairs.__globals__
names = ("docstring_pairs", "question_and_answer", "sources_key")
docstring_pairs, question_and_answer, sources_key = map(docstrings.__getitem__, names)

FUNCTION = '''def {name}():
    """{question}

    {answer}
    """
'''
TAIL = "says enough about itself in these words."
REST = "Further words that say how it is done, with eight or more."


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of sources that would fail if they were imported; the only place where docstrings are looked for."""
    folder = tmp_path / "site" / "made_up"
    folder.mkdir(parents=True)
    (tmp_path / "stdlib").mkdir()
    monkeypatch.setitem(docstrings, "PACKAGES", ("made_up", "not_installed_at_all"))
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
    parts = {"first": "made_up.first", "second": "made_up.second", "third": "plain.third"}
    expected = {f"Return the {n} of all.": f"{name}: {n.capitalize()} {TAIL}" for n, name in parts.items()}
    assert found == expected
    assert sorted(records.question_ids) == ["made_up.first", "made_up.second", "plain.third"]
    assert records.question_ids == records.candidate_ids


def test_with_a_cache_sources_are_parsed_once_until_one_changes_or_it_is_damaged(package, tmp_path):
    write(package / "__init__.py", ("first", "Return the first of all.", f"First {TAIL} ☃"))
    found = docstring_pairs(cache=str(tmp_path / "cache"))
    assert found == docstring_pairs()
    (file,) = (path for path in (tmp_path / "cache").rglob("*") if path.is_file())
    whole = file.read_bytes()
    for damaged in (whole[:-1], whole[:-3] + b"x" + whole[-2:], b""):
        file.write_bytes(damaged)
        assert docstring_pairs(cache=str(tmp_path / "cache")) == found
        assert file.read_bytes() == whole
    before = file.stat().st_mtime_ns
    assert docstring_pairs(cache=str(tmp_path / "cache")) == found
    assert file.stat().st_mtime_ns == before
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


def pair(docstring: str):
    return question_and_answer(inspect.cleandoc(docstring))


def test_the_summary_sentence_asks_and_all_that_follows_answers():
    found = pair(
        """Return the mean of some
        numbers. They may be
        anything, e.g. Zero.

        Args:
          x: the numbers.
        """
    )
    assert found == ("Return the mean of some numbers.", "They may be anything, e.g. Zero. Args: x: the numbers.")
    found = pair(f"Return numbers, e.g. The Fibonacci ones, above 1.5 only. {REST}")
    assert found == ("Return numbers, e.g. The Fibonacci ones, above 1.5 only.", REST)


@pytest.mark.parametrize(
    ("summary", "why"),
    [
        ("Return the mean", "no full stop"),
        ("Return means quickly.", "three words"),
        (" ".join(["Return", *["very"] * 39, "much."]), "41 words"),
        ("return the mean of numbers.", "no capital"),
        ("Return x -> y of all numbers.", "a signature"),
        ("Mean(x, y) of a few numbers.", "a call"),
        ("Return the sum x_1 x_2 x_3.", "half of the words are symbols"),
        ("Further words that say how it is done, with eight or more.", "repeated in the rest"),
        ("Return the %(kind)s mean of numbers.", "a template"),
    ],
)
def test_unsuitable_questions_are_dropped(summary, why):
    assert pair(f"{summary}\n\n{REST}") is None, why


def test_code_directives_and_their_sections_are_dropped():
    found = pair(
        """Return the mean of some numbers.

        First prose that is kept. So is this::

            dropped = code

        .. note::
            Dropped as well.

            With its second paragraph.

        Args:
          x: an argument.

            >>> mean(2)
            2

        Example ::

          dropped(x)

        ```python
        dropped
        ```

        Returns
        -------
        y : float

        Examples
        --------
        Dropped to the next heading.

        Notes
        -----
        Kept notes.

        References
        ----------
        .. [1] Dropped.
        """
    )
    assert found is not None
    assert found[1] == "First prose that is kept. So is this Args: x: an argument. Returns y : float Notes Kept notes."


def test_markup_gives_way_to_its_text():
    found = pair(
        """Return the :class:`~a.b.Mean` of ``x``.

        See :func:`the mean <a.mean>`, `a link <https://a>`_, [`~c.D`], [`e`](f), [text](https://b) and [1]_.
        :param x: *some* **strong** words, *args, **kwargs
        > [!TIP]
        > Quoted, :math:`k < n`.
        """
    )
    words = "x: some strong words, *args, **kwargs Quoted, k < n."
    assert found == ("Return the a.b.Mean of x.", f"See the mean, a link, c.D, e, text and [1]. {words}")
