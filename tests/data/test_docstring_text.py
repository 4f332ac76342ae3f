import inspect

import pytest

from endx_jax.data.docstring_text import question_and_answer

REST = "Further words that say how it is done, with eight or more."


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


def test_a_sentence_does_not_end_in_an_abbreviation_or_a_number():
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
def test_what_is_no_good_question_is_refused(summary, why):
    assert pair(f"{summary}\n\n{REST}") is None, why


def test_a_question_of_forty_words_and_an_answer_of_eight_are_good_and_seven_are_not():
    question = " ".join(["Return", *["very"] * 38, "much."])
    assert pair(f"{question}\n\none two three four five six seven eight") is not None
    assert pair(f"{question}\n\none two three four five six seven") is None


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
    assert found[1] == (
        "First prose that is kept. So is this Args: x: an argument. Returns y : float Notes Kept notes."
    )


def test_markup_gives_way_to_its_text():
    found = pair(
        """Return the :class:`~a.b.Mean` of ``x``.

        See :func:`the mean <a.mean>`, `a link <https://a>`_, [`~c.D`], [`e`](f), [text](https://b) and [1]_.
        :param x: *some* **strong** words, *args, **kwargs
        > [!TIP]
        > Quoted, :math:`k < n`.
        """
    )
    assert found == (
        "Return the a.b.Mean of x.",
        "See the mean, a link, c.D, e, text and [1]. x: some strong words, *args, **kwargs Quoted, k < n.",
    )
