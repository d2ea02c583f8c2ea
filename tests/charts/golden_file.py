"""What the charts render, kept as YAML: a change of any chart shows up as a diff to review.

Two sets of values in full for each API; of the other charts and of single values only what differs from a full one.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import yaml

from tests.charts.rendering import CHARTS, HELMS, OTHER_CHARTS, discover_charts, find_program, render

GOLDEN = Path(__file__).parent / "golden"
EVERYTHING = ("--values", str(Path(__file__).with_name("everything.yaml")))
APIS = ("pytorchjob", "mpijob-v1", "mpijob-v2beta1", "trainjob")
BASE = "ddp-pytorchjob"
GONE = "(gone)"
BASELINE = "run.podSecurity.level=baseline"

FULL = {
    **{f"ddp-{api}": ("ddp", ["--set", f"run.workload.api={api},{BASELINE}"]) for api in APIS},
    **{f"everything-{api}": ("llm-4d", [*EVERYTHING, "--set", f"run.workload.api={api}"]) for api in APIS},
    "prepare": ("prepare", OTHER_CHARTS["prepare"]),
}
SINGLE_VALUES = {
    name: (chart, ["--set", settings])
    for name, chart, settings in (
        ("shares", "ddp", "run.nodes=2,run.analysis.shares=2"),
        ("check", "ddp", "run.nodes=2,run.config.mode=check"),
        ("master", "ddp", f"run.nodes=3,run.workload.topology=master-worker,{BASELINE}"),
        ("no analysis", "ddp", "run.analysis.enabled=false"),
        ("no account", "ddp", "run.analysis.serviceAccount="),
        ("no server, no accelerator", "ddp", "run.mlflow.trackingUri=,run.accelerator="),
        ("certificates", "ddp", "run.certificates.secret=tls,run.certificates.key=root.pem"),
        (
            "no users",
            "ddp",
            ",".join(f"run.pod.securityContext.{n}=" for n in ("runAsUser", "runAsGroup", "fsGroup")),
        ),
        (
            "prepare tokens",
            "prepare",
            "prepare.dataset=a/b,prepare.tokenize=qwen_tiny,run.config.packing=false",
        ),
        ("prepare model", "prepare", "prepare.model=org/net,prepare.revision=v2,prepare.queue=batch"),
        ("prepare weights", "prepare", "prepare.weights=vgg,run.certificates.configMap=ca"),
    )
}


def difference(base, other):
    """The parts of `other` that are not as in `base`, at their places; a place in one line."""
    base, other = _by_name(base), _by_name(other)
    if not isinstance(base, Mapping) or not isinstance(other, Mapping):
        return other
    changed = {name: GONE for name in sorted(base.keys() - other.keys())}
    for name, value in other.items():
        found = difference(base[name], value) if name in base else value
        if name not in base or base[name] != value:
            deeper = isinstance(found, Mapping) and len(found) == 1 and name in base
            changed |= {f"{name} / {key}": part for key, part in found.items()} if deeper else {name: found}
    return changed


def _normal(documents, chart):
    """With what follows from chart and values as it is with ddp: labels, and the hashes in names."""
    text = json.dumps(documents).replace(f'/name": "{chart}"', '/name": "ddp"')
    text = re.sub(r"-(analysis|waiter|prepare)-[0-9a-f]{8}", r"-\1-HASH", text)
    return list(json.loads(re.sub(r'sha256": "[0-9a-f]{64}', 'sha256": "HASH', text)))


def _by_name(node):
    """A list of what has names as a mapping; objects have their kind and component."""
    if not isinstance(node, list) or not all(isinstance(part, dict) for part in node):
        return node
    names = [part.get("name") or _object_name(part) for part in node]
    return dict(zip(names, node, strict=True)) if None not in names and len({*names}) == len(names) else node


def _object_name(part):
    labels = part.get("metadata", {}).get("labels", {})
    return f"{part['kind']} {labels.get('app.kubernetes.io/component')}" if "kind" in part else None


def read_full(helm, name):
    chart, arguments = FULL[name]
    return render(helm, CHARTS / chart, arguments)


def other_cases(charts):
    """What is compared with a full render: every other chart as shipped, and single values."""
    shipped = {chart: (chart, []) for chart in discover_charts(charts) if chart != "ddp"}
    return shipped | (SINGLE_VALUES if charts == CHARTS else {})


def render_all(charts, names=None):
    """Name -> the documents of a full render, or what differs from one."""
    helm = find_program(HELMS[0])

    def show(case):
        return render(helm, charts / case[0], case[1])

    found = {}
    others = other_cases(charts)
    for name in names or [*(FULL if charts == CHARTS else {}), *others]:
        base = FULL[BASE if others.get(name, ("",))[0] != "prepare" else "prepare"]
        if name in FULL:
            found[name] = show(FULL[name])
        else:
            normal = [_normal(show(case), case[0]) for case in (base, others[name])]
            found[name] = difference(*normal)
    return found


def read_goldens(folder):
    """As `render_all` gives them."""
    differences = yaml.load((folder / "differences.yaml").read_text(), yaml.CSafeLoader)
    full = {
        file.stem: list(yaml.load_all(file.read_text(), yaml.CSafeLoader))
        for file in folder.glob("*.yaml")
        if file.stem != "differences"
    }
    return full | differences


def write_goldens(charts, folder):
    """All are rendered first: a chart that does not render leaves every file alone."""
    rendered = render_all(charts)
    folder.mkdir(exist_ok=True)
    for file in folder.glob("*.yaml"):
        file.unlink()
    style = {"sort_keys": False, "width": 110, "default_flow_style": None}
    for name in FULL.keys() & rendered.keys():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump_all(rendered.pop(name), **style))
    (folder / "differences.yaml").write_text(yaml.safe_dump(rendered, **style))
