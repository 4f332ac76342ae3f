"""The manifests for GKE, against the schemas of JobSet and Kubernetes and against themselves, and the shell scripts."""

import json
import math
import pathlib
import re
import shutil
import subprocess

import pytest
import yaml

GKE = pathlib.Path(__file__).parents[2] / "launch" / "gke"
SCHEMA = pathlib.Path(__file__).with_name("jobset.json")
# Pod failure policies are stable from 1.31.
KUBERNETES = ("1.31", "1.37")


def manifest(name: str) -> dict:
    (document,) = yaml.safe_load_all((GKE / name).read_text())
    return document


def job(document: dict) -> dict:
    (replicated,) = document["spec"]["replicatedJobs"]
    return replicated["template"]["spec"]


def container(document: dict) -> dict:
    (found,) = job(document)["template"]["spec"]["containers"]
    return found


def mistakes(document: dict) -> list[str]:
    """What the schemas have against a manifest."""
    jsonschema = pytest.importorskip("jsonschema")
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text()))
    found = [error.message for error in validator.iter_errors(document)]
    for replicated in document["spec"]["replicatedJobs"]:
        as_job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, **replicated["template"]}
        for version in KUBERNETES:
            try:
                kubernetes_validate.validate(as_job, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                found.append(error.message)
    return found


def test_all_manifests_are_of_the_schemas():
    assert {path.name for path in GKE.glob("*.yaml")} == {"tpu.yaml", "gpu.yaml", "runs.yaml", "look.yaml"}
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for name in ("runs.yaml", "look.yaml"):
        for version in KUBERNETES:
            kubernetes_validate.validate(manifest(name), version, strict=True)
    assert [mistakes(manifest(name)) for name in ("tpu.yaml", "gpu.yaml")] == [[], []]


def test_a_pod_mounts_the_workdirs_read_only():
    (volume,) = manifest("look.yaml")["spec"]["volumes"]
    claim = manifest("runs.yaml")["metadata"]["name"]
    assert volume["persistentVolumeClaim"] == {"claimName": claim, "readOnly": True}


def test_the_schemas_find_what_is_wrong():
    job = "spec replicatedJobs 0 template spec "
    wrong = {"apiVersion": "jobset.x-k8s.io/v1", "spec replicatedJob": [], "spec failurePolicy maxRestarts": "100"}
    wrong |= {"spec failurePolicy rules 0 onJobFailureReasons": ["PodFailure"], "spec replicatedJobs 0 name": "Slice"}
    wrong |= {f"{job}completion": 4, f"{job}backoffLimit": "0", f"{job}template spec nodeSelectors": {}}
    for path, value in (wrong | {f"{job}podFailurePolicy rules 0 action": 1}).items():
        place = document = manifest("tpu.yaml")
        *where, key = path.split()
        for step in where:
            place = place[int(step) if step.isdigit() else step]
        place[key] = value
        assert mistakes(document), path


@pytest.mark.parametrize("name", ["tpu.yaml", "gpu.yaml"])
def test_another_try_is_for_75_and_kills(name):
    document = manifest(name)
    spec = job(document)
    assert spec["completions"] == spec["parallelism"]
    assert spec["completionMode"] == "Indexed"
    assert spec["backoffLimit"] == 0
    assert spec["template"]["spec"]["restartPolicy"] == "Never"  # or Kubernetes refuses the podFailurePolicy
    (rule,) = spec["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob"
    assert rule["onExitCodes"]["containerName"] == container(document)["name"]
    assert rule["onExitCodes"]["operator"] == "NotIn"
    assert rule["onExitCodes"]["values"] == sorted(set(rule["onExitCodes"]["values"]))  # Kubernetes wants them so
    (rule,) = document["spec"]["failurePolicy"]["rules"]
    assert (rule["action"], rule["onJobFailureReasons"]) == ("FailJobSet", ["PodFailurePolicy"])
    assert document["spec"]["failurePolicy"]["maxRestarts"] > 0


@pytest.mark.parametrize("name", ["tpu.yaml", "gpu.yaml"])
def test_the_workdir_is_in_a_bucket_of_the_service_account(name):
    document = manifest(name)
    pod, endx = job(document)["template"]["spec"], container(document)
    assert any(argument.startswith("--workdir=gs://BUCKET/") for argument in endx["args"])
    assert pod["serviceAccountName"] == "endx"
    mounted = {mount["name"] for mount in endx.get("volumeMounts", [])}
    assert mounted == {volume["name"] for volume in pod.get("volumes", [])}
    text = (GKE / name).read_text()  # the shared folder, as an option, is that of runs.yaml
    assert f"{{claimName: {manifest('runs.yaml')['metadata']['name']}}}" in text
    assert "key" not in text.lower()
    assert "command" not in endx  # the image's tini, which passes signals on


def test_the_tpu_slice_has_as_many_chips_as_its_topology():
    document = manifest("tpu.yaml")
    topology = job(document)["template"]["spec"]["nodeSelector"]["cloud.google.com/gke-tpu-topology"]
    resources = container(document)["resources"]
    assert resources["requests"] == resources["limits"]
    chips = job(document)["completions"] * resources["limits"]["google.com/tpu"]
    assert chips == math.prod(map(int, topology.split("x")))


def test_the_gpu_nodes_know_their_places():
    document = manifest("gpu.yaml")
    variables = {variable["name"]: variable for variable in container(document)["env"]}
    assert variables["JAX_NUM_PROCESSES"]["value"] == str(job(document)["completions"])
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    assert variables["JAX_PROCESS_ID"]["valueFrom"]["fieldRef"]["fieldPath"] == index
    (port,) = container(document)["ports"]
    assert variables["JAX_COORDINATOR_ADDRESS"]["value"] == f"$(COORDINATOR):{port['containerPort']}"
    (replicated,) = document["spec"]["replicatedJobs"]
    assert document["spec"]["coordinator"] == {"replicatedJob": replicated["name"], "jobIndex": 0, "podIndex": 0}


ROOT = pathlib.Path(__file__).parents[2]
SCRIPTS = ["launch/slurm.sh", "launch/tpu/vm.sh", ".ci/run"]

# 75, and the signals ABRT, BUS, KILL, SEGV and TERM.
AGAIN = "75 134 135 137 139 143"


def test_bash_reads_all_of_them():
    found = {str(path.relative_to(ROOT)) for path in (ROOT / "launch").rglob("*.sh")}
    assert found == {script for script in SCRIPTS if script.startswith("launch")}
    for script in SCRIPTS:
        assert subprocess.run(["bash", "-n", ROOT / script], capture_output=True, text=True).stderr == ""


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not installed")
@pytest.mark.parametrize("script", SCRIPTS)
def test_shellcheck_has_nothing_to_say(script):
    done = subprocess.run(["shellcheck", "--exclude=SC1091", ROOT / script], capture_output=True, text=True)
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("file", "pattern"),
    [
        ("launch/local.py", r"^AGAIN = \(TRY_AGAIN, (.*)\)$"),
        ("launch/slurm.sh", r'^export AGAIN="(.*)"$'),
        ("launch/tpu/endx.service", r"^RestartForceExitStatus=(.*)$"),
        ("launch/gke/tpu.yaml", r"^ +values: \[(.*)\]$"),
        ("launch/gke/gpu.yaml", r"^ +values: \[(.*)\]$"),
    ],
)
def test_all_try_again_after_the_same(file, pattern):
    (found,) = re.findall(pattern, (ROOT / file).read_text(), re.MULTILINE)
    assert found.replace(",", "") in (AGAIN, AGAIN.removeprefix("75 "))


def test_75_is_what_endx_says():
    local = (ROOT / "launch" / "local.py").read_text()
    from endx_jax.errors import TRY_AGAIN

    assert f"TRY_AGAIN = {TRY_AGAIN} " in local
