"""Charts rendered by the real helm, no cluster, and what the tests read from them."""

import copy
import functools
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

Document = dict[str, Any]

ROOT = Path(__file__).parents[2]
CHARTS = ROOT / "charts"
LIBRARY = "run"
RELEASE, NAMESPACE = "golden", "lab"
OTHER_CHARTS = {"prepare": ["--set", "prepare.dataset=org/pets"]}
"""Charts that render no run, and the values without which they render nothing."""
HELMS = ("helm", "helm3")  # the goldens are written by the first


class ValuesDumper(yaml.SafeDumper):
    """Quotes every text: PyYAML reads a bare 1e9 as text, helm as a number."""


ValuesDumper.add_representer(
    str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')
)


def read_documents(text):
    documents = [document for document in yaml.load_all(text, Loader=yaml.CSafeLoader) if document]
    return [
        each
        for document in documents
        for each in (document["items"] if document.get("kind") == "List" else [document])
    ]


def discover_charts(charts):
    """Names of the strategy charts in a folder: those that render a run."""
    return sorted(path.parents[1].name for path in charts.glob("*/templates/run.yaml"))


def find_program(name):
    path = ROOT / ".tools" / name
    if not path.is_file():
        target = "make .tools/scan/ready" if name.startswith("scan/") else "make setup"
        pytest.fail(f"{path.relative_to(ROOT)} is missing: run `{target}`")
    return path


def helm_template(helm, chart, arguments=(), *, values=None, release=RELEASE):
    """`helm template`; `arguments` such as --set, `values` as the content of a values file."""
    command = [str(helm), "template", release, str(chart), "--namespace", NAMESPACE, *arguments]
    if values is not None:
        command += ["--values", "-"]
    return subprocess.run(
        command,
        input="" if values is None else yaml.dump(values, Dumper=ValuesDumper),
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "KUBECONFIG": os.devnull},
    )


def render(helm, chart, arguments=(), *, values=None, release=RELEASE):
    """All objects of a chart, which must render; the shipped charts are rendered once for the same question."""
    question = (helm, chart, tuple(arguments), json.dumps(values), release)
    found = (_render if chart.parent == CHARTS else _render.__wrapped__)(*question)
    return copy.deepcopy(found)


@functools.cache
def _render(helm, chart, arguments, values, release):
    done = helm_template(helm, chart, arguments, values=json.loads(values), release=release)
    assert done.returncode == 0, done.stderr
    return read_documents(done.stdout)


def refusal(helm, chart, arguments=(), **options):
    """What helm says where it must refuse. Without the schema, which other tests look at: in half the time."""
    done = helm_template(helm, CHARTS / chart, ["--skip-schema-validation", *arguments], **options)
    assert (done.returncode, done.stdout) == (1, ""), done.stdout
    return done.stderr


def pick(documents, kind):
    """The one object of this kind; a Job is the one that analyses, and `waiter` its waiter."""
    component = {"Job": "analysis", "waiter": "waiter"}.get(kind)
    (document,) = [
        document
        for document in documents
        if document["kind"] == ("Job" if component else kind)
        and component
        in (None, document.get("metadata", {}).get("labels", {}).get("app.kubernetes.io/component"))
    ]
    return document


def training_pod(documents):
    return pick(documents, "PyTorchJob")["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]


def analysis_pod(documents):
    return pick(documents, "Job")["spec"]["template"]["spec"]


def waiter_pod(documents):
    return pick(documents, "waiter")["spec"]["template"]["spec"]


def container(pod, name):
    every = [*pod.get("initContainers", []), *pod["containers"]]
    (found,) = [entry for entry in every if entry["name"] == name]
    return found


def expand(text, env):
    """What Kubernetes makes of `env` values and `command`: $(NAME) is replaced if known, $$ is one dollar sign."""
    return re.sub(
        r"\$\$|\$\(([^)]*)\)", lambda found: "$" if found[0] == "$$" else env.get(found[1], found[0]), text
    )


def environment(pod, name):
    """What the program in a container sees; <secret/key> and <spec.nodeName> stand for what only the cluster knows."""
    env = {}
    for entry in container(pod, name)["env"]:
        assert entry["name"] not in env, f"{entry['name']} is there twice"
        given = entry.get("valueFrom", {})
        if source := given.get("secretKeyRef"):
            env[entry["name"]] = f"<{source['name']}/{source['key']}>"
        elif field := given.get("fieldRef"):
            env[entry["name"]] = f"<{field['fieldPath']}>"
        else:
            env[entry["name"]] = expand(entry["value"], env)
    return env


def world_size(documents):
    spec = pick(documents, "PyTorchJob")["spec"]
    return spec["pytorchReplicaSpecs"]["Worker"]["replicas"] * int(spec["nprocPerNode"])
