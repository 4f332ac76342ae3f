"""Loading and encoding import nothing about training: the modules of the package that they need are counted."""

import json
import subprocess
import sys

ENCODE = """
import json, sys
import endx_jax
endx_jax.load(sys.argv[1]).encode_query("who")
print(json.dumps(sorted(name for name in sys.modules if name.partition(".")[0] == "endx_jax")))
"""
NOT_NEEDED = ("training", "methods", "losses", "experiment", "retrieval", "export", "serving", "cli")


def test_loading_and_encoding_import_at_most_80_modules_and_none_about_training(tiny_bert):
    done = subprocess.run(
        [sys.executable, "-c", ENCODE, str(tiny_bert)], capture_output=True, text=True, timeout=120, check=True
    )
    modules = json.loads(done.stdout)
    assert "endx_jax.models.tower" in modules
    assert [name for name in modules if name.split(".")[1:2] and name.split(".")[1] in NOT_NEEDED] == []
    assert len(modules) <= 80, f"{len(modules)} modules: {modules}"
