from endx_jax.data.batches.token_tables import content_key


def test_the_key_counts_boundaries_order_and_everything_about():
    texts = (["ab", "c"], ["a", "bc"], ["abc"], ["c", "ab"], ["ab", "c", ""])
    keys = [content_key(one, "model", "", 8) for one in texts]
    keys += [content_key(["ab", "c"], *about) for about in (("model", "", 9), ("model", "a", 8), ("other", "", 8))]
    assert len(set(keys)) == len(keys)
    assert content_key(("ab", "c"), "model", "", 8) == keys[0]
