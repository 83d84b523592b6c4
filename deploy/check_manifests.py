"""Validate the Helm chart and the manifests of KServe and Ray without a cluster.

    make .venv-deploy/.installed
    .venv-deploy/bin/python deploy/check_manifests.py [--crds DIR]

The chart is linted and rendered with several sets of values; every rendered object of a core kind
is held to the schemas of the oldest and the newest Kubernetes that the chart supports, in strict
mode, and those of KEDA and the Prometheus Operator to theirs. DIR holds further custom resource
definitions as `*.yaml.gz`; objects of kinds that nobody's schema covers are named, not passed over.
Exit code 1: a finding.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import helm_python
import yaml

DEPLOY = Path(__file__).parent
CHART = DEPLOY / "helm" / "paddlepool"
KSERVE, RAY = DEPLOY / "kserve", DEPLOY / "ray"
VERSIONS = ("1.27", "1.37")

VALUES: Mapping[str, Mapping[str, Any]] = {
    "defaults": {},
    "everything": {
        "image": {"digest": "sha256:" + "0" * 64},
        "imagePullSecrets": [{"name": "registry"}],
        "host": "::",
        "settings": {"PADDLEPOOL_METRICS_NEEDS_KEY": "true", "PADDLEPOOL_TRACING": "true"},
        "service": {"grpcPort": 8001},
        "resources": {"requests": {"cpu": 1.5}, "limits": {"memory": "6291456Ki"}},
        "extraEnv": [
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "bucket", "key": "token"}}}
        ],
        "extraVolumes": [{"name": "certificates", "configMap": {"name": "certificates"}}],
        "extraVolumeMounts": [{"name": "certificates", "mountPath": "/certificates"}],
        "extraContainers": [{"name": "proxy", "image": "proxy:1"}],
        "keys": {"existingSecret": "paddlepool-keys", "adminKeyItem": "admin-key"},
        "models": {
            "from": "source",
            "source": {"address": "s3://models/repository", "pollSeconds": 60},
        },
        "state": {"existingClaim": "choices"},
        "canary": {"judge": True},
        "ingress": {
            "enabled": True,
            "className": "nginx",
            "hosts": [{"host": "paddlepool.example"}],
            "tls": [{"secretName": "tls", "hosts": ["paddlepool.example"]}],
        },
        "httpRoute": {
            "enabled": True,
            "parentRefs": [{"name": "gateway"}],
            "hostnames": ["paddlepool.example"],
        },
        "autoscaling": {"enabled": True},
        "monitoring": {
            "serviceMonitor": {
                "enabled": True,
                "labels": {"release": "prometheus"},
                "keyItem": "prometheus-key",
            },
            "prometheusRule": {"enabled": True, "runbooks": "https://runbooks.example/paddlepool/"},
        },
        "networkPolicy": {
            "enabled": True,
            "from": [{"podSelector": {}}],
            "egress": [{"ports": [{"port": 443, "protocol": "TCP"}]}],
        },
        "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::0:role/a"}},
        "podAnnotations": {"a": "b"},
        "podLabels": {"c": "d"},
        "nodeSelector": {"kubernetes.io/arch": "amd64"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "high",
    },
    "volume": {"models": {"from": "volume", "volume": {"claimName": "models", "subPath": "a"}}},
    "keda": {
        "keda": {"enabled": True},
        "monitoring": {"serviceMonitor": {"enabled": True}},
        "networkPolicy": {"enabled": True},
        "podDisruptionBudget": {"enabled": False},
        "topologySpread": {"enabled": False},
        "serviceAccount": {"create": False},
    },
}

METADATA = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string"},
        "namespace": {"type": "string"},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}
"""Allowed members where a definition leaves them open."""

REFUSED: Mapping[str, Mapping[str, Any]] = {
    "a name that is not known": {"replicas": 3},
    "a name within": {"image": {"tagg": "1"}},
    "a number as text": {"replicaCount": "three"},
    "a setting that is none": {"settings": {"PADDLEPOOL_CODEC_PROCESES": "2"}},
    "a number in the environment": {"settings": {"PADDLEPOOL_CODEC_PROCESSES": 4}},
    "a key in clear": {"settings": {"PADDLEPOOL_API_KEYS": "secret"}},
    "a key of another kind in clear": {"settings": {"PADDLEPOOL_START_GROUP_KEYS": "secret"}},
    "a host that is a name": {"host": "localhost"},
    "a host that no probe reaches": {"host": "127.0.0.1"},
    "the same with IPv6": {"host": "::1"},
    "two files for the choices": {
        "state": {"existingClaim": "choices"},
        "settings": {"PADDLEPOOL_STATE_FILE": "off"},
    },
    "a judge whose verdict nobody reads": {"canary": {"judge": True}},
    "one port for HTTP and gRPC": {"service": {"port": 8001, "grpcPort": 8001}},
    "probes that need a key": {"settings": {"PADDLEPOOL_HEALTH_NEEDS_KEY": "true"}},
    "a variable without a name": {"extraEnv": [{"value": "1"}]},
    "a drain that its grace period does not know": {
        "extraEnv": [{"name": "PADDLEPOOL_DRAIN_DELAY_SECONDS", "value": "60"}]
    },
    "labels that the selector does not find": {"podLabels": {"app.kubernetes.io/name": "other"}},
    "a quantity that is none": {"resources": {"limits": {"memory": "6ki"}}},
    "a quantity below nothing": {"resources": {"limits": {"memory": -6}}},
    "a resource that is none": {"resources": {"limits": {"memry": "6Gi"}}},
    "a name that a Service cannot have": {"fullnameOverride": "1.2"},
    "more than all": {"podDisruptionBudget": {"maxUnavailable": "999%"}},
    "no models at all": {"models": None},
    "a damaged digest": {"image": {"digest": "sha256:12"}},
    "another place of models": {"models": {"from": "registry"}},
    "a volume without its claim": {"models": {"from": "volume"}},
    "a source without its address": {"models": {"from": "source"}},
    "a source that nothing reads": {
        "models": {"from": "source", "source": {"address": "oci://models/repository"}}
    },
    "a source that the network policy keeps away": {
        "models": {"from": "source", "source": {"address": "s3://models/repository"}},
        "networkPolicy": {"enabled": True},
    },
    "an admin key without a secret": {"keys": {"adminKeyItem": "admin"}},
    "two autoscalers": {
        "autoscaling": {"enabled": True},
        "keda": {"enabled": True},
        "monitoring": {"serviceMonitor": {"enabled": True}},
    },
    "fewer at most than at least": {
        "autoscaling": {"enabled": True, "minReplicas": 5, "maxReplicas": 2}
    },
    "the same by the queue": {
        "keda": {"enabled": True},
        "monitoring": {"serviceMonitor": {"enabled": True}},
        "autoscaling": {"minReplicas": 5, "maxReplicas": 2},
    },
    "a queue that nobody measures": {"keda": {"enabled": True}},
    "an ingress without a host": {"ingress": {"enabled": True}},
    "a route without a gateway": {"httpRoute": {"enabled": True}},
    "metrics that Prometheus has no key for": {
        "keys": {"existingSecret": "keys"},
        "settings": {"PADDLEPOOL_METRICS_NEEDS_KEY": "True"},
        "monitoring": {"serviceMonitor": {"enabled": True}},
    },
    "a key for metrics, set by extraEnv, and none in the ServiceMonitor": {
        "keys": {"existingSecret": "keys"},
        "extraEnv": [{"name": "PADDLEPOOL_METRICS_NEEDS_KEY", "value": "true"}],
        "monitoring": {"serviceMonitor": {"enabled": True}},
    },
    "a key of Prometheus without a secret": {
        "monitoring": {"serviceMonitor": {"enabled": True, "keyItem": "prometheus"}}
    },
    "a share of a CPU that is not requested": {
        "autoscaling": {"enabled": True},
        "resources": {"requests": {"cpu": None}},
    },
    "an autoscaler with a CPU request of 0": {
        "autoscaling": {"enabled": True},
        "resources": {"requests": {"cpu": "0"}},
    },
    "an autoscaler with a CPU request of 0m": {
        "autoscaling": {"enabled": True},
        "resources": {"requests": {"cpu": "0m"}, "limits": {"cpu": 2}},
    },
    "spans that the network policy keeps in": {
        "settings": {"PADDLEPOOL_TRACING": "1"},
        "networkPolicy": {"enabled": True},
    },
    "tracing, set by extraEnv, that the network policy blocks": {
        "extraEnv": [{"name": "PADDLEPOOL_TRACING", "value": "true"}],
        "networkPolicy": {"enabled": True},
    },
}


def main() -> int:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments.add_argument("--crds", type=Path, help="custom resource definitions, *.yaml.gz")
    args = arguments.parse_args()
    schemas = model_schemas() | ({} if args.crds is None else crd_schemas(args.crds))
    findings = [*lint(CHART), *accepted_nonsense(CHART)]
    objects = [*written(KSERVE), *written(RAY)]
    try:
        objects += rendered(CHART)
    except helm_python.HelmError as error:
        findings.append(f"the chart cannot be rendered: {error}")
    findings += faults_of(objects, schemas)
    kinds = {(obj["apiVersion"], obj["kind"]) for _, obj in objects if not is_core(obj)}
    unseen = {"/".join(kind) for kind in kinds - schemas.keys()}
    for finding in findings:
        print(f"fault: {finding}")
    for name in sorted(unseen):
        print(f"no schema at hand: {name}")
    print(
        f"{len(objects)} objects of {len(VALUES)} sets of values, {KSERVE.name} and {RAY.name}, "
        f"{len(REFUSED)} sets of nonsense, Kubernetes {' and '.join(VERSIONS)}: "
        f"{len(findings)} faults"
    )
    return 1 if findings else 0


def faults_of(
    objects: Iterable[tuple[str, dict[str, Any]]],
    schemas: Mapping[tuple[str, str], dict[str, Any]],
) -> Iterator[str]:
    """Violations of the schema of each object's kind, if there is one."""
    import jsonschema

    for label, resource in objects:
        kind = (resource["apiVersion"], resource["kind"])
        if is_core(resource):
            yield from (f"{label}: {fault}" for fault in core_faults(resource))
        elif kind in schemas:
            for error in jsonschema.Draft7Validator(schemas[kind]).iter_errors(resource):
                yield f"{label}: {error.json_path}: {error.message}"


def lint(chart: Path) -> Iterator[str]:
    """Findings of `helm lint`, except for a missing icon."""
    for name, values in VALUES.items():
        report = helm_python.lint(chart, dict(values), strict=True)
        for message in report["messages"]:
            if message["severity"] > 1:
                yield f"lint, {name}: {message['path']}: {message['error']}"
        yield from (f"lint, {name}: {error}" for error in report["errors"])


def accepted_nonsense(chart: Path) -> Iterator[str]:
    """Sets of values that the chart accepts but must reject."""
    for name, values in REFUSED.items():
        try:
            with helm_python.Chart.load(chart) as loaded:
                loaded.validate_schema(dict(values))
                loaded.render(dict(values), name="release", namespace="spare")
        except helm_python.HelmError:
            continue
        yield f"accepted: {name}: {values}"


def rendered(
    chart: Path, names: Iterable[str] = tuple(VALUES)
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object that the chart renders for each set of values, with a label for messages."""
    with helm_python.Chart.load(chart) as loaded:
        for name in names:
            values = VALUES[name]
            loaded.validate_schema(dict(values))
            files = loaded.render(dict(values), name="release", namespace="spare")
            for path, text in sorted(files.items()):
                if path.endswith(".yaml"):
                    for resource in filter(None, yaml.safe_load_all(text)):
                        yield f"{name}, {path}", resource


def written(directory: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(directory.glob("*.yaml")):
        for resource in yaml.safe_load_all(path.read_text("utf-8")):
            yield path.name, resource


def is_core(resource: Mapping[str, Any]) -> bool:
    group, _, version = resource["apiVersion"].rpartition("/")
    named = group.endswith(".k8s.io") and group.count(".") == 2  # the Gateway API is not built in
    return ("." not in group or named) and bool(version)


def core_faults(resource: dict[str, Any]) -> Iterator[str]:
    import kubernetes_validate  # takes seconds, which rendering alone need not wait

    for version in VERSIONS:
        try:
            kubernetes_validate.validate(resource, version, strict=True)
        except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as e:
            yield f"Kubernetes {version}: {getattr(e, 'message', e)}"


@functools.cache
def crd_schemas(directory: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Closed JSON schemas by apiVersion and kind, of the definitions in a directory."""
    schemas = {}
    for path in sorted(directory.glob("*.yaml.gz")):
        text = gzip.decompress(path.read_bytes())
        # PyYAML's own parser takes half a minute.
        definition = yaml.load(text, Loader=yaml.CSafeLoader)["spec"]
        for version in definition["versions"]:
            schema = version["schema"]["openAPIV3Schema"]
            close(schema)
            schema["properties"]["metadata"] = METADATA
            name = f"{definition['group']}/{version['name']}"
            schemas[name, definition["names"]["kind"]] = schema
    if not schemas:
        raise SystemExit(f"no *.yaml.gz in {directory}")
    return schemas


@functools.cache
def model_schemas() -> dict[tuple[str, str], dict[str, Any]]:
    """Closed JSON schemas of KEDA and the Prometheus Operator, by apiVersion and kind."""
    from cloudcoil.models.keda.v1alpha1 import ScaledObject
    from cloudcoil.models.prometheus_operator.v1 import PrometheusRule, ServiceMonitor

    schemas = {}
    for model in (ScaledObject, PrometheusRule, ServiceMonitor):
        schema = model.model_json_schema()
        close(schema)
        name, kind = (
            schema["properties"][key]["anyOf"][0]["const"] for key in ("apiVersion", "kind")
        )
        schema["properties"]["metadata"] = METADATA
        schemas[name, kind] = schema
    return schemas


def close(node: Any) -> None:
    """Reject unknown members, as the API server's strict mode does."""
    if isinstance(node, dict):
        if node.get("x-kubernetes-int-or-string"):
            node.pop("type", None)
        if "properties" in node and not node.get("x-kubernetes-preserve-unknown-fields"):
            node.setdefault("additionalProperties", False)
        for child in node.values():
            close(child)
    elif isinstance(node, list):
        for child in node:
            close(child)


if __name__ == "__main__":
    sys.exit(main())
