"""Values of each kind of constraint that the schema has: those that nobody can mean, and those at an edge."""

import copy
import json
from collections import defaultdict

import jsonschema_rs
import yaml
from jsonschema import Draft202012Validator

from charts.values_schema import values_schema
from stratlab_spec.settings.fields import LONGEST_NAME
from tests.charts.rendering import CHARTS, LIBRARY

DEFAULTS = yaml.safe_load((CHARTS / LIBRARY / "values.yaml").read_text())
SCHEMA = Draft202012Validator(values_schema())
SECOND = jsonschema_rs.validator_for(values_schema())
"""Written by others, and quicker."""


def _bounds():
    """Of one number of the trainer for each kind of bounds: a value that is allowed, and those beside."""
    seen = set()
    for name, setting in values_schema()["properties"]["config"]["properties"].items():
        found = next(iter(setting.get("anyOf", [])), setting)
        types = found.get("type")
        number = {"integer", "number"} & ({types} if isinstance(types, str) else {*(types or ())})
        kind = (*number, *(key for key in found if "inimum" in key or "aximum" in key))
        if number and kind not in seen:
            seen.add(kind)
            lowest = found.get("exclusiveMinimum", found.get("minimum", 0) - 1)
            highest = found.get("exclusiveMaximum", found.get("maximum", 0) + 1)
            allowed = found.get("minimum", found.get("maximum", 0.5))
            yield (f"config.{name}", allowed), [(f"config.{name}", value) for value in (lowest, highest)]


BOUNDS = [*_bounds()]
BAD = [
    *(case for _, beside in BOUNDS for case in beside),
    *(("config.lr", text) for text in ("0.0", "0e5", "1e400", "nan", "1_0", " 1", "1e", ".", "")),
    ("config.lr", 1e39),
    ("config.seed", 1.5),
    ("config.seed", "many"),
    ("config.seed", 9 * 10**18),
    ("config.validation_fraction", "1e0"),
    ("config.strategy", "zero4"),
    ("config.comparison", "c" * (LONGEST_NAME + 1)),
    ("config.model", f"owner/{'m' * 300}"),
    *(
        ("results.mountPath", path)
        for path in ("/", "/etc/ssl", "//tmp", "/var/run/secrets", "/results/../etc")
    ),
]
"""They reach the trainer."""


def _volume(path="/x", **source):
    return "pod.volumes", [{"name": "x", "mountPath": path, **(source or {"configMap": {"name": "a"}})}]


def _on_nodes(**condition):
    terms = [{"matchExpressions": [{"key": "gpu", **condition}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return "pod.affinity", {"nodeAffinity": required}


def _image(image, *command):
    return "pod.initContainers", [{"name": "x", "image": image, "command": [*command]}]


BAD_FOR_THE_CLUSTER = [
    ("nodes", 0),
    ("nodes", "2"),
    ("nodez", 2),
    ("analysis.shares", 1001),
    ("suspend", "yes"),
    ("scheduling.nodeSelector", {"k" * 64: "a"}),
    ("scheduling.nodeSelector", {"a": "b c"}),
    ("resources.limits", {"memory": "1Gb"}),
    ("tmp.sizeLimit", "00.00Mi"),
    ("podSecurity.level", "open"),
    ("pod.privileged", True),
    ("pod.securityContext.runAsUser", "root"),
    ("mlflow.trackingUri", "http://me:hunter2@mlflow:5000"),
    ("results.mountPath", "/a:b"),
    ("secrets", [{"name": "A"}]),
    ("env", [{"name": "A", "value": "a\0b"}]),
    *(_volume(path) for path in ("/usr/bin", "/etc/hosts", "/x/../etc")),
    _volume(emptyDir={}),
    _volume(nfs={"server": "a", "path": "/"}),
    _volume(configMap={"name": "a"}, secret={"secretName": "a"}),
    _volume(configMap={"name": "a"}, subPath="a/../.."),
    *(_image(image, "a") for image in ("a//b", "a:1:2", "a@sha256:c")),
    _on_nodes(operator="In", values=[]),
    _on_nodes(operator="Gt"),
    _on_nodes(operator="Exists", values=["a"]),
    ("scheduling.tolerations", [{"key": "gpu", "operator": "Exists", "value": "yes"}]),
    ("scheduling.tolerations", [{"value": "yes"}]),
]
"""The trainer never sees them."""

GOOD = [
    *(case for case, _ in BOUNDS),
    *(("config.lr", rate) for rate in ("1e-05", "1.5e+3", "9.9e37", "1.")),
    ("config.comparison", "c" * LONGEST_NAME),
    ("config.model", "google/vit-base-patch16-224"),
    ("scheduling.nodeSelector", {f"{'p' * 253}/{'k' * 63}": "a"}),
    ("tmp.sizeLimit", "1.05M"),
    ("pod.annotations", {"a.b/c": "x\n" * 1000}),
    ("pod.securityContext.runAsUser", ""),
    *(("results.mountPath", path) for path in ("/data/my results", "/tmp/x", "/etcetera")),
    *(_volume(path) for path in ("/usr/local/nvidia", "/etc/hosts.d", "/results2", "/tmp/huggingface")),
    _image(f"host:5000/a/b-c__d.e:1@sha256:{'c' * 64}", "a"),
    _on_nodes(operator="Gt", values=["1"]),
    _on_nodes(operator="DoesNotExist"),
    ("scheduling.tolerations", [{"key": "gpu", "operator": "Exists", "value": ""}]),
    ("scheduling.tolerations", [{"operator": "Exists"}]),
    ("global", {"team": "vision"}),
]


def batches(cases):
    """Each value once, in as few files as it takes: a file has one value for a path."""
    by_path = defaultdict(list)
    for case in cases:
        by_path[case[0]].append(case)
    for number in range(max(map(len, by_path.values()))):
        yield [cases[number] for cases in by_path.values() if number < len(cases)]


def build_values(*cases):
    """A values file with these values below `run`."""
    values = {}
    for path, value in cases:
        *parents, last = path.split(".")
        where = values
        for name in parents:
            where = where.setdefault(name, {})
        where[last] = value
    return values


def merge_defaults(values):
    """What helm validates: the chart's values with these over them; null takes one away."""

    def merge(below, above):
        merged = copy.deepcopy(below)
        for name, value in above.items():
            both = isinstance(value, dict) and isinstance(merged.get(name), dict)
            merged[name] = merge(merged[name], value) if both else value
        return {name: value for name, value in merged.items() if value is not None}

    return merge(DEFAULTS, values)


def refused_paths(case):
    values = merge_defaults(build_values(case))
    paths = {".".join(map(str, error.absolute_path)) for error in SCHEMA.iter_errors(values)}
    assert {".".join(map(str, error.instance_path)) for error in SECOND.iter_errors(values)} == paths
    return paths


def trainer_environment(case):
    """The variables by which a value reaches the trainer, as the chart writes them."""
    path, value = case
    text = value if isinstance(value, str) else json.dumps(value)
    variable = "TRAINER_RESULTS" if path == "results.mountPath" else f"TRAINER_{path.split('.')[-1].upper()}"
    return {"TRAINER_RUN": "try", variable: text}
