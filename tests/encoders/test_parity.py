"""Every family against its class of transformers, with random weights: values, gradients, layouts, and the way back."""

import copy
import dataclasses
import functools
import pathlib
import tempfile

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from encoder_families import ALIKE, FAMILIES, LEARNED
from helpers import padded, texts

from endx_jax.batch import Packing, Tokens
from endx_jax.encoders import ARCHITECTURES
from endx_jax.export.towers import write_tensors
from endx_jax.models.config_keys import HuggingFaceConfig
from endx_jax.models.layers import relative_position_buckets
from endx_jax.models.layout import lay_out
from endx_jax.models.tower import TokenEmbedder, Tower
from endx_jax.models.transformer import TransformerEncoder
from endx_jax.parallel.sharding import rule_of
from endx_jax.pretrained.checkpoint import shapes_of
from endx_jax.pretrained.weights import SINGLE_FILE, modernise, open_tensors, to_ours, to_theirs

torch = pytest.importorskip("torch", reason="the reference needs PyTorch: pip install endx_jax[reference]")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.reference

LENGTHS = (11, 7, 1, 4)  # no padding, some, and a text of one token
LENGTH = max(LENGTHS)
VOCABULARY = 60
PACKING = Packing(sum(LENGTHS) + 2, ((4, 12),))
TOLERANCE = 1e-5  # of the largest magnitude


@dataclasses.dataclass
class Pair:
    """The same random encoder twice: theirs, and ours with its parameters."""

    theirs: torch.nn.Module
    model_type: str
    config: HuggingFaceConfig
    tensors: dict
    params: dict

    @property
    def architecture(self):
        return ARCHITECTURES[self.model_type]

    def rules(self):
        return self.architecture.rules(self.config, shapes_of(self.config))

    def their_states(self, ids, mask) -> tuple:
        """Their embeddings and every layer's output, [B, L, D] each, of tokens that may begin with padding."""
        mask = torch.tensor(np.asarray(mask), dtype=torch.long)
        given = {"input_ids": torch.tensor(np.asarray(ids), dtype=torch.long), "attention_mask": mask}
        if self.model_type in ("bert", "electra", "albert", "distilbert"):  # they count padding before a text
            given["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
        found = self.theirs(**given, output_hidden_states=True)
        return found.last_hidden_state, found.hidden_states

    def tower(self, dtype=jnp.float32, **options) -> Tower:
        config = self.config
        embedder = TokenEmbedder(config.vocab_size, config.table_width, dtype)
        return Tower(embedder, TransformerEncoder(config, dtype, **options))

    def ours(self, params: dict, tokens: Tokens, **options):
        """Our encodings [B, L, D]."""
        return self.tower(**options).apply({"params": params}, tokens, method="encodings")


@functools.cache
def pair(name: str) -> Pair:
    model_type, keys = (FAMILIES | ALIKE)[name]
    keys = {"pad_token_id": 0} | keys
    keys |= {"vocab_size": VOCABULARY, "attn_implementation": "eager"}
    config = transformers.AutoConfig.for_model(model_type, **keys)
    torch.manual_seed(0)
    architecture = ARCHITECTURES[model_type]
    theirs = getattr(transformers, architecture.transformers_class)(config).eval()
    with torch.no_grad():  # biases and norms start at 0 and 1, where a mistake in them would not show
        for path, parameter in theirs.named_parameters():
            spread = 0.5 if "relative" in path else 0.1
            parameter.add_(spread * torch.randn(parameter.shape))
    ours = architecture.config.from_hugging_face(config.to_dict())
    tensors = stored(theirs)
    shapes = shapes_of(ours)
    rules = architecture.rules(ours, shapes)
    with tempfile.TemporaryDirectory() as folder:
        write_tensors(pathlib.Path(folder, SINGLE_FILE), tensors)
        found = modernise(open_tensors(pathlib.Path(folder)), architecture.prefixes)
        params = jax.tree.map(np.asarray, to_ours(found, rules, shapes, where=name))
    return Pair(theirs, model_type, ours, tensors, params)


def stored(model, values=lambda parameter: parameter.detach()) -> dict:
    """Values of a model's parameters under the names of its files, which for some families are not its own."""
    revert = getattr(transformers.core_model_loading, "revert_weight_conversion", None)
    named = {name: values(parameter) for name, parameter in model.named_parameters()}
    return {name: tensor.numpy() for name, tensor in (revert(model, named) if revert else named).items()}


def tokens() -> Tokens:
    """Tokens other than the padding ids of all families."""
    return padded([5 + row for row in texts(LENGTHS, vocab_size=VOCABULARY - 5)], LENGTH)


def on_the_left(given: Tokens, pad_id: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids and mask with the padding before each text."""
    ids, mask = np.full(given.ids.shape, pad_id), np.zeros(given.mask.shape, bool)
    for row, length in enumerate(LENGTHS):
        ids[row, LENGTH - length :] = np.asarray(given.ids)[row, :length]
        mask[row, LENGTH - length :] = True
    return ids, mask


def assert_close_to_scale(ours, theirs, tolerance=TOLERANCE):
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * np.abs(theirs).max())


def real(encodings) -> np.ndarray:
    """The encodings of the real tokens, [T, D]."""
    return np.asarray(encodings, np.float32)[np.asarray(tokens().mask)]


@pytest.fixture(params=[*FAMILIES, *(pytest.param(name, marks=pytest.mark.slow) for name in ALIKE)])
def both(request) -> Pair:
    return pair(request.param)


def expected(both: Pair) -> np.ndarray:
    return real(both.their_states(*padded_by(both))[0].detach())


def padded_by(both: Pair) -> tuple[np.ndarray, np.ndarray]:
    """Ids, with the padding id of the family, and mask."""
    given = tokens()
    return np.where(given.mask, given.ids, both.theirs.config.pad_token_id), np.asarray(given.mask)


def test_every_layer_is_theirs(both):
    tower = both.tower()

    def layers(params):
        (ids, layout), variables = lay_out(tokens()), {name: {"params": params[name]} for name in params}
        embedded = tower.token_embedder.apply(variables["token_embedder"], ids)
        return tower.encoder.apply(variables["encoder"], embedded, layout, every=True)

    ours = jax.jit(layers)(both.params)
    assert len(ours) == len(tower.encoder.outputs)
    last, states = both.their_states(*padded_by(both))
    for mine, other in zip(ours[:-1], states[-len(ours) : -1], strict=True):
        assert_close_to_scale(real(mine), real(other.detach()))
    assert_close_to_scale(real(ours[-1]), real(last.detach()))  # with the final norm, as states[-1] is for some
    ids, mask = on_the_left(tokens(), both.theirs.config.pad_token_id)
    assert_close_to_scale(real(ours[-1]), both.their_states(ids, mask)[0].detach().numpy()[mask])


@pytest.mark.parametrize("name", sorted(FAMILIES.keys() - set(LEARNED)))
def test_packed_and_scanned_encodings_are_theirs(name):
    both, given = pair(name), dataclasses.replace(tokens(), packing=PACKING)
    encode = jax.jit(functools.partial(both.ours, scan_layers=True))
    assert_close_to_scale(real(encode(both.params, given)), expected(both))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in LEARNED else pytest.mark.slow) for name in FAMILIES | ALIKE]
)
def test_packed_and_scanned_encodings_and_their_gradients_are_theirs(name):
    both, given = pair(name), dataclasses.replace(tokens(), packing=PACKING)
    cotangent = np.random.default_rng(1).normal(size=(*given.ids.shape, both.config.width)).astype(np.float32)
    cotangent *= np.asarray(given.mask)[:, :, None]  # theirs gives the pad row no gradient, used or not
    twin = dataclasses.replace(both, theirs=copy.deepcopy(both.theirs))
    (twin.their_states(*padded_by(both))[0] * torch.tensor(cotangent)).sum().backward()
    theirs = stored(twin.theirs, lambda p: torch.zeros_like(p) if p.grad is None else p.grad)

    def loss(params):
        encodings = both.ours(params, given, scan_layers=True)
        return jnp.sum(encodings * cotangent), encodings

    gradients, encodings = jax.jit(jax.grad(loss, has_aux=True))(both.params)
    assert_close_to_scale(real(encodings), expected(both))
    ours = to_theirs(gradients, both.rules())
    theirs = {name: theirs[name] for name in ours}
    largest = max(np.abs(gradient).max() for gradient in theirs.values())
    chex.assert_trees_all_close(ours, theirs, rtol=0, atol=TOLERANCE * largest)


def test_weights_there_and_back_are_bit_equal_and_have_sharding_rules(both):
    assert all(rule_of(f"shared/{path}") for path in shapes_of(both.config))
    found = to_theirs(both.params, both.rules())
    prefix = next((p for p in both.architecture.prefixes if any(n.startswith(p) for n in both.tensors)), "")
    left_out = {name.removeprefix(prefix) for name in both.tensors} - set(found)
    assert all(name.startswith("pooler") or "embed_tokens" in name for name in left_out)
    for name, tensor in found.items():
        np.testing.assert_array_equal(tensor, both.tensors[prefix + name])


@pytest.mark.parametrize("packing", [None, PACKING], ids=["padded", "packed"])
def test_a_text_that_spells_the_padding_token_has_their_positions(packing):
    both = pair("roberta")
    given = tokens()
    ids = given.ids.at[0, jnp.array([2, 6])].set(both.theirs.config.pad_token_id).at[3, 0].set(both.config.pad_id)
    theirs = both.their_states(np.where(given.mask, ids, both.theirs.config.pad_token_id), given.mask)[0]
    found = jax.jit(both.ours)(both.params, dataclasses.replace(given, ids=ids, packing=packing))
    assert_close_to_scale(real(found), real(theirs.detach()))


def test_parity_notices_wider_windows_and_another_activation():
    both = pair("modernbert")
    wider = tuple(kind._replace(window=kind.window and kind.window + 1) for kind in both.config.kinds)
    for name, change in (("modernbert", {"layer_kinds": wider}), ("bert", {"activation": "gelu_new"})):
        both = pair(name)
        other = dataclasses.replace(both, config=dataclasses.replace(both.config, **change))
        with pytest.raises(AssertionError):
            assert_close_to_scale(real(jax.jit(other.ours)(both.params, tokens())), expected(both))


@pytest.mark.parametrize("length", [1, 9, 300])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (32, 20), (8, 16)])
def test_relative_position_buckets_are_theirs(length, buckets, max_distance):
    position = torch.arange(length)
    distance = position[None] - position[:, None]
    # No public function of theirs returns buckets.
    theirs = transformers.models.t5.modeling_t5.T5Attention._relative_position_bucket(
        distance, bidirectional=True, num_buckets=buckets, max_distance=max_distance
    )
    found = relative_position_buckets(distance.numpy(), buckets, max_distance)
    np.testing.assert_array_equal(found, theirs.numpy())
