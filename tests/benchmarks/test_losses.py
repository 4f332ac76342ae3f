import pytest

SIZES = ("--batch=64", "--width=8", "--tile=16", "--repeats=1")


@pytest.mark.parametrize("mode", ["memory", "time"])
def test_dense_and_streamed_have_a_row_each(start, mode):
    lines = start("losses", mode, *SIZES).splitlines()
    assert [line.split(" | ")[2] for line in lines[2:]] == ["None", "16"] * 3


def test_peers_do_the_same_work(script):
    pytest.importorskip("sentence_transformers", reason="the extra [reference] is not installed")
    import argparse

    peers = script("peer_losses")
    options = argparse.Namespace(batch=64, width=8, tile=16, seed=0)
    values = [make(options)() for make in peers.FORMS.values()]
    assert values == pytest.approx([values[0]] * len(values), rel=1e-5)
