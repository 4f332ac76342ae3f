"""Rooflines of small programs by visible arithmetic: FLOP over the peak, bytes over the bandwidth of a v5e."""

import jax
import jax.numpy as jnp
import pytest

from endx_jax.planning.chips import CHIPS
from endx_jax.planning.roofline import COMMUNICATION, COPIES, GATHERS, KERNELS, OTHERS, PRODUCTS, seconds_by_kind

V5E = CHIPS["v5e"]
CUBE = 4096**3


def moved(count):
    return pytest.approx(count / V5E.bandwidth)


def computed(flop):
    return pytest.approx(flop / V5E.flops)


def linked(count):
    return pytest.approx(count / V5E.link)


def roofline(entry, rest="", chip=V5E):
    """Roofline of a program whose entry computation has these instructions."""
    lines = "".join(f"  {line}\n" for line in entry.strip().splitlines())
    program = f"HloModule f\n\n{rest}\nENTRY %main (p: f32[8]) -> f32[8] {{\n{lines}}}\n"
    return seconds_by_kind(program, chip)[1]


def test_operands_and_results_are_moved_once_in_tiles_and_views_cost_nothing():
    entry = """
    %p = f32[1024,256]{1,0} parameter(0)
    %q = f32[256,1024]{1,0} bitcast(%p)
    %sum = f32[256,1024]{1,0} add(%q, %q)
    ROOT %t = (f32[256,1024]{1,0}) tuple(%sum)"""
    assert roofline(entry) == {OTHERS: moved(3 * 4 * 1024 * 256)}
    entry = """
    %p = bf16[100,12,64]{2,1,0:T(8,128)(2,1)} parameter(0)
    %near = bf16[100,12,64]{2,1,0:T(8,128)(2,1)S(1)} negate(%p)
    ROOT %far = bf16[100,12,64]{2,1,0:T(8,128)(2,1)} negate(%near)"""
    assert roofline(entry) == {OTHERS: moved(2 * 2 * 100 * 16 * 128)}


FUSED = """\
%fused (a: f32[12,8,128], at: s32[], b: f32[12,8,128]) -> f32[12,8,128] {
  %a = f32[12,8,128]{2,1,0} parameter(0)
  %at = s32[] parameter(1)
  %b = f32[12,8,128]{2,1,0} parameter(2)
  %copied = f32[12,8,128]{2,1,0} copy(%b)
  %slice = f32[1,8,128]{2,1,0} dynamic-slice(%copied, %at, %at, %at), dynamic_slice_sizes={1,8,128}
  %twice = f32[1,8,128]{2,1,0} add(%slice, %slice)
  ROOT %update = f32[12,8,128]{2,1,0} dynamic-update-slice(%a, %twice, %at, %at, %at)
}
"""
SCAN = """
    %a = f32[12,8,128]{2,1,0} parameter(0)
    %b = f32[12,8,128]{2,1,0} parameter(1)
    %at = s32[] constant(3)
    ROOT %f = f32[12,8,128]{2,1,0} fusion(%a, %at, %b), kind=kLoop, calls=%fused"""


def test_a_fusion_reads_and_writes_the_slices_that_it_needs():
    a_layer = 4 * 8 * 128
    assert roofline(SCAN, FUSED) == {OTHERS: moved(2 * a_layer + 4)}
    whole = FUSED.replace("dynamic-slice(%copied", "reduce(%copied")
    assert roofline(SCAN, whole) == {OTHERS: moved(13 * a_layer + 4)}


def test_loops_multiply():
    body = FUSED.replace("%fused (a", "%body (a").replace("%update =", "%done =")
    entry = '%w = f32[8] while(%p), condition=%c, body=%body, backend_config={"known_trip_count":{"n":"5"}}'
    copy, slice_, add, update, indices = 2 * 12, 2, 3, 2, 2 * 3 * 4
    inside = (copy + slice_ + add + update) * 4 * 8 * 128 + indices
    assert sum(roofline(entry, body).values()) == moved(5 * inside)


@pytest.mark.parametrize(
    ("product", "flop"),
    [
        ("dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}", 2 * CUBE),
        ("convolution(%a, %b), dim_labels=bf_io->bf", 2 * CUBE),
        ("convolution(%a, %b), dim_labels=bf_io->bf, operand_precision={highest,highest}", 6 * 2 * CUBE),
        ("dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}, algorithm=dot_bf16_bf16_f32_x3", 6 * CUBE),
    ],
)
def test_products_and_their_passes(product, flop):
    entry = f"""
    %a = f32[4096,4096]{{1,0}} parameter(0)
    %b = f32[4096,4096]{{1,0}} parameter(1)
    ROOT %c = f32[4096,4096]{{1,0}} {product}"""
    assert roofline(entry) == {PRODUCTS: computed(flop)}
    halves = roofline(entry.replace("f32[", "bf16["))
    assert halves == {PRODUCTS: computed(2 * CUBE)}  # one pass


WINDOWS = ["size=32 stride=31 lhs_dilate=32", "size=32 stride=32 pad=31_31 lhs_dilate=31 rhs_reversal=1"]


@pytest.mark.parametrize("window", WINDOWS)
def test_a_batch_of_products_that_a_tpu_writes_as_a_convolution(window):
    entry = f"""
    %a = bf16[32,4096,512]{{2,1,0:S(1)}} parameter(0)
    %b = bf16[32,512,4096]{{2,1,0:S(1)}} parameter(1)
    ROOT %c = bf16[32,4096,4096]{{2,1,0:S(1)}} convolution(%a, %b), window={{{window}}}, dim_labels=0bf_0io->0bf"""
    assert roofline(entry) == {PRODUCTS: computed(2 * 32 * 4096 * 512 * 4096)}


def test_gathers_read_rows_and_kernels_cost_what_they_declare():
    entry = """
    %table = f32[30000,768]{1,0} parameter(0)
    %ids = s32[64]{0} parameter(1)
    %rows = f32[64,768]{1,0} gather(%table, %ids), offset_dims={1}
    ROOT %k = f32[64,768]{1,0} custom-call(%rows), custom_call_target="tpu_custom_call", \
backend_config={"custom_call_config":{"cost_estimate":{"flops":"197000000","transcendentals":"0",\
"bytes_accessed":"8"}}}"""
    found = roofline(entry)
    assert found == {GATHERS: moved(2 * 4 * 64 * 768 + 4 * 64), KERNELS: computed(197e6)}


@pytest.mark.parametrize(("size", "bound"), [(8192, computed(2 * 8192**3)), (64, moved(3 * 2 * 64**2))])
def test_a_product_by_cublas(size, bound):
    array = f"bf16[{size},{size}]{{1,0}}"
    entry = f"""
    %a = {array} parameter(0)
    ROOT %c = ({array}, s8[4194304]{{0}}) custom-call(%a, %a), custom_call_target="__cublas$gemm", \
backend_config={{"gemm_backend_config":{{"dot_dimension_numbers":{{"lhs_contracting_dimensions":["1"],\
"rhs_contracting_dimensions":["0"]}}}}}}"""
    assert roofline(entry) == {PRODUCTS: bound}


ASYNCHRONOUS = """
    %p = f32[1024,1024]{1,0} parameter(0)
    %start = (f32[1024,1024]{1,0:S(1)}, f32[1024,1024]{1,0}, u32[]{:S(2)}) copy-start(%p)
    %slice = ((f32[1024,1024]{1,0}), f32[8,1024]{1,0:S(1)}, s32[]{:S(2)}) slice-start(%p), slice={[0:8], [0:1024]}
    %done = f32[1024,1024]{1,0:S(1)} copy-done(%start)
    %go = (f32[1024,1024]{1,0}, f32[8192,1024]{1,0}) all-gather-start(%done), dimensions={0}
    %gone = f32[8192,1024]{1,0} all-gather-done(%go)
    %sum = f32[8192,1024]{1,0} all-reduce(%gone), to_apply=%add"""


def test_what_runs_meanwhile_takes_the_rest_of_its_time():
    copied, gathered = 4 * 1024 * 1032, 4 * 8192 * 1024
    assert roofline(ASYNCHRONOUS) == {COPIES: moved(copied), COMMUNICATION: linked(gathered + 2 * gathered)}
    precisely = "dim_labels=bf_io->bf, operand_precision={highest,highest}"
    product = f"\n%c = f32[1024,1024]{{1,0:S(1)}} convolution(%done, %done), {precisely}"
    flop = 6 * 2 * 1024**3
    found = roofline(ASYNCHRONOUS + product)
    assert found[PRODUCTS] == computed(flop)
    assert COPIES not in found  # the product leaves all of the bandwidth
    assert found[COMMUNICATION] == pytest.approx(3 * gathered / V5E.link - flop / V5E.flops)
    # A sum that waits for memory leaves its time to the collective, and no bandwidth to the copies.
    found = roofline(ASYNCHRONOUS + "\n%twice = f32[1024,1024]{1,0} add(%p, %p)")
    summed = 3 * 4 * 1024**2
    assert found[COPIES] == moved(copied)
    assert found[COMMUNICATION] == pytest.approx(3 * gathered / V5E.link - summed / V5E.bandwidth)


def test_a_program_that_xla_compiled():
    """Three turns of a product with a matrix of a stack, which is sliced in the loop."""

    def function(x, stack):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, stack)[0]

    x, stack = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((4096, 64), (3, 64, 64)))
    chip = CHIPS["A100"]
    estimate, found = seconds_by_kind(jax.jit(function).lower(x, stack).compile().as_text(), chip)
    assert estimate == {}
    array = 4 * 4096 * 64
    assert found.pop("launches of kernels") >= 3 * 2.5e-6
    assert 3 * 2 * array / chip.bandwidth <= sum(found.values()) < 3 * 8 * array / chip.bandwidth


def test_a_gpu_launches_each_kernel_of_the_program_once_a_turn():
    body = FUSED.replace("%fused (a", "%body (a")  # copy, slice, add and update
    entry = """
    %p = f32[12,8,128]{2,1,0} parameter(0)
    %at = s32[] constant(3)
    %view = f32[96,128]{1,0} bitcast(%p)
    %f = f32[12,8,128]{2,1,0} fusion(%p, %at, %p), kind=kLoop, calls=%fused
    %w = f32[8] while(%p), condition=%c, body=%body, backend_config={"known_trip_count":{"n":"5"}}
    %u = f32[8] while(%p), condition=%c, body=%body
    %random = (u32[8]{0}, u32[8]{0}) custom-call(%p), custom_call_target="cu_threefry2x32_ffi"
    %s = ((f32[8]{0}), f32[8]{0}) all-reduce-start(%p), to_apply=%sum
    %d = f32[8]{0} all-reduce-done(%s)
    ROOT %t = (f32[8]) tuple(%d)"""
    kernels = 1 + 5 * 4 + 4 + 1 + 1
    assert roofline(entry, FUSED + body, CHIPS["H200"])["launches of kernels"] == pytest.approx(kernels * 2.5e-6)
