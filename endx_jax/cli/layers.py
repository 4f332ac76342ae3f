"""`endx layers`: what each layer of a model retrieves when its token vectors are pooled, and the best mixture."""

import argparse
import pathlib


def main(argv: list[str]) -> None:
    """Runs the verb with the arguments of the command line."""
    arguments = _parser().parse_args(argv)

    from endx_jax.data.settings import PARAGRAPHS, DataSettings
    from endx_jax.errors import EndxError
    from endx_jax.experiment import workdir as workdirs
    from endx_jax.experiment.compilation_cache import keep_programs
    from endx_jax.experiment.console import say
    from endx_jax.experiment.layer_report import Report, read_sets
    from endx_jax.reproduction.layered import pooled_layers

    if not 0 < arguments.step <= 1:
        raise EndxError(f"--step={arguments.step} is no step of weights that sum to one: give one above 0, up to 1")
    pool = arguments.pool if arguments.pool is not None else PARAGRAPHS
    settings = DataSettings(path=arguments.data, pool=pool, validation_fraction=0.1, cache=arguments.cache)
    sets = read_sets(settings, most=arguments.chosen_by)
    if arguments.write_texts:
        from endx_jax.experiment.layer_files import write_texts

        say(f"{write_texts(arguments.write_texts, sets):,} texts are in {arguments.write_texts}, tokens between spaces")
        return
    name = pathlib.Path(arguments.model).name
    output = arguments.output or pathlib.Path("runs") / name / "layers"
    workdirs.check_writable(output, "--output")
    keep_programs()
    for part, records in sets.items():
        say(f"{part}: {len(records.questions):,} questions, {len(records.candidates):,} candidates of {arguments.data}")
    names, pooled = pooled_layers(
        arguments.model, sets, cache=arguments.cache, length=arguments.length, token_table=arguments.token_table
    )
    report = Report(arguments.model, names, pooled, parts=round(1 / arguments.step))
    report.write(output)
    say(f"\n{report.tables()}\n\neverything is in {output}")


def _parser() -> argparse.ArgumentParser:
    from endx_jax.data.settings import POOLS, DataSettings

    parser = argparse.ArgumentParser(prog="endx layers", description=__doc__.partition(": ")[2])
    parser.add_argument(
        "--model",
        required=True,
        help="a pretrained folder or name, a file of word vectors, the workdir of a run, or an .hdf5 or .npy file of "
        "each token's vectors in each layer, as AllenNLP writes ELMo's",
    )
    parser.add_argument("--data", required=True, help="a folder of SQuAD's train and dev files, or what a reader knows")
    parser.add_argument("--pool", choices=("", *POOLS), help="of SQuAD-format data [paragraphs]")
    parser.add_argument(
        "--chosen-by", type=int, default=2000, help="held-out questions by which the mixture is chosen [2000]"
    )
    parser.add_argument("--step", type=float, default=0.25, help="of the weights that are tried [0.25]")
    parser.add_argument("--output", type=pathlib.Path, help="folder to write into [runs/MODEL/layers]")
    parser.add_argument(
        "--cache", default=DataSettings.cache, help=f"folder for the pooled vectors [{DataSettings.cache}]"
    )
    parser.add_argument("--token-table", action="store_true", help="the token table alone, in seconds")
    parser.add_argument("--length", type=int, help="tokens a text is cut to [the model's; a token table's: 512]")
    parser.add_argument(
        "--write-texts", type=pathlib.Path, metavar="FILE", help="write the texts to make such a file of, and stop"
    )
    return parser
