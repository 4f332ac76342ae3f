import ast
import collections
import pathlib

import endx_jax

PACKAGE = pathlib.Path(endx_jax.__file__).parent
# Files that may repeat names: packages' functions that call others of the same name, and scripts that exports contain.
OTHERS = ("__init__.py", "export/scripts/encode_elsewhere.py", "export/scripts/encode_with_jax.py")
# What every verb's file has.
SHARED = {"main"}


def test_each_public_function_and_class_has_a_name_of_its_own():
    files = collections.defaultdict(list)
    for file in sorted(PACKAGE.rglob("*.py")):
        name = str(file.relative_to(PACKAGE))
        for node in ast.parse(file.read_text(encoding="utf-8")).body if name not in OTHERS else ():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith(
                "_"
            ):
                files[node.name].append(name)
    assert len(files) > 1000
    assert {name: where for name, where in files.items() if len(where) > 1 and name not in SHARED} == {}
