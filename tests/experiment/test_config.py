from endx_jax.experiment.config import config_changes, resolve
from endx_jax.methods import find_method
from endx_jax.methods.config import base_config, load_recipe


def test_the_base_config_resolves_to_itself():
    config = base_config()
    assert resolve(config).as_dict() == resolve(config.to_dict()).as_dict()
    assert resolve(resolve(config).as_dict()) == resolve(config)


def test_only_what_changes_results_counts_as_a_difference():
    before = resolve(base_config())
    config = base_config()
    config.mesh.fsdp = 2
    config.train.log_every = 99
    config.train.stop_at_step = 3
    config.objective.loss_tile, config.train.tower_chunk = 64, 2
    config.data.hard_negatives, config.train.global_batch_size, config.model.product_dtype = 1, 0, "auto"  # by the run
    assert config_changes(before, resolve(config)) == []
    config.seed = 7
    config.optimizer.multipliers = ((".*", 2.0),)
    changes = ["seed: 0 -> 7", "optimizer.multipliers: [['.*', 1.0]] -> [['.*', 2.0]]"]
    assert config_changes(before, resolve(config)) == changes


def test_the_settings_that_decide_others_come_first_and_those_of_one_method_are_left_out():
    before, config = base_config(), base_config(find_method("endx").settings())
    config.seed, config.data.path = 7, "a.csv"
    named = ["objective.name: 'dual' -> 'endx'", "data.path: '' -> 'a.csv'", "seed: 0 -> 7"]
    assert config_changes(resolve(before), resolve(config)) == named


def test_the_config_of_an_earlier_run_may_have_settings_that_are_gone():
    earlier = {"data": {"cloze_sentences": 2, "path": "a.csv"}}
    assert resolve(earlier, finished=True).data.path == "a.csv"


def test_batches_and_steps_that_are_not_set_fit_the_number_of_pairs_and_others_stay():
    sizes = {1: (2, 2), 20: (16, 6), 300: (32, 47), 3_000: (64, 141), 300_000: (128, 2_344)}
    train = resolve(load_recipe("minilm").get_config()).train
    for pairs, expected in sizes.items():
        settings = train.sized(pairs)
        assert (settings.global_batch_size, settings.total_steps(pairs)) == expected
    for train in ({"steps": 7, "epochs": 0.0}, {"epochs": 2.0, "global_batch_size": 8}):
        settings = resolve({"train": train}).train
        assert settings.sized(300) == settings
