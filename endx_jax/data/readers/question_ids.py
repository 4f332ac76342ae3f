"""That an id stands for one question."""

from endx_jax.errors import EndxError


class QuestionIds:
    """The ids of a data set's questions, as they are read."""

    def __init__(self):
        self._texts: dict[str, str] = {}

    def add(self, name: str, text: str, where: str) -> None:
        """Takes the id of a question; `where` names its place.

        Raises:
          EndxError: it has stood for another text before.
        """
        if self._texts.setdefault(name, text) != text:
            raise EndxError(f"{where}: id {name!r} stands for two questions, {self._texts[name]!r} and {text!r}")
