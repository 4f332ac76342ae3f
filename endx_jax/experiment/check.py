"""Check of training data before training, in memory or on disk (`endx_jax.check`)."""

import os
import pathlib
import tempfile
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

# What computes is imported when a check begins, so that `endx check --help` answers at once.
if TYPE_CHECKING:
    from endx_jax.experiment.data_check import DataCheck

MODEL = "all-MiniLM-L6-v2"


def check(
    pairs: Iterable[Any] | str | os.PathLike,
    test: Iterable[Any] | str | os.PathLike | None = None,
    *,
    model: str | os.PathLike = MODEL,
    split: str = "train",
    **reading: Any,
) -> "DataCheck":
    """Checks training data, on disk or in memory, before training.

    Args:
      pairs: file or folder of any supported format; in Python also pairs in memory, as for `endx_jax.train`.
      test: test data, whose questions must not be in the training data [a share of the latter].
      model: pretrained folder or name of the model to train.
      split: split of a BEIR, MS MARCO or save_to_disk folder.
      **reading: `question_column`, `answer_column`, `skip_invalid` and `language`, as the settings of `data`.

    Raises:
      EndxError: the data or the model can't be read.
    """
    from endx_jax.data.settings import DataSettings
    from endx_jax.experiment.data import rows_of
    from endx_jax.experiment.data_check import check_data

    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for name, value in (("pairs", pairs), ("test", test)):
            if not (value is None or isinstance(value, str | os.PathLike)):
                file = pathlib.Path(folder) / f"{name}.jsonl"
                file.write_text(rows_of(value), encoding="utf-8")
                value = file
            paths.append(os.fspath(value or ""))
        settings = DataSettings(path=paths[0], test_path=paths[1], split=split, **reading)
        if isinstance(pairs, str | os.PathLike):
            return check_data(settings, model, paths[0], default=MODEL)
        return check_data(settings, model, "pairs in memory", "endx_jax.train(pairs)", default=MODEL)
