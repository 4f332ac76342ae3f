"""The table of public collections: its rows and file, and that what is done is not done again."""

import json

from helpers import times
from small_beir import write_beir
from tiny_bert import write_tiny_bert

WORDS = "ant bee cow dog elk fox gnu hen ibex jay kiwi lark".split()


def test_rows_of_two_models_are_kept_and_other_data_are_refused(tmp_path, reproduce):
    texts = {str(n): f"the {word} and its {word} house" for n, word in enumerate(WORDS)}
    suite, out = tmp_path / "suite", tmp_path / "out"
    for name in ("first", "second"):
        questions = {f"q{n}": f"where is the {word}" for n, word in enumerate(WORDS)}
        write_beir(suite / name, texts, questions, test=[(f"q{n}", n, 1) for n in texts])
    models = [str(write_tiny_bert(tmp_path / name)) for name in ("one", "two")]
    given = [f"--data=public={suite}", f"--output={out}", f"--weights=named={models[1]}"]
    shown = reproduce("table", "public", models[0], *given).out
    assert "one + BM25" in shown

    before = times(out, "results.json")
    reproduce("table", "public", models[0], "named", *given, "--product-dtype=bfloat16")
    after = times(out, "results.json")
    assert len(before) == len(after.keys() - before) == 2
    assert {file: after[file] for file in before} == before  # the first model ranks nothing again
    stored = json.loads((out / "public" / "public.json").read_text())
    labels = ["BM25", "one", "one + BM25", "named", "named + BM25"]
    assert [row[:4] for row in stored["rows"]] == [[s, "12", "12", one] for s in ("first", "second") for one in labels]
    assert stored["notes"].endswith("Products: one in float32; named in bfloat16")
    command = "python -m reproduction table public"
    assert stored["command"] == [
        f"{command} {models[0]} --data=public=SUITE --product-dtype=float32",
        f"{command} named --data=public=SUITE --weights=named=FOLDER --product-dtype=bfloat16",
    ]
    bm25 = dict(zip(stored["columns"], stored["rows"][0], strict=True))
    assert (bm25["nDCG@10"], bm25["MRR"], bm25["nDCG@10 - BM25"]) == ("100.0", "100.0", "")
    assert all(row[5].startswith(("-", "+")) for row in stored["rows"][1:5])

    suite.rename(tmp_path / "moved")
    moved = [f"--data=public={tmp_path / 'moved'}", f"--output={out}"]
    assert "give another --output" in reproduce("table", "public", models[0], *moved, status=2).err
