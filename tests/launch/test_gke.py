"""The manifests for GKE, against the schemas of Kubernetes and themselves, and what all launchers try again."""

import math
import pathlib
import re

import pytest
import yaml

from endx_jax.errors import TRY_AGAIN

ROOT = pathlib.Path(__file__).parents[2]
GKE = ROOT / "launch" / "gke"
# Pod failure policies are stable from 1.31.
KUBERNETES = ("1.31", "1.37")
# Statuses after which a run is restarted: "the same command resumes", and the signals ABRT, BUS, KILL, SEGV and TERM.
AGAIN = [TRY_AGAIN, 134, 135, 137, 139, 143]
JOB = "spec replicatedJobs 0 template spec"
POD = f"{JOB} template spec"


def manifest(name: str) -> dict:
    (document,) = yaml.safe_load_all((GKE / name).read_text())
    return document


def at(document: dict, path: str):
    """The value at a path of keys and indices."""
    for key in path.split():
        document = document[int(key) if key.isdigit() else key]
    return document


def mistakes(document: dict) -> list[str]:
    """What the schemas of Kubernetes have against a manifest; of a JobSet, against its Job."""
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    if document["kind"] == "JobSet":
        about = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}}
        document = about | at(document, "spec replicatedJobs 0 template")
    found = []
    for version in KUBERNETES:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            found.append(error.message)
    return found


def test_all_manifests_are_of_the_schemas_which_find_a_mistake():
    found = {path.name: mistakes(manifest(path.name)) for path in GKE.glob("*.yaml")}
    assert found == {"tpu.yaml": [], "gpu.yaml": [], "runs.yaml": [], "look.yaml": []}
    for path, key, value in ((JOB, "backoffLimit", "0"), (POD, "nodeSelectors", {})):
        wrong = manifest("tpu.yaml")
        at(wrong, path)[key] = value
        assert mistakes(wrong), key


@pytest.mark.parametrize("name", ["tpu.yaml", "gpu.yaml"])
def test_a_run_is_tried_again_after_75_and_kills_and_keeps_its_workdir_in_a_bucket(name):
    document, text = manifest(name), (GKE / name).read_text()
    pod, endx = at(document, POD), at(document, f"{POD} containers 0")
    rule = {"name": "mistake", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
    codes = {"containerName": endx["name"], "operator": "NotIn", "values": AGAIN}  # Kubernetes wants them sorted
    for path, value in {
        # JobSet has no schema here.
        "spec failurePolicy": {"maxRestarts": 100, "restartStrategy": "BlockingRecreate", "rules": [rule]},
        f"{JOB} podFailurePolicy rules": [{"action": "FailJob", "onExitCodes": codes}],
        f"{JOB} parallelism": at(document, f"{JOB} completions"),
        f"{JOB} completionMode": "Indexed",
        f"{JOB} backoffLimit": 0,
        f"{POD} restartPolicy": "Never",  # or Kubernetes refuses the podFailurePolicy
        f"{POD} serviceAccountName": "endx",
    }.items():
        assert at(document, path) == value, path
    assert any(argument.startswith("--workdir=gs://BUCKET/") for argument in endx["args"])
    mounted = {mount["name"] for mount in endx.get("volumeMounts", [])}
    assert mounted == {volume["name"] for volume in pod.get("volumes", [])}
    # The shared folder, as an option, is that of runs.yaml.
    assert f"{{claimName: {at(manifest('runs.yaml'), 'metadata name')}}}" in text
    assert "key" not in text.lower()
    assert "command" not in endx  # the image's tini, which passes signals on


def test_the_slice_and_the_nodes_know_their_sizes_and_places_and_the_viewer_only_reads():
    tpu, gpu = manifest("tpu.yaml"), manifest("gpu.yaml")
    resources = at(tpu, f"{POD} containers 0 resources")
    assert resources["requests"] == resources["limits"]
    chips = at(tpu, f"{JOB} completions") * resources["limits"]["google.com/tpu"]
    topology = at(tpu, f"{POD} nodeSelector cloud.google.com/gke-tpu-topology")
    assert chips == math.prod(map(int, topology.split("x")))
    variables = {one["name"]: one for one in at(gpu, f"{POD} containers 0 env")}
    port = at(gpu, f"{POD} containers 0 ports 0 containerPort")
    assert variables["JAX_NUM_PROCESSES"]["value"] == str(at(gpu, f"{JOB} completions"))
    assert variables["JAX_COORDINATOR_ADDRESS"]["value"] == f"$(COORDINATOR):{port}"
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    assert at(variables, "JAX_PROCESS_ID valueFrom fieldRef fieldPath") == index
    claim = at(manifest("look.yaml"), "spec volumes 0 persistentVolumeClaim")
    assert claim == {"claimName": at(manifest("runs.yaml"), "metadata name"), "readOnly": True}


def test_all_launchers_try_again_after_the_same_statuses():
    for file, pattern, statuses in (
        ("launch/local.py", r"^AGAIN = \(TRY_AGAIN, (.*)\)$", AGAIN[1:]),
        ("launch/local.py", r"^TRY_AGAIN = (\d+) ", AGAIN[:1]),
        ("launch/slurm.sh", r'^export AGAIN="(.*)"$', AGAIN),
        ("launch/tpu/endx.service", r"^RestartForceExitStatus=(.*)$", AGAIN),
    ):
        (found,) = re.findall(pattern, (ROOT / file).read_text(), re.MULTILINE)
        assert [int(status) for status in re.findall(r"\d+", found)] == statuses, file
