"""The manifests for GKE, against the schemas of JobSet and Kubernetes, and against themselves."""

import copy
import json
import math
import pathlib

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


@pytest.mark.parametrize("name", ["tpu.yaml", "gpu.yaml"])
def test_manifests_are_of_the_schemas(name):
    assert mistakes(manifest(name)) == []


@pytest.mark.parametrize("name", ["runs.yaml", "look.yaml"])
def test_other_manifests_match_the_schemas(name):
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for version in KUBERNETES:
        kubernetes_validate.validate(manifest(name), version, strict=True)


def test_none_is_left_out():
    assert {path.name for path in GKE.glob("*.yaml")} == {"tpu.yaml", "gpu.yaml", "runs.yaml", "look.yaml"}


def test_a_pod_mounts_the_workdirs_read_only():
    (volume,) = manifest("look.yaml")["spec"]["volumes"]
    claim = manifest("runs.yaml")["metadata"]["name"]
    assert volume["persistentVolumeClaim"] == {"claimName": claim, "readOnly": True}


@pytest.mark.parametrize(
    ("where", "key", "value"),
    [
        ((), "apiVersion", "jobset.x-k8s.io/v1"),
        (("spec",), "replicatedJob", []),
        (("spec", "failurePolicy"), "maxRestarts", "100"),
        (("spec", "failurePolicy"), "restartStrategy", "Blocking"),
        (("spec", "failurePolicy", "rules", 0), "action", "Fail"),
        (("spec", "failurePolicy", "rules", 0), "onJobFailureReasons", ["PodFailure"]),
        (("spec", "replicatedJobs", 0), "name", "Slice"),
        (("spec", "replicatedJobs", 0, "template", "spec"), "completion", 4),
        (("spec", "replicatedJobs", 0, "template", "spec"), "backoffLimit", "0"),
        (("spec", "replicatedJobs", 0, "template", "spec", "podFailurePolicy", "rules", 0), "action", 1),
        (("spec", "replicatedJobs", 0, "template", "spec", "template", "spec"), "nodeSelectors", {}),
    ],
)
def test_the_schemas_find_what_is_wrong(where, key, value):
    document = copy.deepcopy(manifest("tpu.yaml"))
    place = document
    for step in where:
        place = place[step]
    place[key] = value
    assert mistakes(document)


@pytest.mark.parametrize("name", ["tpu.yaml", "gpu.yaml"])
def test_another_try_is_for_75_and_kills(name):
    """What the schemas leave open: one pod's end is the Job's, a mistake's is the set's, and all else restarts all."""
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
