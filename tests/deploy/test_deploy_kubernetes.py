"""The Helm chart and the manifests for KServe and Ray: linted and held to their schemas."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from paddlepool.settings.server import OLDER_NAMES, Settings
from paddlepool.tasks import PIPELINES
from paddlepool.tasks.task import load_tasks, settings_class
from tests.deploy.conftest import in_their_environment, promtool
from tests.ran import ROOT

CHART = ROOT / "deploy" / "helm" / "paddlepool"
KSERVE = ROOT / "deploy" / "kserve"
RAY = ROOT / "deploy" / "ray"
CRDS = ROOT.parent / "shared" / "data" / "crds"

SETTINGS = {
    f"PADDLEPOOL_{name.upper()}"
    for name in settings_class(load_tasks(PIPELINES).values()).model_fields
} | {*OLDER_NAMES.values()}
UNSETTABLE = {
    f"PADDLEPOOL_{name}"
    for name in (
        *("HOST", "PORT", "GRPC_PORT"),
        *("MODEL_REPOSITORY", "MODEL_SOURCE", "REPOSITORY_POLL_SECONDS"),
        *("DRAIN_DELAY_SECONDS", "DRAIN_TIMEOUT_SECONDS"),
        *("API_KEYS", "API_KEYS_FILE", "ADMIN_KEY", "START_GROUP_KEYS"),
        "HEALTH_NEEDS_KEY",  # the probes carry none
        "REPLICA",  # the pod's name
        "CANARY_JUDGE",  # the pod of `canary.judge`
    )
}
"""Settings that are not among the chart's `settings`."""

TYPOS = (
    ("helm/paddlepool/templates/deployment.yaml", "readinessProbe", "readynessProbe"),
    ("helm/paddlepool/templates/_helpers.tpl", "readOnlyRootFilesystem", "readOnlyRoot"),
    ("helm/paddlepool/templates/autoscaling.yaml", "averageUtilization", "averageUse"),
    ("helm/paddlepool/templates/service.yaml", "targetPort", "targetport"),
    ("helm/paddlepool/templates/monitoring.yaml", "authorization:", "authorisation:"),
    ("helm/paddlepool/templates/test.yaml", "restartPolicy", "restartpolicy"),
    ("helm/paddlepool/values.schema.json", '"replicaCount"', '"replicas"'),
    ("kserve/servingruntime.yaml", "supportedModelFormats", "supportedModelFormat"),
    ("kserve/inferenceservice.yaml", "maxReplicas", "maxReplica"),
    ("kserve/inferenceservice.yaml", "annotations:", "annotation:"),
    ("ray/rayservice.yaml", "serveConfigV2", "serveConfigv2"),
    ("ray/rayservice.yaml", "containerPort: 6379", "containerport: 6379"),
)
CHECK = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import check_manifests
import helm_python
crds, places = sys.argv[2], sys.argv[3:]
sys.argv[1:] = ["--crds", crds] if crds else []
print("exit code", check_manifests.main())
schemas = check_manifests.model_schemas()
schemas |= check_manifests.crd_schemas(Path(crds)) if crds else {}
sound = [*check_manifests.rendered(check_manifests.CHART, ["everything"])]
for place in map(Path, places):
    try:
        objects = (
            check_manifests.rendered(place / "paddlepool", ["everything"])
            if place.name == "helm"
            else check_manifests.written(place)
        )
        other = [each for each in objects if each not in sound]
        print(place.parent.name, len([*check_manifests.faults_of(other, schemas)]))
    except helm_python.HelmError:
        print(place.parent.name, 1)
"""
"""Prints the report of check_manifests.py, then how many faults each directory has; a chart is
rendered once, with every switch on. One process, because the schemas take seconds to load."""


@pytest.mark.slow
def test_chart_and_manifests_are_without_a_fault_and_planted_typos_are_found(
    tmp_path: Path,
) -> None:
    """Lint, strict schemas of two Kubernetes versions, and sets of values refused; with the
    definitions at hand no kind of KServe's or Ray's is without a schema."""
    crds = str(CRDS) if CRDS.is_dir() else ""
    typos = [typo for typo in TYPOS if crds or typo[0].startswith("helm")]
    places = []
    for number, (file, right, wrong) in enumerate(typos):
        directory, _, _ = file.partition("/")
        root = tmp_path / str(number)
        places.append(shutil.copytree(ROOT / "deploy" / directory, root / directory))
        text = (root / file).read_text("utf-8")
        assert right in text
        (root / file).write_text(text.replace(right, wrong), "utf-8")
    done = in_their_environment("-c", CHECK, ROOT / "deploy", crds, *places)
    report, _, counts = done.stdout.partition("exit code 0\n")
    assert report.splitlines()[-1].endswith(": 0 faults")
    if crds:
        assert not {"serving.kserve.io", "ray.io"} & set(re.split("[ /]", report))
    assert not {"keda.sh", "monitoring.coreos.com"} & set(re.split("[ /]", report))
    faults = dict(line.split() for line in counts.splitlines())
    assert [typo for n, typo in enumerate(typos) if faults[str(n)] == "0"] == []


def test_every_value_has_a_schema() -> None:
    """Two lists of the same names, level by level; what is free-form has no names."""
    values = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    del schema["properties"]["global"]  # Helm's own, given to every chart
    assert names(values) == {
        name for name in schema_names(schema) if not name.startswith("resources.")
    }


def names(values: object, prefix: str = "") -> set[str]:
    if not isinstance(values, dict):
        return set()
    free = {"requests", "limits"}
    result = {f"{prefix}{name}" for name in values if name not in free}
    return result.union(
        *(names(value, f"{prefix}{name}.") for name, value in values.items() if name not in free)
    )


def schema_names(schema: dict[str, dict[str, dict[str, object]]], prefix: str = "") -> set[str]:
    result: set[str] = set()
    for name, child in schema.get("properties", {}).items():
        result |= {f"{prefix}{name}"} | schema_names(child, f"{prefix}{name}.")  # type: ignore[arg-type]
    return result


def test_the_charts_settings_are_the_servers_own() -> None:
    """But for those that it keeps."""
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    accepted = set(schema["properties"]["settings"]["propertyNames"]["enum"])
    assert accepted == SETTINGS - UNSETTABLE


@pytest.mark.parametrize(
    "file",
    [CHART / "templates/deployment.yaml", KSERVE / "servingruntime.yaml", RAY / "rayservice.yaml"],
    ids=str,
)
def test_variables_in_manifests_are_settings(file: Path) -> None:
    """A server reports one that is none and goes on with the default."""
    variables = set(re.findall(r" (PADDLEPOOL_\w+)", file.read_text("utf-8")))
    assert (variables - SETTINGS, variables != set()) == (set(), True)


VALUES: dict[str, Any] = {
    "defaults": {},
    "IPv6": {"host": "::"},
    "state": {"state": {"existingClaim": "choices"}},
    "judge": {"state": {"existingClaim": "choices"}, "canary": {"judge": True}},
    "drain": {"drain": {"delaySeconds": 100, "timeoutSeconds": 200}},
    "": {"monitoring": {"prometheusRule": {"enabled": True, "runbooks": ""}}},
    "https://runbooks.example": {
        "monitoring": {"prometheusRule": {"enabled": True, "runbooks": "https://runbooks.example/"}}
    },
}
RENDER = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import check_manifests as check
check.VALUES.update(json.loads(sys.argv[3]))
found = {
    name: {
        each["kind"] + each["metadata"]["name"].partition("-judge")[1]: each
        for _, each in check.rendered(Path(sys.argv[2]), [name])
    }
    for name in json.loads(sys.argv[3])
}
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def rendered() -> dict[str, dict[str, Any]]:
    """The chart's objects of each of VALUES, by kind."""
    done = in_their_environment("-c", RENDER, ROOT / "deploy", CHART, json.dumps(VALUES))
    objects: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return objects


def test_the_chart_waits_for_the_drain(rendered: dict[str, dict[str, Any]]) -> None:
    """The grace period follows the delay and the timeout that an operator sets."""
    pod = rendered["drain"]["Deployment"]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] >= 100 + 200 + 5


def test_the_pods_listen_on_the_charts_host(rendered: dict[str, dict[str, Any]]) -> None:
    """For every family of addresses: probes and Service name none, so they use the pod's own."""
    pod = rendered["IPv6"]["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    assert {"name": "PADDLEPOOL_HOST", "value": "::"} in pod["env"]
    assert not {"ipFamilies", "ipFamilyPolicy"} & set(rendered["IPv6"]["Service"]["spec"])
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        assert "host" not in pod[probe]["httpGet"]


def test_a_claim_keeps_the_choices(rendered: dict[str, dict[str, Any]]) -> None:
    """The file lies on the claim, in a directory that the pod may write to."""
    pod = rendered["state"]["Deployment"]["spec"]["template"]["spec"]
    (server,) = pod["containers"]
    (volume,) = (volume for volume in pod["volumes"] if volume["name"] == "state")
    assert volume == {"name": "state", "persistentVolumeClaim": {"claimName": "choices"}}
    assert {"name": "state", "mountPath": "/state"} in server["volumeMounts"]
    assert {"name": "PADDLEPOOL_STATE_FILE", "value": "/state/choices.json"} in server["env"]
    without = rendered["defaults"]["Deployment"]["spec"]["template"]["spec"]
    assert "state" not in {volume["name"] for volume in without["volumes"]}


def test_one_more_pod_with_a_lasting_name_judges(rendered: dict[str, dict[str, Any]]) -> None:
    """The Service sends it requests, and every pod knows its name."""
    objects = rendered["judge"]
    pods, judge = objects["Deployment"]["spec"], objects["Deployment-judge"]["spec"]
    assert (judge["replicas"], judge["strategy"]["type"]) == (1, "Recreate")
    for spec in (pods, judge):
        labels = spec["template"]["metadata"]["labels"]
        assert objects["Service"]["spec"]["selector"].items() <= labels.items()
        assert spec["selector"]["matchLabels"].items() <= labels.items()
        (server,) = spec["template"]["spec"]["containers"]
        assert {"name": "PADDLEPOOL_CANARY_JUDGE", "value": "judge"} in server["env"]
        is_judge = {"name": "PADDLEPOOL_REPLICA", "value": "judge"} in server["env"]
        assert is_judge == (spec is judge)
    pod_labels = pods["template"]["metadata"]["labels"]
    assert not judge["selector"]["matchLabels"].items() <= pod_labels.items()
    assert "Deployment-judge" not in rendered["state"]


@pytest.mark.parametrize("runbooks", ["", "https://runbooks.example"])
def test_the_charts_rules_are_valid_and_lead_to_runbooks(
    rendered: dict[str, dict[str, Any]], tmp_path: Path, runbooks: str
) -> None:
    """By promtool; without an address alerts lead nowhere."""
    text = yaml.safe_dump(rendered[runbooks]["PrometheusRule"]["spec"], width=1000)
    urls = re.findall("runbook_url: (.*)/Paddlepool", text)
    assert set(urls) == ({runbooks} if runbooks else set())
    assert "vector(2)" in text  # replicaCount
    file = tmp_path / "rules.yml"
    file.write_text(text)
    assert "SUCCESS" in promtool("check", "rules", str(file))


def test_kserve_waits_for_the_drain() -> None:
    """Kubernetes' own grace period is no longer than delay and timeout together."""
    runtime = yaml.safe_load((KSERVE / "servingruntime.yaml").read_text("utf-8"))
    service = yaml.safe_load((KSERVE / "inferenceservice.yaml").read_text("utf-8"))
    variables = {env["name"]: env["value"] for env in runtime["spec"]["containers"][0]["env"]}
    delay = float(variables["PADDLEPOOL_DRAIN_DELAY_SECONDS"])
    grace = service["spec"]["predictor"].get("terminationGracePeriodSeconds", 30)
    assert grace >= delay + Settings().drain_timeout_seconds + 5


@pytest.mark.parametrize("manifest", [KSERVE / "inferenceservice.yaml", RAY / "rayservice.yaml"])
def test_no_service_sets_a_setting(manifest: Path) -> None:
    """A Service `paddlepool` would set PADDLEPOOL_PORT in every pod beside it."""
    spec = yaml.safe_load(manifest.read_text("utf-8"))["spec"]
    if "predictor" in spec:
        pods = [spec["predictor"]]
    else:
        cluster = spec["rayClusterConfig"]
        groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
        pods = [group["template"]["spec"] for group in groups]
    assert [pod.get("enableServiceLinks") for pod in pods] == [False] * len(pods)


def test_the_rules_are_those_of_the_compose_file() -> None:
    """Links, so that there is one text of them."""
    for name in ("alerts.yml", "recording.yml"):
        link = CHART / "rules" / name
        assert link.resolve() == ROOT / "deploy" / "prometheus" / "rules" / name
