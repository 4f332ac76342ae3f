import pytest
from helpers import refused

from endx_jax.experiment.config import resolve


@pytest.mark.parametrize(
    ("method", "values", "message"),
    [
        ("dual", {"matryoshka_dims": (8, 8)}, "matryoshka_dims is .*; they must be positive and distinct"),
        ("dual", {"matryoshka_dims": (8,), "matryoshka_weights": (1.0, 2.0)}, "has 2 weights for 1 matryoshka_dims"),
        ("dual", {"contrastive": {"loss": "sigmod"}}, "'sigmod', which is none of softmax, sigmoid; did you mean"),
        ("dual", {"contrastive": {"same_side": ("both",)}}, "'both', which is none of questions, answers"),
        ("dual", {"contrastive": {"ceiling": (1.0,)}}, r"it must be \(share, margin\), or empty"),
        ("dual", {"contrastive": {"loss": "sigmoid", "answer_frequencies": True}}, "corrects the softmax"),
        ("dual", {"contrastive": {"loss": "sigmoid"}, "direction": "sum"}, "which the sigmoid loss does not have"),
        ("dual", {"temperature": 0.0}, "must be positive"),
        ("dual", {"direction": "both"}, "question_to_answer, answer_to_question"),
        ("endx", {"alignment": "geometri"}, "objective.alignment .* did you mean 'geometry'"),
        ("endx", {"kernel": "cosine"}, "objective.kernel .* inner, gaussian, sne, pkt"),
        ("endx", {"weights": (("q|b", 1.0),)}, "objective.weights .* a|q"),
        ("endx", {"weights": ("a|q",)}, r"objective.weights\[0\] is 'a|q', a str; it must be tuple"),
        ("endx", {"ramp_steps": 5, "ramp_epochs": 5.0}, "set one to 0"),
        ("endx", {"alignment_temperatures": (1.0, 0.0)}, "two positive numbers"),
        ("endx", {"teacher_shares": "everything"}, "nothing, token_embedder, encoder"),
        ("endx", {"ramp_start": -1}, "objective.ramp_start is -1; it must not be negative"),
        ("endx", {"teacher_temperature": -1.0}, "objective.teacher_temperature is -1.0; it must not be negative"),
        ("endx", {"teacher_frozen": True}, "name its workdir in objective.teacher_from"),
        ("endx", {"teacher_frozen": True, "teacher_from": "x", "teacher_shares": "encoder"}, "shares to nothing"),
        ("vae", {"decodes": "both"}, "objective.decodes .* own, other"),
        ("vae", {"decoder": "grue"}, "objective.decoder .* did you mean 'gru'"),
        ("vae", {"match": "cosine"}, "objective.match .* mse, bce, inbatch"),
        ("vae", {"match_on": "mode"}, "objective.match_on .* sample, mean"),
        ("vae", {"negatives": -1}, "objective.negatives is -1"),
        ("vae", {"decoder_width": 0}, "objective.decoder_width is 0"),
        ("vae", {"kl_weight": -1.0}, "objective.kl_weight is -1.0"),
        ("vae", {"anneal_steps": 5}, "set one to 0"),
        ("vae", {"anneal_epochs": -1.0}, "must not be negative"),
        ("vae", {"mean_scale": 0.0}, "objective.mean_scale is 0.0"),
        ("vae", {"initial_deviation": 0.0}, "objective.initial_deviation is 0.0"),
        ("vae", {"word_share": 0.0}, "objective.word_share is 0.0"),
        ("residual", {"head": {"names": ""}}, "objective.head.names is '', which is none of fcrr, convrr"),
        ("residual", {"head": {"names": "fcr"}}, "names is 'fcr', which is none of fcrr, convrr; did you mean 'fcrr'"),
        ("residual", {"head": {"names": "fcrr+fcrr"}}, "objective.head.names is fcrr.fcrr: a head can be there once"),
        ("residual", {"head": {"sides": "none"}}, "sides is 'none', which is none of both, question, answer"),
        ("residual", {"head": {"dropout": 1.0}}, "objective.head.dropout is 1.0; it must be in"),
        ("residual", {"head": {"width": 0}}, "objective.head.width is 0; it must be from 1 to"),
        ("residual", {"loss": "quadratic"}, "loss is 'quadratic', which is none of triplet, quadratic_regression"),
        ("residual", {"margin": -1.0}, "objective.margin is -1.0; it must not be negative"),
        ("residual", {"direction": "both"}, "objective.direction is 'both', which is none of"),
        ("residual", {"loss_tile": -2}, "objective.loss_tile is -2"),
        ("pair", {"loss": "sofmax"}, "objective.loss is 'sofmax'.*did you mean 'softmax'"),
        ("pair", {"top": -1}, "objective.top is -1"),
    ],
)
def test_settings_out_of_bounds_are_refused(method, values, message):
    refused(message, resolve, {"objective": {"name": method, **values}})
