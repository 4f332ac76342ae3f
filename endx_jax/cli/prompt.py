"""The interactive prompt."""

from collections.abc import Callable


def converse(answer: Callable[[str], str]) -> None:
    """Reads questions from the terminal and prints what `answer` says, until the input ends (Ctrl-D).

    Lines can be edited and recalled as in a shell. Empty ones are passed over.
    """
    import readline  # noqa: F401  # that it is imported is what lets `input` edit lines

    while True:
        try:
            question = input("? ").strip()
        except EOFError:
            print()
            return
        if question:
            print(answer(question), flush=True)
