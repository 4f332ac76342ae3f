def test_every_configuration_is_one(script):
    planning = script("planning")
    found = {name: planning.settings_of(name) for name in planning.CASES}
    assert found["minilm, chunked"].train.tower_chunk == 8
    assert {settings.model.dtype for settings in found.values()} == {"float32"}
