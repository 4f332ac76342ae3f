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
    names, pooled = _pooled(arguments, sets)
    report = Report(arguments.model, names, pooled, parts=round(1 / arguments.step))
    report.write(output)
    say(f"\n{report.tables()}\n\neverything is in {output}")


def _pooled(arguments: argparse.Namespace, sets):
    """The layers' names, and every text of the sets pooled in each of them."""
    from endx_jax.experiment.layer_files import pool_file
    from endx_jax.experiment.layers import pool_model
    from endx_jax.pretrained.token_vectors import is_token_vectors

    file = pathlib.Path(arguments.model).expanduser()
    if is_token_vectors(file):
        return pool_file(file, sets)

    from endx_jax.retrieval.vector_cache import VectorCache

    towers, params, preparations = (_token_table if arguments.token_table else _whole)(arguments.model)
    cache = VectorCache(arguments.cache) if arguments.cache else None
    return pool_model(towers, params, preparations, sets, cache, length=arguments.length)


def _whole(name: str):
    """Towers, parameters and preparations of a model."""
    from endx_jax.export.towers import Towers
    from endx_jax.loading import load

    towers = Towers.of(load(name))
    return towers.dual_encoder, towers.params, towers.preparations


def _token_table(name: str):
    """The same of a pretrained model's token table alone."""
    from endx_jax.data.tokenization import Preparation, Tokenizer
    from endx_jax.loading.folder import LONGEST
    from endx_jax.models.dual_encoder import SIDES
    from endx_jax.pretrained import load_tokens
    from endx_jax.pretrained.finished import token_table_towers

    tokens = load_tokens(name)
    return *token_table_towers(tokens), dict.fromkeys(SIDES, Preparation(Tokenizer(tokens.folder), LONGEST))


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
