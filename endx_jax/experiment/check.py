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
    from endx_jax.errors import EndxError
    from endx_jax.experiment.data import renaming, rows_of
    from endx_jax.experiment.data_check import check_data

    with tempfile.TemporaryDirectory() as folder:
        paths, written = dict[str, str](), dict[str, str]()
        for setting, name, value in (("path", "pairs", pairs), ("test_path", "test", test)):
            if not (value is None or isinstance(value, str | os.PathLike)):
                file = pathlib.Path(folder) / f"{name}.jsonl"
                file.write_text(rows_of(value, name), encoding="utf-8")
                value, written[setting] = file, name
            paths[setting] = os.fspath(value or "")
        settings = DataSettings(path=paths["path"], test_path=paths["test_path"], split=split, **reading)
        try:
            return check_data(settings, model, in_memory=written, default=MODEL)
        except EndxError as failure:
            for setting, name in written.items():
                failure.rename(renaming(paths[setting], name))
            raise
