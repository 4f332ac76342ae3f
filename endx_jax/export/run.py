"""Export of a model: writes it to a temporary folder, optionally verifies it, and moves it into place."""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Mapping

import endx_jax
from endx_jax.errors import EndxError
from endx_jax.experiment.model_card import Subject, card_text
from endx_jax.experiment.workdir import check_output
from endx_jax.export import sentence_transformers, stablehlo
from endx_jax.export.runtimes import check_runtime
from endx_jax.export.towers import one_tower, plain, write_json
from endx_jax.export.verify import REPORT, Report, verify
from endx_jax.files import expanded, replace_folder, staging_folder, write_text
from endx_jax.inference import EmbeddingModel
from endx_jax.settings import check_range, require
from endx_jax.uploads import uploads

FORMATS: Mapping[str, Callable[[pathlib.Path, EmbeddingModel], None]] = {
    sentence_transformers.NAME: sentence_transformers.write_sentence_transformers,
    stablehlo.STABLEHLO: stablehlo.write_stablehlo,
}


@uploads()
def export(
    model: EmbeddingModel,
    kind: str,
    output: str | os.PathLike,
    tolerance: float | None = None,
    *,
    truncate_dim: int | None = None,
) -> Report:
    """Exports a model.

    Args:
      model: model returned by `endx_jax.load`.
      kind: export format, a name in `FORMATS`.
      output: output folder, which may be in a bucket; an older export in it is replaced.
      tolerance: maximum absolute difference of any number in an embedding of the export; None skips verification,
        which compares whole embeddings.
      truncate_dim: number of leading dimensions that the export keeps by default; None for all.

    Returns:
      The contents of `export_report.json`.

    Raises:
      EndxError: the format does not support the model, the folder contains other files, or verification fails. An
        export that fails is kept in `OUTPUT.failed`, unless OUTPUT is in a bucket.
    """
    output = expanded(output)
    check_output(output, REPORT, "export")
    check_output(_failed(output), REPORT, "export")
    if tolerance is not None:
        check_runtime(kind)
    exported = plain(model)
    if truncate_dim is not None:
        require(not model.by_token, "--truncate-dim needs a model with one vector for each text")
        require(
            kind == sentence_transformers.NAME,
            f"--truncate-dim needs --format={sentence_transformers.NAME}; truncate embeddings of an export to {kind} "
            "where you use them",
        )
        check_range("--truncate-dim", truncate_dim, 1, exported.width)
    with staging_folder(output) as fresh:
        FORMATS[kind](fresh, exported)
        subject = dataclasses.replace(subject_of(exported, model.name), truncate_dim=truncate_dim)
        write_text(fresh / "README.md", card_text(subject, kind))
        report = Report(kind, exported.name, {"endx_jax": endx_jax.__version__})
        if tolerance is not None:
            report = verify(kind, fresh, exported, tolerance)
        if truncate_dim is not None:
            sentence_transformers.truncate(fresh, truncate_dim)
        write_json(fresh / REPORT, dataclasses.asdict(report))
        replace_folder(fresh, output if report.passed is not False else _failed(output))
    if report.passed is False:
        largest = max(report.largest_difference.values())
        raise EndxError(
            f"the export's embeddings differ from the model's by {largest:.3g}, more than --tolerance={tolerance:g}; "
            f"see {_failed(output)} and its {REPORT}; {output} is unchanged"
        )
    return report


def subject_of(model: EmbeddingModel, loaded_from: str) -> Subject:
    """Returns the description of an exported model for its card; `loaded_from` is a path or name."""
    return Subject(
        name=model.name,
        width=model.width,
        normalize=model.encoder.model.question.normalize,
        cosine=model.cosine,
        one_tower=one_tower(model),
        sides=model.encoder.processors,
        loaded_from=loaded_from,
        workdir=model.source.workdir,
        by_token=model.by_token,
    )


def _failed(output: pathlib.Path) -> pathlib.Path:
    return output.with_name(f"{output.name}.failed")
