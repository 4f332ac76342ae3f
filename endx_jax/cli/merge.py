"""`endx merge`: averages the parameters of models of one architecture."""

from etils import epath

from endx_jax.cli.parser import main_of


def merge(models: list[str], output: epath.Path, weights: list[float] | None = None) -> None:
    """Writes a model folder with the mean parameters.

    Args:
      models: workdir of a run; the second and later ones may be any model, such as the pretrained one of the run
      output: model folder to write
      weights: weight of each model [equal weights]
    """
    from endx_jax.inference.merging import merge_models
    from endx_jax.parallel.console import say

    merge_models(models, output, weights or ())
    say(f"{output} holds the mean of {len(models)} models; use it as --model={output}")


main = main_of(__doc__, merge, positional=["models"], models={"metavar": "MODEL"})
