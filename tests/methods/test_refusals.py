"""Settings, models and batches that methods refuse: the call, and the words of its line: field, value and remedy."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import tiny_vae
from helpers import ONE_LAYER, padded, texts, tower
from refusals import check_refusal

from endx_jax.batch import Batch
from endx_jax.experiment.config import resolve
from endx_jax.losses import Guide
from endx_jax.methods import find_method, register
from endx_jax.methods.dual import DualObjective, DualSettings, contrastive_collator
from endx_jax.methods.dual.settings import ContrastiveSettings, DistillationSettings
from endx_jax.methods.embedding_distillation import EmbeddingDistillationObjective as DistillationObjective
from endx_jax.methods.embedding_distillation import EmbeddingDistillationSettings
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
        ("vae", {"match": "inbatch", "distillation": {"loss": "margin_mse"}}, "objective.distillation loss empty"),
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
MIXTURE: Any = SimpleNamespace(scores=None, sizes=(2, 1))
BACKWARD: Any = {"direction": "answer_to_question"}
COUNTED: Any = {"contrastive": ContrastiveSettings(answer_frequencies=True)}
FIRST = tower(ONE_LAYER, pooling=first)
UNSCALED = FIRST.clone(normalize=False)
HEADS = tower(ONE_LAYER, head=ResidualHeads(("fcrr",), width=8, filters=1))
UNSCALED_HEADS = HEADS.clone(normalize=False)
SINGLE_SEGMENT = tower(dataclasses.replace(ONE_LAYER, token_types=1), pooling=first)


def twice(one, **changes) -> DualEncoder:
    return DualEncoder(one, one, **changes)


def of(objective, one, settings, batch=BATCH):
    """Makes an objective of a tower, and traces it on a batch."""

    def trace(rng):
        made = objective(twice(one), settings)
        return made(made.init(rng, made.model.init(rng)), batch, jax.random.key(2, impl="threefry2x32"), jnp.int32(0))

    return lambda: jax.eval_shape(trace, jax.random.key(0))


def matching(**changes):
    return lambda: MatchingSettings(**changes)


def collated(count, settings=DISTILLED):
    return lambda: contrastive_collator(MIXTURE, settings, hard_negatives=count)


def cross_encode():
    x, mask = jnp.zeros((1, 2, 8)), jnp.ones((1, 2), bool)
    CrossEncoder(mean, heads=3).init(jax.random.key(0), x, mask, x, mask)


def own_method(**changes):
    return lambda: register(dataclasses.replace(find_method("dual"), **changes))


VAE = tiny_vae.model().question
VAE_MSE = dataclasses.replace(tiny_vae.SETTINGS, match="mse")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (of(DualObjective, FIRST, DualSettings(matryoshka_dims=(2, 32))), "objective.matryoshka_dims (2, 32) 16"),
        (of(DistillationObjective, FIRST, EmbeddingDistillationSettings()), "objective.teacher empty"),
        (of(DistillationObjective, FIRST, TEACHER, GUIDED), "16 objective.teacher=a-teacher 12 model.projection=12"),
        (collated(1), "objective.distillation.loss=margin_mse --score-with"),
        (collated(0), "objective.distillation.loss=margin_mse data.hard_negatives"),
        (collated(1, DualSettings(**BACKWARD)), "objective.direction=answer_to_question data.hard_negatives=0"),
        (collated(0, DualSettings(**BACKWARD, **COUNTED)), "objective.direction= answer_frequencies=False"),
        (collated(0, DualSettings(**COUNTED)), "answer_frequencies data.mixture False"),
        (lambda: pair_collator(None, PairSettings(negatives=0), 0), "objective.negatives data.hard_negatives"),
        (cross_encode, "8 objective.cross_heads=3"),
        (lambda: PairClassifier(twice(SINGLE_SEGMENT)), "segment"),
        (lambda: PairClassifier(twice(FIRST, sharing=SHARINGS["ade"])), "model.sharing=sde"),
        (of(ResidualObjective, HEADS, ResidualSettings(), HARD), "data.hard_negatives 0"),
        (of(ResidualObjective, UNSCALED_HEADS, ResidualSettings()), "objective.name=residual model.normalize"),
        (of(MatchingObjective, FIRST, MatchingSettings(), HARD), "objective.match=mse data.hard_negatives=0"),
        (matching(matryoshka_dims=(4,)), "objective.match=mse objective.matryoshka_dims"),
        (matching(learn_temperature=True), "objective.match=mse temperature"),
        (matching(contrastive=ContrastiveSettings(guide="a model")), "objective.match=mse contrastive"),
        (matching(distillation=DISTILLED.distillation), "objective.match=mse distillation inbatch"),
        (of(MatchingObjective, UNSCALED, MatchingSettings()), "objective.match=mse model.normalize"),
        (of(VaeObjective, VAE.clone(normalize=False), VAE_MSE), "objective.match=mse model.normalize"),
        (of(VaeObjective, VAE.clone(projection=None), tiny_vae.SETTINGS), "model.projection"),
        (lambda: find_method("decoupled"), "'decoupled' dual METHOD"),
        (own_method(name="endx"), "METHOD 'endx'"),
        (own_method(name="mine", settings=dataclasses.make_dataclass("Point", [])), "Point MethodSettings"),
    ],
)
def test_a_model_or_a_batch_that_a_method_can_not_use_is_named(call, words):
    check_refusal(call, *words.split())


def test_what_only_the_softmax_has_is_allowed_with_it():
    MatchingSettings(match="inbatch", matryoshka_dims=(4,), learn_temperature=True)
    MatchingObjective(twice(UNSCALED), MatchingSettings(match="inbatch"))
