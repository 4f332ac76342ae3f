import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from endx_jax.planning.programs import Collective, collectives, shape_bytes

# Written as XLA writes it: a loop of unknown length around a loop of five, both kinds of asynchronous collectives, and
# tuples with comments.
PROGRAM = """\
HloModule jit_f, is_scheduled=true, num_partitions=8

%add (x: f32[], y: f32[]) -> f32[] {
  ROOT %sum = f32[] add(%x, %y)
}

%wrapped (p: bf16[16]) -> bf16[2] {
  ROOT %scatter = bf16[2]{0} reduce-scatter(%p), to_apply=%add, metadata={op_name="jit(f)/psum_scatter"}
}

%inner (arg: (s32[], f32[4])) -> (s32[], f32[4]) {
  %all = (f32[4]{0:T(256)}, /*index=1*/pred[3]{0}) all-reduce(%a, %b), replica_groups={{0,1}}, to_apply=%add
}

%outer (arg: (s32[], f32[4])) -> (s32[], f32[4]) {
  %go = (f32[1], f32[8]) all-gather-start(%x), dimensions={0}
  %gone = f32[8]{0} all-gather-done(%go)
  %w = (s32[], f32[4]) while(%t), condition=%c, body=%inner, backend_config={"known_trip_count":{"n":"5"}}
}

ENTRY %main (p: bf16[16]) -> bf16[2] {
  %started = ((bf16[16]), bf16[2]) async-start(%p), calls=%wrapped
  %w2 = (s32[], f32[4]) while(%t), condition=%c, body=%outer
  %w3 = (s32[], f32[4]) while(%t), condition=%c, body=%inner, backend_config={"known_trip_count":{"n":"7"}}
  ROOT %done = bf16[2] async-done(%started), calls=%wrapped
}
"""


def test_collectives_are_found_wherever_they_are_called():
    assert collectives(PROGRAM) == [
        Collective("reduce-scatter", bytes=4, times=1, loops=0, source="jit(f)/psum_scatter", asynchronous=True),
        Collective("all-gather", bytes=32, times=None, loops=1, source="", asynchronous=True),
        Collective("all-reduce", bytes=19, times=None, loops=2, source=""),
        Collective("all-reduce", bytes=19, times=7, loops=1, source=""),
    ]
    with pytest.raises(ValueError, match="no ENTRY"):
        collectives("module @jit_f {}")


# As a TPU's compiler writes it: a loop that counts to a constant, a fusion that reduces and keeps a part, a collective
# whose other half is elsewhere in the schedule, and one that runs beside the fusions of a loop.
TPU_PROGRAM = """\
HloModule jit_f, is_scheduled=true, num_partitions=4

%all-reduce-scatter (input: bf16[8,4]) -> bf16[2,4] {
  %all-reduce.2 = bf16[8,4]{1,0:T(8,128)(2,1)} all-reduce(%input), channel_id=3, to_apply=%add
  ROOT %part = bf16[2,4]{1,0} dynamic-slice(%all-reduce.2, %where, %zero), dynamic_slice_sizes={2,4}
}

%fused_computation.1 (p.1: f32[1,3]) -> (f32[1,3], f32[4,3], u32[]) {
  %all-gather.4 = f32[4,3]{0,1:T(8,128)} all-gather(%p.1), \
backend_config={"async_collective_fusion_config":{"flag_start":"-1"}}
  ROOT %begun = (f32[1,3], f32[4,3], u32[]{:S(2)}) custom-call(%all-gather.4), custom_call_target="AsyncCollectiveStart"
}

%async_collective_fusion.2 (p.2: f32[1,3]) -> (f32[8], f32[4,3], u32[]) {
  %all-gather.6 = f32[4,3]{0,1:T(8,128)} all-gather(%p.2), \
backend_config={"async_collective_fusion_config":{"flag_start":"2"}}
  ROOT %both = (f32[8], f32[4,3], u32[]{:S(2)}) tuple(%other, %all-gather.6, %flag)
}

%body (arg: (s32[], f32[4])) -> (s32[], f32[4]) {
  %fusion.2 = (f32[8], f32[4,3], u32[]{:S(2)}) fusion(%y), kind=kOutput, calls=%async_collective_fusion.2
  %fusion = bf16[2,4]{1,0:T(8,128)(2,1)S(1)} fusion(%x), kind=kCustom, calls=%all-reduce-scatter
}

%condition (arg: (s32[], f32[4])) -> pred[] {
  %constant.9 = s32[]{:T(128)} constant(24)
  %turn = s32[]{:T(128)} get-tuple-element(%arg), index=0
  ROOT %lt = pred[]{:T(512)} compare(%turn, %constant.9), direction=LT
}

ENTRY %main (p: bf16[16]) -> bf16[2] {
  %gather = bf16[8,4]{1,0:T(8,128)(2,1)} all-gather(%p), frontend_attributes={async_collective_name="all-gather-start"}
  %async-collective-start = (f32[1,3], f32[4,3], u32[]) fusion(%q), kind=kCustom, calls=%fused_computation.1
  %w = (s32[]{:T(128)}, f32[4]{0:T(128)}) while(%t), condition=%condition, body=%body
}
"""


def test_forms_of_a_tpu_are_known():
    assert collectives(TPU_PROGRAM) == [
        Collective("all-gather", bytes=64, times=1, loops=0, source="", asynchronous=True),
        Collective("all-gather", bytes=48, times=1, loops=0, source="", asynchronous=True),
        Collective("reduce-scatter", bytes=16, times=24, loops=1, source=""),
    ]


def test_trip_counts_multiply_in_a_program_that_xla_made():
    """Five times: gather once, and three times reduce; and reduce once more."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    split, whole = PartitionSpec("data"), PartitionSpec()

    def inner(_, x):
        return jnp.cos(jax.lax.pmean(x, "data"))

    def outer(_, x):
        gathered = jax.lax.all_gather(x, "data", tiled=True)
        return jax.lax.fori_loop(0, 3, inner, jnp.sin(gathered[:4]))

    def function(x):
        return jax.lax.psum(jax.lax.fori_loop(0, 5, outer, x), "data")

    sharded = jax.shard_map(function, mesh=mesh, in_specs=split, out_specs=whole, check_vma=False)
    program = jax.jit(sharded).lower(jax.ShapeDtypeStruct((32,), jnp.float32)).compile().as_text()
    found = {(c.kind, c.bytes, c.times, c.loops) for c in collectives(program)}
    assert found == {("all-gather", 128, 5, 1), ("all-reduce", 16, 15, 2), ("all-reduce", 16, 1, 0)}


@pytest.mark.parametrize(
    ("shape", "size"),
    [("f32[8,16]{1,0}", 512), ("bf16[3]", 6), ("pred[]", 1), ("(u4[3]{0}, f8e4m3fn[2])", 4), ("token[]", 0)],
)
def test_bytes_of_shapes(shape, size):
    assert shape_bytes(shape) == size
