import types

import jax
import pytest
from helpers import status_of_fork, write_files

from endx_jax.parallel import memory
from endx_jax.parallel.memory import DeviceMemory, host_memory, measure

KIB = 2**10


HOST = {"proc/meminfo": "MemTotal: 4096 kB\nMemFree: 10 kB\nMemAvailable:    2048 kB\n"}
VERSION_2 = {
    "proc/self/cgroup": "0::/jobs/mine\n",
    "sys/fs/cgroup/jobs/mine/memory.max": "max\n",
    "sys/fs/cgroup/jobs/mine/memory.current": "400000\n",
    "sys/fs/cgroup/jobs/memory.max": "1000000\n",
    "sys/fs/cgroup/jobs/memory.current": "700000\n",
    "sys/fs/cgroup/jobs/memory.stat": "anon 500000\ninactive_file 200000\n",
}
VERSION_1 = {
    "proc/self/cgroup": "5:cpu,cpuacct:/other\n4:memory:/docker/1234\n0::/\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "900000\n",  # a container sees only its own group, as the root
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "300000\n",
    "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 100000\n",
}
UNLIMITED = VERSION_1 | {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}
FULL = VERSION_2 | {"sys/fs/cgroup/jobs/memory.current": "1300000\n"}


def test_memory_is_the_least_of_the_hosts_and_the_control_groups(tmp_path):
    for name, files, total, free in (
        ("not Linux", {}, memory.UNKNOWN, memory.UNKNOWN),
        ("no limit", HOST, 4096 * KIB, 2048 * KIB),
        ("version 2, of the group above", HOST | VERSION_2, 1_000_000, 1_000_000 - 700_000 + 200_000),
        ("version 1", HOST | VERSION_1, 900_000, 900_000 - 300_000 + 100_000),
        ("version 1, no limit", HOST | UNLIMITED, 4096 * KIB, 2048 * KIB),
        ("full", HOST | FULL, 1_000_000, 0),
    ):
        assert host_memory(write_files(tmp_path / name, files)) == (total, free), name


def test_a_step_stays_under_half_of_the_memory():
    found = [DeviceMemory(1000).activations(state) for state in (100, 900, 1100)]
    assert found == [400, 50, 0]  # 100 + 400 are half of 1000
    assert DeviceMemory(1000, held=200).activations(100) == 200
    # (500 - 100 - 4 * 50) for each of four devices
    assert DeviceMemory(1000, held=100, devices=4).activations(50) == 50


def device(stats):
    return types.SimpleNamespace(memory_stats=lambda: stats)


def test_accelerators_have_memory_of_their_own(monkeypatch):
    monkeypatch.setattr(jax, "local_devices", lambda: [device({"bytes_limit": 80, "bytes_in_use": 5})] * 2)
    assert measure() == DeviceMemory(80, 5)


def test_cpus_share_the_host_s_memory():
    free, held = host_memory()[1], memory.resident()
    found = measure()
    assert found.total == pytest.approx(free + held, rel=0.2)  # other programs take and free memory meanwhile
    assert found.held == pytest.approx(held + memory.RUNTIME, rel=0.2)
    assert found.devices == 8


def test_this_process_holds_what_it_has_written():
    def check():
        before, held = memory.resident(), b"x" * 2**26
        assert memory.resident() - before > 0.8 * len(held)

    assert status_of_fork(check) == 0  # in a process of its own, in which no thread returns memory in between
