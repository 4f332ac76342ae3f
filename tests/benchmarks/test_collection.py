import json

import numpy as np
import pytest

from endx_jax.data.corpus import read_corpus
from endx_jax.data.readers import read


def test_a_collection_as_ms_marco_has_it(script, tmp_path):
    collection = script("collection")
    options = collection.argparse.Namespace(passages=30, questions=5, seed=0)
    collection.make(tmp_path / "made", options)
    documents = list(read_corpus(tmp_path / "made"))
    assert len({document.text for document in documents}) == 30
    assert all(20 <= len(document.text.split()) <= 80 for document in documents)
    records = read(tmp_path / "made", split="dev")
    assert len(records.questions) == 5
    for question, (right,) in zip(records.questions, records.qrels, strict=True):
        assert set(question.split()) <= set(records.candidates[right].split())
    collection.make(tmp_path / "again", options)
    assert list(read_corpus(tmp_path / "again")) == documents


def test_every_word_is_another(script):
    collection = script("collection")
    words = [collection._word(number) for number in range(collection.WORDS)]
    assert len(set(words)) == collection.WORDS
    shares = collection._passages(np.array(words), collection.argparse.Namespace(passages=300, seed=1))
    counts = np.unique(np.concatenate(list(shares)), return_counts=True)[1]
    assert counts.max() > 100 > 1 == counts.min()  # some words are frequent and most are rare


@pytest.mark.slow
def test_memory_is_measured(start, tmp_path):
    options = [f"--folder={tmp_path / 'made'}", "--passages=200", "--questions=10", f"--json={tmp_path / 'x.json'}"]
    start("collection", *options)
    rows = json.loads((tmp_path / "x.json").read_text())["results"]
    assert [row["what"] for row in rows] == ["encode", "search", "evaluate"]
    assert all(0.1 < row["peak memory, GB"] < 2 for row in rows)
    found = json.loads((tmp_path / "made" / "evaluation" / "results.json").read_text())["systems"]["index"]
    assert found["hit@10"] > 0.2  # 0.05 by chance
