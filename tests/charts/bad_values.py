"""Values that nobody can mean: refused by the schema alone, by helm, and by the trainer where they reach it."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import yaml

from charts.values_schema import values_schema
from tests.charts.rendering import CHARTS, LIBRARY
from trainer.settings.fields import LONGEST_NAME, YEAR_S

Path = tuple[str, ...]
Case = tuple[str, Any]
"""Dotted path below `run`, and a value."""

DEFAULTS: dict[str, Any] = yaml.safe_load((CHARTS / LIBRARY / "values.yaml").read_text())
SETTINGS: dict[str, Any] = values_schema()["properties"]["config"]["properties"]


def number_schema(setting: dict[str, Any]) -> dict[str, Any] | None:
    """That of a setting that is a number, with one type (null unsets any setting); None of another one."""
    found = next(iter(setting.get("anyOf", [])), setting)
    types = found.get("type")
    kinds = {"integer", "number"} & ({types} if isinstance(types, str) else {*(types or ())})
    return found | {"type": kinds.pop()} if kinds else None


NUMBERS = {name: found for name, setting in SETTINGS.items() if (found := number_schema(setting))}


def _outside() -> Iterator[Case]:
    """Of each number of the trainer, as a number and, where that is allowed, as text."""
    for name, schema in NUMBERS.items():
        lowest = schema.get("exclusiveMinimum", schema.get("minimum", 0) - 1)
        highest = schema.get("exclusiveMaximum", schema.get("maximum", 0) + 1)
        yield from ((f"config.{name}", value) for value in (lowest, highest))
        if schema["type"] == "number":
            yield f"config.{name}", 1e39
            texts = (
                f"{lowest:g}",
                f"{highest:g}",
                "1e400",
                "-1e-3",
                "nan",
                "inf",
                "1_0",
                " 1",
                "1e",
                ".",
                "",
            )
            yield from ((f"config.{name}", text) for text in texts)
        else:
            yield from ((f"config.{name}", value) for value in (9 * 10**18, 1.5, "many"))


BAD: list[Case] = [
    *_outside(),
    ("config.lr", "0.0"),
    ("config.lr", "0e5"),
    ("config.validation_fraction", "2"),
    ("config.validation_fraction", "1e0"),
    ("config.comparison", "c" * 300),
    ("config.model", f"owner/{'m' * 300}"),
    ("config.dataset", "d" * 300),
    ("config.seed", 2**32),
    *(
        ("results.mountPath", path)
        for path in (
            *(
                "/",
                "//",
                "/etc",
                "/etc/",
                "/etc/ssl",
                "/usr",
                "/usr/lib/x",
                "/bin",
                "/lib64",
                "/proc/1",
                "/sys",
            ),
            *("/dev", "/dev/shm", "/tmp", "//tmp", "/tmp/", "/var", "/var/run/secrets", "/opt/venv", "/opt"),
            *("/home", "/root", "/home/mpiuser/.ssh", "/etc/mpi", "/opt/kube", "/results/../etc", "/./etc"),
        )
    ),
]
"""They reach the trainer."""

BAD_FOR_THE_CLUSTER: list[Case] = [
    ("nodes", 0),
    ("nodes", 1001),
    ("nodes", "2"),
    ("processesPerNode", 0),
    ("processesPerNode", 10**6),
    ("scheduling.waitSeconds", YEAR_S + 1),
    ("scheduling.waitSeconds", 9 * 10**18),
    ("analysis.ttlSecondsAfterFinished", 2**31),
    ("analysis.ttlSecondsAfterFinished", -1),
    ("analysis.shares", 0),
    ("analysis.shares", 1001),
    ("analysis.shares", "2"),
    ("rdma.count", 0),
    ("scheduling.nodeSelector", {"k" * 64: "a"}),
    ("scheduling.nodeSelector", {f"{'p' * 254}/k": "a"}),
    ("resources.limits", {f"vendor.com/{'c' * 64}": 1}),
    ("accelerator", f"vendor.com/{'c' * 64}"),
    ("rdma.resource", f"rdma/{'h' * 64}"),
    *(("tmp.sizeLimit", size) for size in ("", "0", "0Gi", "0.0", "00.00Mi")),
    *(("sharedMemory.sizeLimit", size) for size in ("", "0", "0Gi", "0.0Ki")),
    ("podSecurity.level", "open"),
    ("pod.labels", {"a b": "c"}),
    ("pod.annotations", {"a b": "c"}),
    ("pod.hostNetwork", "true"),
    ("pod.serviceAccount", "A"),
    ("pod.securityContext.runAsUser", -1),
    ("pod.securityContext.runAsUser", "root"),
    ("pod.securityContext.runAsUser", 2**31),
    ("pod.securityContext.seccompProfile", "Localhost"),
    ("results.mountPath", "results"),
    ("results.mountPath", "/a:b"),
    ("results.mountPath", "/a//b"),
]
"""The trainer never sees them, or cannot tell: it may also run without pods."""

GOOD: list[Case] = [
    *((f"config.{name}", schema["minimum"]) for name, schema in NUMBERS.items() if "minimum" in schema),
    *((f"config.{name}", schema["maximum"]) for name, schema in NUMBERS.items() if "maximum" in schema),
    *(
        ("config.lr", rate)
        for rate in (1e-5, "1e-5", "1e-05", "0.00001", "1E-5", "1.5e+3", "9.9e37", 1, "3", "1.")
    ),
    *(("config.validation_fraction", share) for share in (0.999, "0.999", "5e-1", "1e-3", 1e-7)),
    *(("config.label_smoothing", share) for share in (0, "0", "0.0", "0.25")),
    ("config.clip_norm", "0"),
    ("config.comparison", "c" * LONGEST_NAME),
    ("config.model", "google/vit-base-patch16-224"),
    ("config.model", "qwen2.5-0.5b"),
    ("scheduling.waitSeconds", YEAR_S),
    ("analysis.ttlSecondsAfterFinished", 0),
    ("analysis.shares", 1),
    ("scheduling.nodeSelector", {f"{'p' * 253}/{'k' * 63}": "a"}),
    ("accelerator", f"vendor.com/{'c' * 63}"),
    *(("tmp.sizeLimit", size) for size in ("1", "0.5Gi", "10Gi", "1.05M", "007Gi")),
    ("pod.annotations", {"a.b/c": "x\n" * 1000}),
    ("pod.securityContext.runAsUser", ""),
    ("pod.securityContext.runAsUser", 1000650000),
    *(
        ("results.mountPath", path)
        for path in (
            "/results",
            "/results/",
            "/data/my results",
            "/mnt/x",
            "/tmp/x",
            "/etcetera",
            "/home/ana/runs",
        )
    ),
]


def build_values(*cases: Case) -> dict[str, Any]:
    """A values file with these values below `run`."""
    values: dict[str, Any] = {}
    for path, value in cases:
        *parents, last = path.split(".")
        where = values
        for name in parents:
            where = where.setdefault(name, {})
        where[last] = value
    return values


def merge_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """What helm validates: the chart's values with these over them; null takes one away."""

    def merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
        merged = copy.deepcopy(below)
        for name, value in above.items():
            both = isinstance(value, dict) and isinstance(merged.get(name), dict)
            merged[name] = merge(merged[name], value) if both else value
        return {name: value for name, value in merged.items() if value is not None}

    return merge(DEFAULTS, values)


def trainer_environment(case: Case) -> dict[str, str]:
    """The variables by which a value reaches the trainer, as the chart writes them."""
    path, value = case
    text = value if isinstance(value, str) else json.dumps(value)
    variable = "TRAINER_RESULTS" if path == "results.mountPath" else f"TRAINER_{path.split('.')[-1].upper()}"
    return {"TRAINER_RUN": "try", variable: text}
