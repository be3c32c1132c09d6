"""Checks objects against the models of the `kubernetes` package, and ours against our own CRD."""

import json

import jsonschema
import yaml
from kubernetes import client

from tests.repository import ROOT

MODELS = {
    "nodes": "V1Node",
    "pods": "V1Pod",
    "services": "V1Service",
    "configmaps": "V1ConfigMap",
    "poddisruptionbudgets": "V1PodDisruptionBudget",
    "leases": "V1Lease",
    "evictions": "V1Eviction",
}
API = client.ApiClient()
CRD = ROOT / "deploy/kubernetes/crd.yaml"


def check(kind, item):
    """Raise for an object that the model refuses, or that has a field which it does not know."""
    if kind == "pulsetrainjobs":
        schema = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        jsonschema.validate(item, strict(schema))
        return
    model = API.deserialize(json.dumps(item), MODELS[kind], None)
    known = set(paths(API.sanitize_for_serialization(model)))
    unknown = sorted(path for path in paths(item) if path not in known)
    assert not unknown, f"{kind} {item['metadata']['name']}: unknown fields {unknown}"


def paths(value, at=""):
    """The path of each leaf. What is empty or null has none: the models leave it out."""
    if isinstance(value, dict):
        for key, inside in value.items():
            yield from paths(inside, f"{at}.{key}")
    elif isinstance(value, list):
        for place, inside in enumerate(value):
            yield from paths(inside, f"{at}[{place}]")
    elif value is not None:
        yield at


def strict(schema):
    """A schema that takes no field it does not name, as the API prunes those."""
    if schema.get("type") == "object" and "properties" in schema:
        inside = {name: strict(each) for name, each in schema["properties"].items()}
        closed = not schema.get("x-kubernetes-preserve-unknown-fields")
        return {**schema, "properties": inside} | ({"additionalProperties": False} if closed else {})
    return {**schema, "items": strict(schema["items"])} if "items" in schema else schema
