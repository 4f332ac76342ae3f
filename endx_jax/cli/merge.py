"""`endx merge`: averages the parameters of models of one architecture."""

import pathlib

from endx_jax.cli.parser import main_of
from endx_jax.settings import require


def merge(models: list[str], output: pathlib.Path, weights: list[float] | None = None) -> None:
    """Writes a model folder with the mean parameters.

    Args:
      models: workdir of a run; the second and later ones may be any model, such as the pretrained one of the run
      output: model folder to write
      weights: weight of each model [equal weights]
    """
    from endx_jax.experiment.workdir import saved_system
    from endx_jax.inference.merging import merge_models
    from endx_jax.parallel.console import say

    for model in models:
        require(
            saved_system(model) == "trained",
            f"{model} holds the model before training, since search was better by it: name other models",
        )
    merge_models(models, output, weights or ())
    say(f"{output} holds the mean of {len(models)} models; use it as --model={output}")


main = main_of(__doc__, merge, positional=["models"], models={"metavar": "MODEL"})
