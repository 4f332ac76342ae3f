"""Command-line flags for reading a data set, and error messages that name these flags instead of settings."""

import argparse
import contextlib
import dataclasses
import re
from collections.abc import Iterator

from endx_jax.data.settings import DataSettings
from endx_jax.errors import EndxError

# Flags by the corresponding setting in `data`.
FLAGS = {
    "path": "--data",
    "pool": "--pool",
    "split": "--split",
    "test_split": "--split",
    "question_column": "--question-column",
    "answer_column": "--answer-column",
    "skip_invalid": "--skip-invalid",
}
_SETTING = re.compile(rf"\bdata\.({'|'.join(FLAGS)})\b(?:=True)?")


def add_data_flags(parser: argparse.ArgumentParser, *, split: str) -> None:
    """Adds the flags for reading a data set, except `--data` and `--pool`; `split` is the default of `--split`."""
    parser.add_argument("--split", default=split, help=f"split of a BEIR, MS MARCO or save_to_disk folder [{split}]")
    parser.add_argument("--question-column", default="question", help="column of questions [question]")
    parser.add_argument("--answer-column", default="answer", help="column of answers [answer]")
    parser.add_argument("--skip-invalid", action="store_true", help="skip invalid rows and log their number")


def with_data_flags(settings: DataSettings, arguments: argparse.Namespace) -> DataSettings:
    """Returns settings with the columns and `skip_invalid` of the flags."""
    return dataclasses.replace(
        settings,
        question_column=arguments.question_column,
        answer_column=arguments.answer_column,
        skip_invalid=arguments.skip_invalid,
    )


@contextlib.contextmanager
def naming_flags() -> Iterator[None]:
    """Replaces settings by flags in an EndxError of the block, such as `data.pool` by `--pool`."""
    try:
        yield
    except EndxError as failure:
        raise EndxError(_SETTING.sub(lambda found: FLAGS[found[1]], str(failure))) from None
