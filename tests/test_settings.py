"""Settings from mappings: every mistake is one line that names the setting."""

import ast
import dataclasses
import json

import pytest
from flax.traverse_util import unflatten_dict
from refusals import check_refusal

from endx_jax.experiment.config import resolve
from endx_jax.settings import check_choice, from_mapping, key, require, results_only


@dataclasses.dataclass(frozen=True)
class Inner:
    """Settings inside settings."""

    depth: int = key(2, "levels")
    places: tuple[str, ...] = key((), "where", changes_results=False)


@dataclasses.dataclass(frozen=True)
class Example:
    """One setting of every kind."""

    name: str = key("x", "a name")
    count: int = key(3, "how many", least=2, most=2000)
    rate: float = key(0.5, "how often", above=0, below=2)
    width: int = key(-1, "how wide", least=4)
    active: bool = key(True, "whether")
    limit: int | None = key(None, "at most")
    kind: str = key("", "which kind.", choices=("one", "two"))
    sizes: tuple[int, ...] = key((), "several sizes", least=1)
    names: tuple[str, ...] = key(("ab",), "several names", choices=("ab", "c"))
    table: tuple[tuple[str, int], ...] = key((), "rows")
    log_every: int = key(10, "steps between lines", changes_results=False)
    inner: Inner = dataclasses.field(default_factory=Inner)

    def __post_init__(self):
        require(self.width < 9, f"example.width is {self.width}; this check comes after those of single values")


def test_missing_names_keep_their_defaults():
    assert from_mapping(Example, {}, "example") == Example()
    assert from_mapping(Example, {"count": 5}, "example") == Example(count=5)
    assert from_mapping(Example, {"inner": {"depth": 3}}, "example") == Example(inner=Inner(depth=3))


@pytest.mark.parametrize(
    ("mapping", "words"),
    [
        ({"cuont": 1}, "example.cuont 'count' name, count,"),
        ({"inner": {"dept": 1}}, "example.inner.dept 'depth'"),
        ({"zzzzzzzz": 1}, "example.zzzzzzzz name, count,"),
        ({"name": 3}, "example.name 3 int str"),
        ({"name": None}, "example.name None NoneType str"),
        ({"count": "3"}, "example.count '3' str int"),
        ({"count": 3.0}, "example.count 3.0 float int"),
        ({"count": True}, "example.count True bool int"),
        ({"rate": True}, "example.rate True bool float"),
        ({"rate": "0.1"}, "example.rate '0.1' str float"),
        ({"active": 1}, "example.active 1 int bool"),
        ({"limit": "many"}, "example.limit 'many' str int empty"),
        ({"limit": False}, "example.limit False bool int empty"),
        ({"names": "ab"}, "example.names 'ab' str tuple"),
        ({"inner": 1}, "example.inner 1 object"),
        ({"inner": {"depth": "2"}}, "example.inner.depth '2' str int"),
        ({"count": 1}, "example.count 1; at least 2 and at most 2,000"),
        ({"count": 2001}, "example.count 2001; at most"),
        ({"rate": 0}, "example.rate 0.0; above 0 and below 2"),
        ({"rate": 2}, "example.rate 2.0; below"),
        ({"width": 3}, "example.width 3; at least 4, or -1"),
        ({"width": 9}, "example.width 9; after"),
        ({"kind": "tow"}, "example.kind 'tow' one, two (or empty)"),
        ({"sizes": (1, 0)}, "example.sizes (1, 0); at least 1"),
        ({"names": ("c", "d")}, "example.names 'd' ab, c"),
    ],
)
def test_unknown_names_and_values_that_are_not_valid_are_refused(mapping, words):
    check_refusal(lambda: from_mapping(Example, mapping, "example"), *words.split())


# A line for each method, with values of its settings, and for each other section: none is within its bounds.
OUT_OF_BOUNDS = """
dual temperature=0.0 direction='both' matryoshka_dims=(8,0) loss_tile=-2
dual contrastive.loss='sigmod' contrastive.same_side=('both',) distillation.loss='kl' distillation.weight=-1.0
dual distillation.contrastive_weight=-1.0 distillation.temperature=-0.5
late loss_tile=0 temperature=0.0
endx alignment='geometri' kernel='cosine' teacher_shares='everything' ramp_steps=-1 ramp_epochs=-1.0 ramp_start=-1
endx alignment_temperatures=(1.0,0.0) teacher_temperature=-1.0
vae decodes='both' decoder='grue' match='cosine' match_on='mode' negatives=-1 decoder_width=0 word_share=0.0
vae word_share=1.1 matching_weight=-1.0 reconstruction_weight=-1.0 kl_weight=-1.0 free_bits=-1.0 anneal_steps=-1
vae anneal_epochs=-1.0 mean_scale=0.0 initial_deviation=0.0
residual loss='quadratic' margin=-1.0 direction='both' loss_tile=-2 head.sides='none' head.dropout=1.0 head.width=0
residual head.filters=0
pair loss='sofmax' negatives=-1 top=-1 questions=-1
embedding_distillation loss='kl'
model. dtype='float16' product_dtype='float16' pooling='max' sharing='sed' encoder='gur' remat='some' dropout=1.0
model. attention_dropout=-0.5 token_weights='tfidf' projection=-1 projection_function='relu' multi_hop.hops=0
model. multi_hop.width=0 new_encoder.width=-1 new_encoder.layers=1001 new_encoder.heads=0 tokens.expand=-1
model. lora.rank=-1 lora.dropout=1.0 lora.base_dtype='int8'
optimizer. name='adam' schedule='cosin' learning_rate=-1.0 warmup_steps=-2
train. log_every=0 checkpoint_every=0 patience=-1 keep_checkpoints=0 tower_chunk=-2 profile_steps=-1 profiler_port=65536
data. pool='answer' format='pdf' mixture_temperature=-1.0 mixture_batches='one' tokenizing_processes=-1
data. question_length=2 answer_length=2 max_test_questions=-1 max_train_pairs=-1 group_size=0 hard_negatives=-2
data. held_out_by='rows' language='klingon' reading_threads=-1 validation_fraction=1.0 test_fraction=-0.1
evaluation. min_questions=(8,0) batch_size=0
"""


@pytest.mark.parametrize("line", OUT_OF_BOUNDS.strip().splitlines())
def test_values_out_of_bounds_are_named(line):
    first, *values = line.split()
    for name, _, text in (value.partition("=") for value in values):
        value, full = ast.literal_eval(text), (first if first.endswith(".") else "objective.") + name
        config = {full: value} | ({} if first.endswith(".") else {"objective.name": first})
        named = repr(value[0] if value == ("both",) else value)
        check_refusal(lambda config=config: resolve(unflatten_dict(config, ".")), full, named)


def test_values_become_those_of_the_declared_types():
    rate = from_mapping(Example, {"rate": 1}, "example").rate
    assert (rate, type(rate)) == (1.0, float)
    assert from_mapping(Example, {"limit": None}, "example").limit is None
    assert from_mapping(Example, {"limit": 4}, "example").limit == 4
    valid = {"count": 2, "width": -1, "kind": "", "sizes": (1, 3), "names": ()}
    assert {name: getattr(from_mapping(Example, valid, "example"), name) for name in valid} == valid
    assert "which kind. One of one, two." in [field.metadata.get("doc") for field in dataclasses.fields(Example)]
    found = from_mapping(Example, {"names": ["ab", "c"], "table": [["a", 1], ["b", 2]]}, "example")
    assert (found.names, found.table) == (("ab", "c"), (("a", 1), ("b", 2)))
    assert isinstance(hash(found), int)


def test_results_only_flattens_and_leaves_out_what_costs_only():
    flat = results_only(Example(table=(("a", 1),)))
    assert json.loads(json.dumps(flat)) == flat
    settings = Example(names=("ab", "c"), table=(("a", 1),), limit=7)
    expected = {"name": "x", "count": 3, "rate": 0.5, "width": -1, "active": True, "limit": 7, "kind": "", "sizes": []}
    assert results_only(settings) == expected | {"names": ["ab", "c"], "table": [["a", 1]], "inner.depth": 2}


def test_check_choice_names_the_choices_and_the_nearest():
    check_choice("example.name", "sum", ("sum", "mean"))
    check_refusal(lambda: check_choice("example.name", "means", ("sum", "mean")), "example.name", "'means'", "'mean'?")
