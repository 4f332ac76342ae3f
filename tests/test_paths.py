import os
import pathlib

import numpy as np

import endx_jax
from endx_jax.index.corpus_encoding import encode_corpus


def test_functions_take_paths_as_texts_as_path_objects_and_below_home(tiny_bert, pairs_csv, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))

    def below_home(path):
        return f"~/{os.path.relpath(path, tmp_path)}"

    found = {}
    for kind in (str, pathlib.Path, below_home):
        folder = tmp_path / kind.__name__
        folder.mkdir()
        model, data = kind(tiny_bert), kind(pairs_csv)
        index, ranked, mined, by_model = (kind(folder / name) for name in ("index", "ranked", "mined", "by-model"))
        encode_corpus(model, data, index)
        results = endx_jax.evaluate(model, data, output=ranked)
        negatives = endx_jax.mine(data, mined, bm25=True, negatives=1).negatives
        distilled = endx_jax.mine(data, by_model, index=index, model=model, score_with=model, negatives=1).negatives
        found[kind] = [
            results.evaluations["all"][pathlib.Path(tiny_bert).name].metrics,
            endx_jax.evaluate(index=index, data=data).evaluation.metrics,
            negatives,
            distilled,
            [one.document.id for one in endx_jax.open_index(index, model).search("where is the cat 3", 3)],
            np.asarray(endx_jax.load(model).encode_query("where")).tolist(),
            endx_jax.data.read(data).questions,
        ]
    monkeypatch.chdir(tiny_bert)
    assert tiny_bert.name in endx_jax.evaluate(".", pairs_csv).evaluations["all"]
    assert endx_jax.mteb.wrap(endx_jax.load(".")).name == f"endx_jax/{tiny_bert.name}"
    assert found[str] == found[pathlib.Path] == found[below_home]
