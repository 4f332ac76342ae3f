"""Rooflines of small programs by visible arithmetic: FLOP over the peak, bytes over the bandwidth of an H200."""

import jax
import jax.numpy as jnp
import pytest

from endx_jax.planning.chips import CHIPS
from endx_jax.planning.roofline import COMMUNICATION, LAUNCH, LAUNCHES, OTHERS, PRODUCTS, roofline

H200 = CHIPS["H200"]


def moved(count):
    return pytest.approx(count / H200.bandwidth)


def computed(flop):
    return pytest.approx(flop / H200.flops)


def linked(count):
    return pytest.approx(count / H200.link)


def times(entry, rest=""):
    """Roofline of a program whose entry computation has these instructions; (times without launches, launches)."""
    lines = "".join(f"  {line}\n" for line in entry.strip().splitlines())
    found = roofline(f"HloModule f\n\n{rest}\nENTRY %main (p: f32[8]) -> f32[8] {{\n{lines}}}\n", H200)
    return found, round(found.pop(LAUNCHES) / LAUNCH)


VIEWS = """
    %p = f32[1024,256]{1,0} parameter(0)
    %q = f32[256,1024]{1,0} bitcast(%p)
    %sum = f32[256,1024]{1,0} add(%q, %q)
    ROOT %t = (f32[256,1024]{1,0}) tuple(%sum)"""
PRODUCT = """
    %a = bf16[4096,4096]{1,0} parameter(0)
    %b = bf16[4096,4096]{1,0} parameter(1)
    ROOT %c = f32[4096,4096]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}"""
BY_CUBLAS = """
    %a = bf16[8192,8192]{1,0} parameter(0)
    ROOT %c = (bf16[8192,8192]{1,0}, s8[4194304]{0}) custom-call(%a, %a), custom_call_target="__cublas$gemm", \
backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],\
"rhs_contracting_dimensions":["0"]}}}"""
ROWS = """
    %table = f32[30000,768]{1,0} parameter(0)
    %ids = s32[64]{0} parameter(1)
    ROOT %rows = f32[64,768]{1,0} gather(%table, %ids), offset_dims={1}"""
ONE_KERNEL = {
    "operands and results are moved once and views cost nothing": (VIEWS, OTHERS, moved(3 * 4 * 1024 * 256)),
    "a product": (PRODUCT, PRODUCTS, computed(2 * 4096**3)),
    "a product by cuBLAS": (BY_CUBLAS, PRODUCTS, computed(2 * 8192**3)),
    "a small one": (BY_CUBLAS.replace("8192", "64"), PRODUCTS, moved(3 * 2 * 64**2)),
    "gathers read rows": (ROWS, OTHERS, moved(2 * 4 * 64 * 768 + 4 * 64)),
}


@pytest.mark.parametrize(("entry", "kind", "seconds"), ONE_KERNEL.values(), ids=ONE_KERNEL)
def test_a_kernel_takes_as_long_as_its_bytes_or_its_flop(entry, kind, seconds):
    assert times(entry) == ({kind: seconds}, 1)


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
    assert times(SCAN, FUSED) == ({OTHERS: moved(2 * a_layer + 4)}, 1)
    whole = FUSED.replace("dynamic-slice(%copied", "reduce(%copied")
    assert times(SCAN, whole) == ({OTHERS: moved(13 * a_layer + 4)}, 1)


def test_loops_multiply():
    body = FUSED.replace("%fused (a", "%body (a").replace("%update =", "%done =")
    entry = '%w = f32[8] while(%p), condition=%c, body=%body, backend_config={"known_trip_count":{"n":"5"}}'
    copy, slice_, add, update, indices = 2 * 12, 2, 3, 2, 2 * 3 * 4
    inside = (copy + slice_ + add + update) * 4 * 8 * 128 + indices
    assert times(entry, body) == ({OTHERS: moved(5 * inside)}, 5 * 4)


def test_kernels_run_beside_asynchronous_collectives():
    entry = """
    %p = f32[1024,1024]{1,0} parameter(0)
    %go = (f32[1024,1024]{1,0}, f32[8192,1024]{1,0}) all-gather-start(%p), dimensions={0}
    %gone = f32[8192,1024]{1,0} all-gather-done(%go)
    %sum = f32[8192,1024]{1,0} all-reduce(%gone), to_apply=%add"""
    gathered, summed = 4 * 8192 * 1024, 3 * 4 * 1024**2
    assert times(entry) == ({COMMUNICATION: linked(gathered + 2 * gathered)}, 2)
    found, _ = times(f"{entry}\n%twice = f32[1024,1024]{{1,0}} add(%p, %p)")
    assert found[COMMUNICATION] == pytest.approx(3 * gathered / H200.link - summed / H200.bandwidth)


def test_a_program_that_xla_compiled():
    """Three turns of a product with a matrix of a stack, which is sliced in the loop."""

    def function(x, stack):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, stack)[0]

    x, stack = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((4096, 64), (3, 64, 64)))
    found = roofline(jax.jit(function).lower(x, stack).compile().as_text(), H200)
    array = 4 * 4096 * 64
    assert found.pop(LAUNCHES) >= 3 * LAUNCH
    assert 3 * 2 * array / H200.bandwidth <= sum(found.values()) < 3 * 8 * array / H200.bandwidth


def test_each_kernel_is_launched_once_a_turn():
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
    assert times(entry, FUSED + body)[1] == 1 + 5 * 4 + 4 + 1 + 1
