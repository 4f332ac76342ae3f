"""`endx export`: writes a model for sentence-transformers or as StableHLO programs."""

from typing import Literal

from etils import epath

from endx_jax.cli.parser import main_of
from endx_jax.export.runtimes import check_runtime
from endx_jax.settings import require


def write_export(
    *,
    workdir: epath.Path | None = None,
    model: str = "",
    format: Literal["sentence-transformers", "stablehlo"] = "sentence-transformers",
    output: epath.Path,
    verify: bool = False,
    tolerance: float = 1e-5,
    truncate_dim: int | None = None,
) -> None:
    """Writes an export, and logs its place and how it was verified.

    Args:
      workdir: workdir of a run, whose model is used
      model: pretrained folder or name
      format: format of the export
      output: folder to write; an older export is replaced
      verify: encode a few hundred texts with the export, by the library it is for, and compare with the model
      tolerance: largest difference that --verify allows [1e-5]
      truncate_dim: keep the first N dimensions by default, for a model trained with objective.matryoshka_dims [all]
    """
    require(bool(workdir) != bool(model), "nothing to export: set one of --workdir=RUN and --model=NAME")
    if verify:
        check_runtime(format)  # before the model is loaded

    from endx_jax.export.run import export
    from endx_jax.inference import load
    from endx_jax.parallel.console import say
    from endx_jax.parallel.environment import keep_programs

    keep_programs()
    report = export(load(workdir or model), format, output, tolerance if verify else None, truncate_dim=truncate_dim)
    say(f"{report.model} is in {output}, as {report.format}; README.md there says how to use it")
    if report.passed:
        differences = ", ".join(f"{value:.2g} ({side})" for side, value in report.largest_difference.items())
        say(f"verified: over {report.texts} texts the largest difference is {differences}; tolerance {tolerance:g}")


main = main_of(__doc__, write_export)
