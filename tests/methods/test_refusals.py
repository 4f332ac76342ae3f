"""Settings, models and batches that methods refuse: the call, and the words of its line: field, value and remedy."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
import tiny_vae
from helpers import TINY, drawn, padded, texts, tower
from refusals import check_refusal

from endx_jax.batch import Batch
from endx_jax.data.sets.records import RetrievalSet
from endx_jax.experiment.config import resolve
from endx_jax.losses import Guide
from endx_jax.methods import find_method, register
from endx_jax.methods.dual import DualObjective, DualSettings, contrastive_collator
from endx_jax.methods.dual.settings import ContrastiveSettings, DistillationSettings
from endx_jax.methods.embedding_distillation import EmbeddingDistillationObjective, EmbeddingDistillationSettings
from endx_jax.methods.endx.teacher import CrossEncoder
from endx_jax.methods.pair import PairSettings
from endx_jax.methods.pair.batches import pair_collator
from endx_jax.methods.pair.classifier import PairClassifier
from endx_jax.methods.residual import ResidualHeads, ResidualObjective, ResidualSettings
from endx_jax.methods.vae import MatchingObjective, MatchingSettings, VaeObjective
from endx_jax.models import DualEncoder
from endx_jax.models.pooling import first, mean
from endx_jax.models.sharing import SHARINGS

SIGMOID = {"loss": "sigmoid"}


@pytest.mark.parametrize(
    ("method", "values", "words"),
    [
        ("dual", {"matryoshka_dims": (8, 8)}, "matryoshka_dims (8, 8) distinct"),
        ("dual", {"matryoshka_dims": (8,), "matryoshka_weights": (1.0, 2.0)}, "2 1 matryoshka_dims"),
        ("dual", {"contrastive": {"ceiling": (1.0,)}}, "(share, margin)"),
        ("dual", {"contrastive": SIGMOID | {"answer_frequencies": True}}, "answer_frequencies softmax"),
        ("dual", {"contrastive": SIGMOID, "direction": "sum"}, "direction sigmoid"),
        ("late", {"matryoshka_dims": (8,)}, "objective.name=late objective.matryoshka_dims"),
        ("late", {"contrastive": SIGMOID}, "objective.name=late objective.contrastive.loss=softmax"),
        ("endx", {"weights": (("q|b", 1.0),)}, "objective.weights a|q"),
        ("endx", {"weights": ("a|q",)}, "objective.weights[0] 'a|q' tuple"),
        ("endx", {"ramp_steps": 5, "ramp_epochs": 5.0}, "ramp_steps ramp_epochs 0"),
        ("endx", {"teacher_frozen": True}, "objective.teacher_from"),
        ("endx", {"teacher_frozen": True, "teacher_from": "x", "teacher_shares": "encoder"}, "shares nothing"),
        ("vae", {"anneal_steps": 5}, "anneal_steps anneal_epochs 0"),
        ("residual", {"head": {"names": ""}}, "objective.head.names '' fcrr, convrr"),
        ("residual", {"head": {"names": "fcr"}}, "objective.head.names 'fcr' 'fcrr'"),
        ("residual", {"head": {"names": "fcrr+fcrr"}}, "objective.head.names fcrr+fcrr"),
    ],
)
def test_settings_that_do_not_belong_together_are_named(method, values, words):
    check_refusal(lambda: resolve({"objective": {"name": method, **values}}), *words.split())


IDS = jnp.arange(4)
TEXTS = padded(texts((3, 4, 5, 6)), 8)
BATCH = Batch(TEXTS, TEXTS, IDS, IDS, IDS[:, None])
HARD = dataclasses.replace(
    BATCH, hard_negatives=jax.tree.map(lambda x: x[:, None], TEXTS), hard_negative_ids=IDS[:, None]
)
GUIDED = dataclasses.replace(BATCH, extra={"guide": Guide(jnp.ones((4, 12)), jnp.ones((4, 12)))})
TEACHER = EmbeddingDistillationSettings(teacher="a-teacher")
DISTILLED = DualSettings(distillation=DistillationSettings(loss="margin_mse"))
ONE_LAYER = dataclasses.replace(TINY, layers=1)
FIRST = tower(ONE_LAYER, pooling=first)
HEADS = tower(ONE_LAYER, head=ResidualHeads(("fcrr",), width=8, filters=1))
SINGLE_SEGMENT = tower(dataclasses.replace(ONE_LAYER, token_types=1), pooling=first)


def twice(one, **changes) -> DualEncoder:
    return DualEncoder(one, one, **changes)


def evaluate(objective, batch=BATCH):
    params = drawn(jax.eval_shape(lambda: objective.init(jax.random.key(0), objective.model.init(jax.random.key(1)))))
    return objective(params, batch, jax.random.key(2, impl="threefry2x32"), jnp.int32(0))


def matching(**changes):
    return lambda: MatchingSettings(**changes)


def cross_encode():
    x, mask = jnp.zeros((1, 2, 8)), jnp.ones((1, 2), bool)
    CrossEncoder(mean, heads=3).init(jax.random.key(0), x, mask, x, mask)


def own_method(**changes):
    return lambda: register(dataclasses.replace(find_method("dual"), **changes))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: evaluate(DualObjective(twice(FIRST), DualSettings(matryoshka_dims=(2, 32)))),
            "objective.matryoshka_dims (2, 32) 16",
        ),
        (
            lambda: EmbeddingDistillationObjective(twice(FIRST), EmbeddingDistillationSettings()),
            "objective.teacher empty",
        ),
        (
            lambda: evaluate(EmbeddingDistillationObjective(twice(FIRST), TEACHER), GUIDED),
            "16 objective.teacher=a-teacher 12 model.projection=12",
        ),
        (
            lambda: contrastive_collator(RetrievalSet.from_pairs([]), DISTILLED, hard_negatives=1),
            "objective.distillation.loss=margin_mse --score-with",
        ),
        (
            lambda: contrastive_collator(RetrievalSet.from_pairs([]), DISTILLED, hard_negatives=0),
            "objective.distillation.loss=margin_mse data.hard_negatives",
        ),
        (
            lambda: pair_collator(None, PairSettings(negatives=0), hard_negatives=0),
            "objective.negatives data.hard_negatives",
        ),
        (cross_encode, "8 objective.cross_heads=3"),
        (lambda: PairClassifier(twice(SINGLE_SEGMENT)), "segment"),
        (lambda: PairClassifier(twice(FIRST, sharing=SHARINGS["ade"])), "model.sharing=sde"),
        (
            lambda: evaluate(ResidualObjective(twice(HEADS), ResidualSettings()), HARD),
            "data.hard_negatives 0",
        ),
        (
            lambda: ResidualObjective(twice(HEADS.clone(normalize=False)), ResidualSettings()),
            "objective.name=residual model.normalize",
        ),
        (
            lambda: evaluate(MatchingObjective(twice(FIRST), MatchingSettings()), HARD),
            "objective.match=mse data.hard_negatives=0",
        ),
        (matching(matryoshka_dims=(4,)), "objective.match=mse prefixes"),
        (matching(learn_temperature=True), "objective.match=mse temperature"),
        (matching(contrastive=ContrastiveSettings(guide="a model")), "objective.match=mse contrastive"),
        (
            lambda: MatchingObjective(twice(FIRST.clone(normalize=False)), MatchingSettings()),
            "objective.match=mse model.normalize",
        ),
        (
            lambda: VaeObjective(tiny_vae.model(normalize=False), dataclasses.replace(tiny_vae.SETTINGS, match="mse")),
            "objective.match=mse model.normalize",
        ),
        (
            lambda: VaeObjective(twice(tiny_vae.model().question.clone(projection=None)), tiny_vae.SETTINGS),
            "model.projection",
        ),
        (lambda: find_method("decoupled"), "'decoupled' dual METHOD"),
        (own_method(name="endx"), "METHOD 'endx'"),
        (own_method(name="mine", settings=dataclasses.make_dataclass("Point", [])), "Point MethodSettings"),
    ],
)
def test_a_model_or_a_batch_that_a_method_can_not_use_is_named(call, words):
    check_refusal(call, *words.split())


def test_what_only_the_softmax_has_is_allowed_with_it():
    MatchingSettings(match="inbatch", matryoshka_dims=(4,), learn_temperature=True)
    MatchingObjective(twice(FIRST.clone(normalize=False)), MatchingSettings(match="inbatch"))
