import importlib.util
import os
import subprocess
import sys
import warnings

import jax
import numpy as np
from helpers import write_files
from jax.experimental.compilation_cache import compilation_cache
from refusals import check_refusal

from endx_jax.parallel import environment
from endx_jax.parallel.environment import DistributedConfig, first_node, read_environment


def test_one_process_needs_no_configuration_and_jax_s_own_variables_come_first(variables):
    assert read_environment() is None
    variables(COORDINATOR="a:1", COUNT="1", INDEX="0")
    assert read_environment() is None
    slurm = {"SLURM_JOB": "7", "SLURM_NODES": "n[1-2]", "SLURM_COUNT": "2", "SLURM_INDEX": "0"}
    variables(COORDINATOR="a:1", COUNT="3", INDEX="2", **slurm)
    assert read_environment() == DistributedConfig("a:1", num_processes=3, process_id=2)


def test_a_step_of_slurms(variables):
    slurm = {"SLURM_JOB": "4098", "SLURM_NODES": "gpu[08-09]", "SLURM_INDEX": "1"}
    variables(**slurm, SLURM_COUNT="2")
    # 61440 + 4098 % 4096
    assert read_environment() == DistributedConfig("gpu08:61442", num_processes=2, process_id=1)
    variables(**slurm, SLURM_COUNT="8", PORT="5")
    assert read_environment() == DistributedConfig("gpu08:5", num_processes=8, process_id=1)


def test_the_first_of_a_list_of_nodes():
    lists = {"a": "a", "a,b-1": "a", "a-1,b": "a-1", "a[08-10,12],b": "a08", "a[8,12]": "a8", "r[1-2]n,c": "r1n"}
    assert {nodes: first_node(nodes) for nodes in lists} == lists


def test_the_hosts_of_a_tpu_pod(variables, monkeypatch):
    from jax._src.clusters import cloud_tpu_cluster

    monkeypatch.setattr(cloud_tpu_cluster, "running_in_cloud_tpu_vm", True)  # JAX finds out at its import
    one_slice = {f"MEGASCALE_{name}": "" for name in ("COORDINATOR_ADDRESS", "NUM_SLICES", "SLICE_ID")}
    variables(TPU_WORKER_HOSTNAMES="localhost,worker-1", TPU_WORKER_ID="1", **one_slice)
    assert read_environment() == DistributedConfig("localhost:8482", num_processes=2, process_id=1)


def test_a_jax_that_does_not_tell_the_hosts_of_a_tpu_is_told_them(variables, monkeypatch):
    installed = []
    monkeypatch.setitem(sys.modules, "jax._src.clusters", None)  # as in a JAX that has moved its private module
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name in installed or None)
    assert read_environment() is None
    installed.append("libtpu")
    variables(JAX_PLATFORMS="cpu")
    assert read_environment() is None
    for platforms in ("", "tpu,cpu"):
        variables(JAX_PLATFORMS=platforms)
        check_refusal(read_environment, "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "each host")
    variables(COORDINATOR="localhost:8482", COUNT="1", INDEX="0")
    assert read_environment() is None


def test_cores_are_those_of_the_affinity_and_of_the_quota(tmp_path):
    own = len(os.sched_getaffinity(0))
    second, first = {"proc/self/cgroup": "0::/jobs/mine\n"}, {"proc/self/cgroup": "3:cpu,cpuacct:/docker/1\n"}
    second["sys/fs/cgroup/jobs/mine/cpu.max"] = "max 100000\n"
    first |= {"sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n"}
    for name, files, count in (
        ("no group", {}, own),
        ("version 2, no quota", second, own),
        ("version 2, of the group above", second | {"sys/fs/cgroup/jobs/cpu.max": "50000 100000\n"}, 1),
        ("version 2, one and a half", second | {"sys/fs/cgroup/jobs/cpu.max": "150000 100000\n"}, min(own, 2)),
        ("version 1, no quota", first, own),
        ("version 1", first | {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n"}, 1),
    ):
        assert environment.cores(write_files(tmp_path / name, files)) == count, name


def test_damaged_entries_are_replaced(tmp_path):
    def compiled():
        """Compiles a function that is new to this process; returns the size of its entry."""

        def five_times(x):
            return x * 5

        with warnings.catch_warnings():
            warnings.simplefilter("error")  # after those that the function below takes
            warnings.filterwarnings("always", "Error reading persistent compilation cache")
            environment.use_compilation_cache(str(tmp_path), 0.0)
            compilation_cache.reset_cache()
            assert jax.jit(five_times)(np.float32(2)) == 10
        return sum(file.stat().st_size for file in tmp_path.glob("jit_five_times-*-cache"))

    whole = compiled()
    (entry,) = tmp_path.glob("jit_five_times-*-cache")
    entry.write_bytes(entry.read_bytes()[:50])
    assert compiled() > whole - 50
    written = entry.stat().st_mtime_ns
    assert (compiled() > whole - 50, entry.stat().st_mtime_ns) == (True, written)
    compilation_cache.reset_cache()


def test_warnings_are_shown_as_the_program_shows_them(monkeypatch):
    shown = []
    monkeypatch.setattr(warnings, "showwarning", lambda message, *_: shown.append(str(message)))
    for _ in range(2):
        environment.use_compilation_cache("")
        ours = warnings.showwarning
        with warnings.catch_warnings(action="always"):
            warnings.warn("of the program", stacklevel=1)
    assert shown == ["of the program"] * 2
    monkeypatch.setattr(warnings, "showwarning", lambda *about: ours(*about))  # the program's, which calls the former
    environment.use_compilation_cache("")
    warnings.showwarning(UserWarning("again"), UserWarning, "file", 1)
    assert shown[2:] == ["again"]


def test_the_commit_is_that_of_the_code_and_of_no_project_around_it(tmp_path, monkeypatch):
    def commit(name):
        monkeypatch.setattr(environment, "__file__", str(tmp_path / name))
        return environment.environment.__wrapped__()["commit"]

    git = ("git", "-c", "user.name=n", "-c", "user.email=e", "-c", "init.defaultBranch=main")
    for name in ("own.py", "installed.py"):
        (tmp_path / name).touch()
    for arguments in (["init", "-q"], ["add", "own.py"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *arguments], cwd=tmp_path, check=True)
    assert (len(commit("own.py")), commit("installed.py")) == (40, "")


def test_a_cache_that_is_configured_stays_and_without_one_programs_are_kept_where_training_keeps_them(variables):
    def settings():
        return jax.config.jax_compilation_cache_dir, jax.config.jax_persistent_cache_min_compile_time_secs

    before = settings()
    environment.use_compilation_cache("")
    assert settings() == before
    for folder, seconds in (("/chosen", before[1]), ("/some/folder", 2.0)):
        environment.use_compilation_cache(folder, seconds)
        environment.keep_programs()
        assert settings() == (folder, seconds)
    variables(XDG_CACHE_HOME="/caches")
    jax.config.update("jax_compilation_cache_dir", None)
    environment.keep_programs()
    assert settings() == ("/caches/endx_jax/xla", 0.0)
