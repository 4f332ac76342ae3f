"""A sentence-transformers folder of two routes around tiny encoders, as tests want it."""

import pathlib
from collections.abc import Sequence

import numpy as np
from helpers import write_files
from tiny_bert import WIDTH, write_tiny_bert

TYPES = "sentence_transformers.models."
DENSE = {"in_features": WIDTH, "bias": False, "activation_function": "torch.nn.modules.linear.Identity"}


def modules(*names: str, **more) -> list[dict]:
    """Returns the entries of `modules.json`; a folder's name begins with the kind of its module, as `Dense-b`."""
    return [{"path": name, "type": TYPES + name.partition("-")[0], **more} for name in names]


def write_routes(
    folder: pathlib.Path, query: Sequence[str], document: Sequence[str], after: Sequence[str] = ()
) -> pathlib.Path:
    """Writes a Router with a route for each task, and the modules after it.

    A module's name begins with its kind: `Transformer-b`, `Pooling-cls`, `Dense-6` (its width), `Dense-6-tanh`,
    `Dense-6-bias`, `Normalize`. Equal names are one module; other names of a kind are modules of other weights where
    they differ in length.
    """
    for name in {*query, *document, *after}:
        kind, _, rest = name.partition("-")
        if kind == "Transformer":
            write_tiny_bert(folder / name, seed=len(rest), num_hidden_layers=1)
        else:
            (folder / name).mkdir(parents=True)
        if kind == "Pooling":
            write_files(folder / name, {"config.json": {"pooling_mode": rest or "mean"}})
        if kind == "Dense":
            width = int(rest.partition("-")[0])
            weight = np.random.default_rng(len(rest)).normal(size=(width, WIDTH)).astype(np.float32)
            tensors, config = {"linear.weight": weight}, DENSE | {"out_features": width}
            if rest.endswith("tanh"):
                config["activation_function"] = "torch.nn.modules.activation.Tanh"
            if rest.endswith("bias"):
                tensors["linear.bias"], config["bias"] = weight[:, 0], True
            write_files(folder / name, {"config.json": config, "model.safetensors": tensors})
    listed = [{"type": TYPES + "Router", "path": ""}, *modules(*after)]
    types = {name: TYPES + name.partition("-")[0] for name in (*query, *document)}
    router = {"types": types, "structure": {"query": query, "document": document}, "parameters": {}}
    return write_files(folder, {"modules.json": listed, "router_config.json": router})
