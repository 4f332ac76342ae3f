"""Large encoders' checks, on small ones."""

import argparse

import pytest

SMALL = {"config": "t5:small,sde", "batch": 16, "question_length": 4, "answer_length": 8, "dtype": "float32", "seed": 0}


@pytest.mark.slow
def test_the_program_is_given_what_the_table_says(script):
    row = script("large").shapes(argparse.Namespace(**SMALL, tensor=2, remat="full"))
    assert row["mesh"] == "fsdp 4 x tensor 2"
    # Parameters over eight devices, norms on each, and Adafactor's moments.
    assert 35.7 * 4 / 8 < row["state and batch a device, MB"] < 35.7 * 4 / 8 + 1.5
    assert row["of it whole everywhere, MB"] == pytest.approx((8 * 2 + 1) * 512 * 4 / 1e6)


@pytest.mark.slow
def test_another_place_than_the_tables_is_refused(script, monkeypatch):
    large = script("large")
    monkeypatch.setattr(large, "partition_spec", lambda path, shape, mesh: large.jax.sharding.PartitionSpec())
    with pytest.raises(SystemExit, match="the table says"):
        large.shapes(argparse.Namespace(**SMALL, tensor=2, remat="full"))


@pytest.mark.slow
def test_random_batches_have_the_planned_shapes(script):
    large = script("large")
    found = large.subject(argparse.Namespace(**SMALL, tensor=1, remat=""))
    batch = large.random_batch(found, seed=0)
    shapes = lambda tree: [(leaf.shape, leaf.dtype) for leaf in large.jax.tree.leaves(tree)]  # noqa: E731
    assert shapes(batch) == shapes(found.batch)
