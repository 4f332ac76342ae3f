"""Routers: which modules the texts of a side go through."""

import pytest
from tiny_modules import write_files

from endx_jax.pretrained.module_list import Module, read_modules

BASE = "sentence_transformers.base.modules."
TYPES = {"Q": BASE + "transformer.Transformer", "D": BASE + "transformer.Transformer", "P": BASE + "pooling.Pooling"}


def write(
    folder, structure, *, mappings=None, before=(), after=(), name="router_config.json", types=TYPES, kind="Router"
):
    """A folder whose modules are those of `before`, a Router with this structure in `routes`, and those of `after`."""
    modules = [*before, (kind, "routes"), *after]
    listed = [{"idx": i, "type": f"{BASE}x.{k}", "path": path} for i, (k, path) in enumerate(modules)]
    parameters = {"default_route": "document", "allow_empty_key": True}
    if mappings is not None:
        parameters["route_mappings"] = {str(key): route for key, route in mappings.items()}
    contents = {"types": types, "structure": structure, "parameters": parameters}
    write_files(folder, {"modules.json": listed, f"routes/{name}": contents})


def test_the_modules_of_a_route_stand_where_the_router_does(tmp_path):
    write(tmp_path, {"query": ["Q", "P"], "document": ["D"]}, after=[("Dense", "1_Dense")])
    routes = tmp_path / "routes"
    assert read_modules(tmp_path, "question") == [
        Module("Transformer", routes / "Q"),
        Module("Pooling", routes / "P"),
        Module("Dense", tmp_path / "1_Dense"),
    ]
    assert read_modules(tmp_path, "answer") == [
        Module("Transformer", routes / "D"),
        Module("Dense", tmp_path / "1_Dense"),
    ]


@pytest.mark.parametrize("kind", ["Router", "Asym"])
def test_a_router_may_stand_later_and_be_called_as_it_once_was(tmp_path, kind):
    write(tmp_path, {"query": ["P"], "document": []}, before=[("Transformer", "")], name="config.json", kind=kind)
    assert [module.kind for module in read_modules(tmp_path, "question")] == ["Transformer", "Pooling"]
    assert [module.kind for module in read_modules(tmp_path, "answer")] == ["Transformer"]


@pytest.mark.parametrize(
    ("mappings", "question", "answer"),
    [
        ({}, "query", "document"),
        ({("query", "text"): "a", ("query", None): "b"}, "a", "document"),
        ({("query", None): "a", (None, "text"): "b"}, "a", "b"),
        ({(None, "image"): "a", (None, ("image", "text")): "b"}, "query", "document"),
        ({(None, "image"): "a", (None, None): "b"}, "b", "b"),
    ],
)
def test_routes_are_found_in_the_order_of_sentence_transformers(tmp_path, mappings, question, answer):
    routes = {name: [name] for name in ("query", "document", "a", "b")}
    write(tmp_path, routes, mappings=mappings, types=dict.fromkeys(routes, BASE + "x.Transformer"))
    for side, route in (("question", question), ("answer", answer)):
        assert read_modules(tmp_path, side) == [Module("Transformer", tmp_path / "routes" / route)]


def test_a_router_by_modality_has_one_route_for_both_sides(tmp_path):
    write(tmp_path, {"image": ["D"], "text": ["Q", "P"]})
    for side in ("question", "answer"):
        assert [module.folder.name for module in read_modules(tmp_path, side)] == ["Q", "P"]
