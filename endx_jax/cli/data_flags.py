"""Command-line flags for reading a data set, and error messages that name these flags instead of settings."""

import argparse
import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping

from endx_jax.data.languages import LANGUAGES
from endx_jax.data.settings import DataSettings
from endx_jax.errors import EndxError

# Flags by the corresponding setting.
FLAGS = {
    "data.path": "--data",
    "data.pool": "--pool",
    "data.split": "--split",
    "data.test_split": "--split",
    "data.question_column": "--question-column",
    "data.answer_column": "--answer-column",
    "data.skip_invalid=True": "--skip-invalid",
    "data.skip_invalid": "--skip-invalid",
    "data.language": "--language",
}


def add_data_flags(parser: argparse.ArgumentParser, *, split: str) -> None:
    """Adds the flags for reading a data set, except `--data` and `--pool`; `split` is the default of `--split`."""
    parser.add_argument("--split", default=split, help=f"split of a BEIR, MS MARCO or save_to_disk folder [{split}]")
    parser.add_argument("--question-column", default="question", help="column of questions [question]")
    parser.add_argument("--answer-column", default="answer", help="column of answers [answer]")
    parser.add_argument("--skip-invalid", action="store_true", help="skip invalid rows and log their number")
    add_language_flag(parser)


def add_language_flag(parser: argparse.ArgumentParser) -> None:
    """Adds the flag `--language`."""
    parser.add_argument(
        "--language", choices=LANGUAGES, default="", metavar="NAME", help="language of the texts, for BM25 [detected]"
    )


def with_data_flags(settings: DataSettings, arguments: argparse.Namespace) -> DataSettings:
    """Returns settings with the columns and `skip_invalid` of the flags."""
    return dataclasses.replace(
        settings,
        question_column=arguments.question_column,
        answer_column=arguments.answer_column,
        skip_invalid=arguments.skip_invalid,
        language=arguments.language or settings.language,
    )


@contextlib.contextmanager
def naming_flags(flags: Mapping[str, str] = FLAGS) -> Iterator[None]:
    """Replaces settings by flags in an EndxError of the block, such as `data.pool` by `--pool`."""
    try:
        yield
    except EndxError as failure:
        setting = rf"(?<![\w./-])({'|'.join(map(re.escape, flags))})(?!\w|\.\w)"
        failure.args = (re.sub(setting, lambda found: flags[found[1]], str(failure)),)
        raise
