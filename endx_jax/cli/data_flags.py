"""Command-line flags for reading a data set."""

import argparse
import dataclasses
from collections.abc import Mapping
from typing import Any

from endx_jax.data.languages import LANGUAGES
from endx_jax.settings import require


def add_data_flags(parser: argparse.ArgumentParser) -> None:
    """Adds flags for the settings of `data` that control how rows are read; the flags have no defaults."""
    from endx_jax.data.settings import DataSettings

    options: dict[str, dict[str, Any]] = {
        "question_column": {"metavar": "NAME"},
        "answer_column": {"metavar": "NAME"},
        "skip_invalid": {"action": "store_true"},
        "language": {"choices": LANGUAGES, "metavar": "NAME"},
    }
    for field in dataclasses.fields(DataSettings):
        if field.name in options:
            about = {"help": field.metadata["doc"], "default": argparse.SUPPRESS, **options[field.name]}
            parser.add_argument(f"--{field.name.replace('_', '-')}", **about)


def add_product_flag(parser: argparse.ArgumentParser) -> None:
    """Adds the flag `--product-dtype` of verbs that encode texts or score pairs; parsing it sets the default."""
    kinds = "float32, bfloat16, or auto, which is bfloat16 if the CPU has instructions for it"
    about = f"data type of products on CPUs: {kinds} [the run's]"
    parser.add_argument("--product-dtype", metavar="NAME", action=_SetProducts, default=argparse.SUPPRESS, help=about)


class _SetProducts(argparse.Action):
    def __call__(self, parser, namespace, values, option_string=None) -> None:
        from endx_jax.models.products import set_product_dtype

        set_product_dtype(values)


def add_corpus_flags(parser: argparse._ActionsContainer) -> None:
    """Adds the flags that select the split and the columns of a corpus."""
    parser.add_argument("--split", help="split of a folder that has several [its only one]")
    parser.add_argument("--text-column", help="text column; answer column, if rows are pairs [text, contents, ...]")
    parser.add_argument("--question-column", help="question column, if rows are pairs [question, query, ...]")
    parser.add_argument("--id-column", help="id column; empty for line numbers [_id, id, pid, docno, doc_id, ...]")
    parser.add_argument("--title-column", help="title column [title]")


def check_reading(reading: Mapping[str, str | None], flag: str, corpus: str) -> None:
    """Raises EndxError if flags of `add_corpus_flags` are given without the corpus of `flag`, which they are for."""
    given = [f"--{name.replace('_', '-')}" for name, value in reading.items() if value is not None]
    require(bool(corpus or not given), f"{', '.join(given)}: set {flag}=FILE, the corpus that is read so")
