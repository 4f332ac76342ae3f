"""A sentence-transformers folder of two routes around tiny encoders, as tests want it."""

import json
import pathlib
from collections.abc import Sequence

import numpy as np
from tiny_bert import WIDTH, write_tiny_bert

TYPES = "sentence_transformers.models."
DENSE = {"in_features": WIDTH, "bias": False, "activation_function": "torch.nn.modules.linear.Identity"}


def write_routes(
    folder: pathlib.Path, query: Sequence[str], document: Sequence[str], after: Sequence[str] = ()
) -> pathlib.Path:
    """Writes a Router with a route for each task, and the modules after it.

    A module's name begins with its kind: `Transformer-b`, `Pooling-cls`, `Dense-6` (its width), `Normalize`. Equal
    names are one module; other names of a kind are modules of other weights where they differ in length.
    """
    from safetensors.numpy import save_file

    for name in {*query, *document, *after}:
        kind, _, rest = name.partition("-")
        if kind == "Transformer":
            write_tiny_bert(folder / name, seed=len(rest), num_hidden_layers=1)
        else:
            (folder / name).mkdir(parents=True)
        if kind == "Pooling":
            (folder / name / "config.json").write_text(json.dumps({"pooling_mode": rest or "mean"}))
        if kind == "Dense":
            width = int(rest.partition("-")[0])
            (folder / name / "config.json").write_text(json.dumps(DENSE | {"out_features": width}))
            weight = np.random.default_rng(len(rest)).normal(size=(width, WIDTH)).astype(np.float32)
            save_file({"linear.weight": weight}, folder / name / "model.safetensors")
    modules = [("Router", ""), *((name.partition("-")[0], name) for name in after)]
    (folder / "modules.json").write_text(json.dumps([{"type": TYPES + kind, "path": path} for kind, path in modules]))
    types = {name: TYPES + name.partition("-")[0] for name in (*query, *document)}
    router = {"types": types, "structure": {"query": query, "document": document}, "parameters": {}}
    (folder / "router_config.json").write_text(json.dumps(router))
    return folder
