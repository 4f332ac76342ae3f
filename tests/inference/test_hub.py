"""Models by their id on the hub, which here is a server on this machine."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from fake_hub import FakeHub
from tiny_modules import write_routes

import endx_jax

TEXTS = ["the cat sat", "who"]
PROGRAM = """
import json, sys, endx_jax
model = endx_jax.load("some/model")
print(json.dumps([model.encode_query(sys.argv[1:]).tolist(), model.encode_document(sys.argv[1:]).tolist()]))
"""


@pytest.mark.slow
def test_a_model_of_two_towers_is_downloaded_with_all_its_folders(tmp_path):
    modules = ["Dense-6", "Normalize"]
    published = write_routes(
        tmp_path / "published", ["Transformer", "Pooling"], ["Transformer-b", "Pooling-cls"], modules
    )
    (published / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"query": "who: "}}))
    (published / "pytorch_model.bin").write_bytes(b"the same weights again")
    with FakeHub("some/model", published) as hub:
        # In a process of its own, as the hub's address is read when its client is imported.
        settings = {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
        environment = os.environ | settings | {"JAX_PLATFORMS": "cpu"}
        command = [sys.executable, "-c", PROGRAM, *TEXTS]
        found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == 0, found.stderr
    here = endx_jax.load(published)
    query, document = json.loads(found.stdout)
    np.testing.assert_allclose(query, here.encode_query(TEXTS), atol=1e-5)
    np.testing.assert_allclose(document, here.encode_document(TEXTS), atol=1e-5)
    fetched = {path for path in hub.fetched if path.count("/") == 1}
    assert {"Transformer-b/model.safetensors", "Dense-6/model.safetensors", "Pooling-cls/config.json"} <= fetched
    assert "pytorch_model.bin" not in hub.fetched
