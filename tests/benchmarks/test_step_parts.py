"""Operations of a step are counted to the part of the model that asked for them."""

import pytest


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("jit(train_step)/jvp(Tower)/Tower.encodings/token_embedder/gather", "token table"),
        ("Tower.encodings/encoder/layers_3/attention/query/dot_general", "attention: products with weights"),
        ("Tower.encodings/encoder/layers_3/attention/reduce_max", "attention: scores, softmax, values"),
        ("Tower.encodings/encoder/layers_3/attention/gather", "laying out"),
        ("transpose(jvp(Tower))/encoder/layers_0/mlp_up/dot_general", "feed-forward: products"),
        ("Tower.encodings/encoder/layers_0/erf", "activation"),
        ("Tower.encodings/encoder/layers_0/mlp_norm/reduce_sum", "norms, residuals"),
        ("jit(train_step)/div", "loss, optimizer, rest"),
    ],
)
def test_parts(script, name, part):
    assert script("step_parts").part_of(name) == part


def test_names_are_read_from_compiled_programs(script):
    class Program:
        def as_text(self):
            return '  ROOT %fusion.3 = f32[2]{0} fusion(%p), metadata={op_name="jit(f)/norm/mul" source_line=1}\n'

    assert script("step_parts").names([Program()]) == {"fusion.3": "jit(f)/norm/mul"}
