"""The key of cached values changes with all that they depend on."""

from endx_jax.data.batches.token_tables import content_key


def test_the_key_counts_boundaries_order_and_everything_about():
    keys = [
        content_key(["ab", "c"], "model", "", 8),
        content_key(["a", "bc"], "model", "", 8),
        content_key(["abc"], "model", "", 8),
        content_key(["c", "ab"], "model", "", 8),
        content_key(["ab", "c", ""], "model", "", 8),
        content_key(["ab", "c"], "model", "", 9),
        content_key(["ab", "c"], "model", "a", 8),
        content_key(["ab", "c"], "other", "", 8),
    ]
    assert len(set(keys)) == len(keys)
    assert content_key(("ab", "c"), "model", "", 8) == keys[0]
