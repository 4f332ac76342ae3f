"""Final settings of a run: everything that its config leaves open, replaced once by what the run chooses.

What is chosen for the devices at hand stays open in the settings, so that a run resumes and a model is loaded on other
devices: the data type `model.dtype=auto` is a part of the towers, and `model.remat=auto` and `train.tower_chunk=-1` are
the choice of a `TrainPlan`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from endx_jax.data.batches.token_tables import Counts
from endx_jax.experiment.config import Settings
from endx_jax.experiment.workdir import CONFIG, Folder, read_config
from endx_jax.models.products import AUTO, chosen_product_dtype
from endx_jax.parallel.agreement import broadcast
from endx_jax.pretrained import PretrainedEncoder
from endx_jax.pretrained.settings import NO_PROMPT, ModelSettings
from endx_jax.pretrained.towers import fill_in_both


def finalize(
    settings: Settings,
    sources: Mapping[str, PretrainedEncoder],
    counts: Counts | None = None,
    workdir: Folder | None = None,
) -> Settings:
    """Returns the settings with all that they leave open chosen, as `config.json` records them.

    | left open | chosen by |
    |---|---|
    | pooling, projection, dropout, prompts | the pretrained folder; dropout that of the questions |
    | `model.product_dtype=auto` | the run, if it has begun, else the CPU of process 0 |
    | `data.hard_negatives`, batch size, epochs, temperature of a teacher's scores | the training data |

    Args:
      settings: settings of the config.
      sources: pretrained encoders by side.
      counts: sizes of the training data; None leaves open what depends on it.
      workdir: the run's folder; None for a run without one.

    Raises:
      EndxError: the method can't train such towers, or the folders of the sides differ in what is left open.
    """

    def product_dtype() -> str:
        if workdir is not None and (workdir / CONFIG).exists():  # perhaps on another CPU
            return read_config(workdir).model.product_dtype
        return chosen_product_dtype(AUTO)

    model, data, train, objective = settings.model, settings.data, settings.train, settings.objective
    model = fill_in_both(model, sources)
    chosen: dict[str, Any] = {f"{side}_prompt": prompt for side, prompt in prompts(settings.model, sources).items()}
    if model.product_dtype == AUTO and counts is not None:
        chosen["product_dtype"] = broadcast(product_dtype, "product-dtype")
    model = dataclasses.replace(model, **chosen)
    objective.check_model(model)
    if counts is not None:
        if data.hard_negatives < 0:
            drawn = counts.hard_negatives > 0 and not data.pool and objective.takes_hard_negatives
            data = dataclasses.replace(data, hard_negatives=int(drawn))
        train = train.sized(min(counts.pairs, data.max_train_pairs or counts.pairs))
        objective = objective.fitted(counts)
    return dataclasses.replace(settings, model=model, data=data, train=train, objective=objective)


def prompts(settings: ModelSettings, sources: Mapping[str, PretrainedEncoder]) -> dict[str, str]:
    """Returns the prompt of each side: an empty setting means that of the folder, and `none` no prompt.

    New encoders have no prompts of their own.
    """
    chosen = {}
    for side, source in sources.items():
        prompt = getattr(settings, f"{side}_prompt") or ("" if settings.encoder else source.usage.prompt(side))
        chosen[side] = "" if prompt == NO_PROMPT else prompt
    return chosen
