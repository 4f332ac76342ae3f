"""`endx prepare`: downloads and converts a data set, and prints its counts and folder; or tokenizes a run's data.

With --config=CONFIG and the settings of a run, as for `endx train`, the training pairs are tokenized into the folder
`data.tokens`, for which no accelerator is needed.
"""

import pathlib
import sys

from endx_jax.cli.parser import parser_of
from endx_jax.errors import counted
from endx_jax.settings import require


def main(argv: list[str]) -> None:
    """Runs the verb with the arguments of the command line."""
    if any(argument.lstrip("-").startswith("config") for argument in argv):
        _tokenize(argv)
    else:
        convert(**vars(parser_of(__doc__, convert, positional=["name"]).parse_args(argv)))


def convert(name: str, *, source: pathlib.Path | None = None, data_dir: pathlib.Path | None = None) -> None:
    """Prepares a data set, unless it exists already, and prints its counts.

    Args:
      name: reqa/squad, nq, hotpotqa, newsqa, triviaqa or searchqa, or multireqa/squad, nq, hotpotqa, triviaqa or
        searchqa (questions and all sentences of their contexts)
      source: folder with the published files, plain or .gz [download them]
      data_dir: folder of prepared sets [TFDS_DATA_DIR, or ~/tensorflow_datasets]
    """
    from endx_jax.data.formats.reqa_dataset import prepare, summary

    folder = prepare(name, source=source, data_dir=data_dir, progress=sys.stderr.isatty())
    print(f"{name} is in {folder}\n")
    print(_table(summary(name, data_dir=data_dir)))
    environment = f"TFDS_DATA_DIR={data_dir} in the environment and " if data_dir else ""
    pool = "sentences" if name.startswith("multireqa/") else "answers"
    print(f"\nTrain on it with {environment}--config.data.path={name} --config.data.pool={pool}")


def _tokenize(argv: list[str]) -> None:
    """Writes the training pairs of a config into `data.tokens`."""
    from endx_jax.cli.train import parse_arguments
    from endx_jax.data.sources import read_splits
    from endx_jax.experiment.config import resolve
    from endx_jax.experiment.model import build_model
    from endx_jax.experiment.tokens import stored

    config, _, _ = parse_arguments(argv)
    settings = resolve(config)
    require(bool(settings.data.tokens), "data.tokens is not set: name the folder to write")
    pairs = stored(settings.data, build_model(settings).processors, read_splits(settings.data)).pairs()
    texts = f"{counted(len(pairs.questions), 'question')}, {counted(len(pairs.answers), 'answer')}"
    print(f"{settings.data.tokens} holds {counted(len(pairs), 'pair')} of {texts}")


def _table(summary: dict[str, dict]) -> str:
    """Formats counts by split, and notes about excluded answers and splits that are not from the published files."""
    # Counts as in papers: unique questions, unique answer sentences, all unique sentences, pairs of a question and an
    # answer sentence, and these pairs after equal questions are merged.
    columns = ("questions", "answers", "candidates", "rows", "pairs")
    lines = [f"{'split':<12}" + "".join(f"{column:>12}" for column in columns)]
    notes = []
    for split, counts in summary.items():
        lines.append(f"{split:<12}" + "".join(f"{counts[column]:>12,}" for column in columns))
        if counts["unplaced_answers"]:
            notes.append(
                f"{split}: excluded {counted(counts['unplaced_answers'], 'answer')} starting between sentences, and "
                f"{counted(counts['unplaced_questions'], 'question')} without other answers"
            )
        if not counts["published"]:
            notes.append(f"{split}: not from the published files; sha256 of the text {counts['sha256'][:12]}...")
    return "\n".join(lines + notes)
