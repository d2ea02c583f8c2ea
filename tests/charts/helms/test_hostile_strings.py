"""No text in the values can change the structure of what is rendered, and every text arrives as it was typed.

With an unquoted value, a line break and `hostNetwork: true` are enough to get the host's network.
"""

from __future__ import annotations

import copy
import re
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from charts.values_schema import values_schema
from tests.charts.pod_security import find_pods
from tests.charts.rendering import (
    CHARTS,
    Document,
    environment,
    expand,
    helm_template,
    pick,
    read_documents,
    render,
    waiter_pod,
)
from tests.charts.string_values import StringValue, build_values, find_string_values

INSTEAD = "certificates.secret"
"""Of certificates.configMap: not both at a time."""
LAUNCHER = "workload.launcherResources."
"""Only an MPIJob has a launcher."""
PLACES = [place for place in find_string_values(values_schema()) if str(place) != INSTEAD]
INJECTION = 'x"\n      hostNetwork: true\n'
HOSTILE = [
    INJECTION,
    "x\n      hostNetwork: true",
    "x' # \"",
    "a: b",
    "- x\n# y",
    "{a: [b",
    "&a *a !!binary |",
    "{{ .Release.Name }}",
    '{{ fail "no" }}',
    "---\nkind: Pod",
    "$(TRAINER_RUN) $$(HOME) $HOME $$$ $(nothing)",
    "$(reboot); `id`; | sh",
    "\\n\\x41\\",
    " leading and trailing ",
    "\ttab\r\n",
    "null",
    "true",
    "1e9",
    "0x1F",
    "2026-01-01",
    "~",
    "\xa0\u2028\ufeff\U0001f600\ufffd",
    "\x00\x1b\x85",
    "\x7f",
    "a,b=c\\,d",
    "a" * 5000,
    "0/0",
    "TOKEN",
]
SECRET = re.compile(
    re.findall(r'regexMatch "(.+)" .name', (CHARTS / "run/templates/_environment.tpl").read_text())[0]
)
"""What the chart takes for the name of a secret, and refuses in run.env."""
ONE_OF_ITS_KIND = re.compile(
    r"^pod\.(volumes|initContainers)\.\d+\.(name|mountPath|persistentVolumeClaim\.claimName)$"
)
"""The chart refuses the same text in two of these."""


def choose_texts(hostile: str) -> dict[StringValue, str]:
    """The hostile text, bare or after a prefix, wherever the schema takes it; a harmless one elsewhere."""
    variants = (hostile, f"/{hostile}", f"http://{hostile}")
    texts = {place: next(filter(place.accepts, variants), place.marker) for place in PLACES}
    accelerator = next(text for place, text in texts.items() if str(place) == "accelerator")
    for place in PLACES:
        if ONE_OF_ITS_KIND.search(str(place)):
            texts[place] = next(filter(place.accepts, [f"{place.marker}{hostile}"]), place.marker)
    return texts | {
        place: place.marker
        for place in PLACES
        if str(place) == "secrets.0.name"  # not that of env
        or (str(place).endswith("env.0.name") and SECRET.search(texts[place]))
        or (str(place) == "rdma.resource" and texts[place] == accelerator)
    }


def as_seen_by_programs(documents: list[Document]) -> list[Document]:
    """With the environment and command that programs see, and without the hashes of the specs."""
    seen = copy.deepcopy(documents)
    for pod in find_pods(seen):
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            env = environment(pod, container["name"])
            container["env"] = list(env.items())
            container["command"] = [expand(part, env) for part in container["command"]]
    for kind in ("Job", "waiter"):
        pick(seen, kind)["metadata"].pop("name")
    (wait,) = waiter_pod(seen)["containers"]
    wait["command"][wait["command"].index("--then-start") + 1] = "the analysis"
    for document in seen:
        document["metadata"].get("annotations", {}).pop("stratlab/settings-sha256", None)
    return seen


def replace_markers(node: Any, texts: dict[StringValue, str]) -> Any:
    if isinstance(node, dict):
        return {replace_markers(key, texts): replace_markers(value, texts) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return type(node)(replace_markers(item, texts) for item in node)
    for place, text in texts.items():
        if isinstance(node, str):
            node = node.replace(place.marker, text)
    return node


def render_harmless(helm: Path, api: str) -> list[Document]:
    texts = {place: place.marker for place in PLACES}
    documents = as_seen_by_programs(render(helm, CHARTS / "ddp", values=build_values(texts, api)))
    lost = [str(place) for place in PLACES if place.marker not in str(documents)]
    if not api.startswith("mpijob"):
        lost = [place for place in lost if not place.startswith(LAUNCHER)]
    assert lost == [], "values that reach nothing"
    return documents


@pytest.fixture(scope="module")
def harmless(helm: Path) -> list[Document]:
    return render_harmless(helm, "pytorchjob")


def check_arrives_unchanged(
    helm: Path, harmless: list[Document], hostile: str, api: str = "pytorchjob"
) -> None:
    texts = choose_texts(hostile)
    done = helm_template(helm, CHARTS / "ddp", values=build_values(texts, api))
    if done.returncode and helm.name == "helm3" and "control characters are not allowed" in done.stderr:
        assert any(unicodedata.category(character) == "Cc" for character in hostile)
        return  # Helm 3 checks the schema on YAML, where it leaves them bare
    assert done.returncode == 0, done.stderr
    assert as_seen_by_programs(read_documents(done.stdout)) == replace_markers(harmless, texts)


def test_the_walk_finds_the_places() -> None:
    free = {str(place) for place in PLACES if place.accepts(INJECTION)}
    assert {"env.0.value", "config.dataset", "config.dataset_path"} <= free
    guarded = {str(place) for place in PLACES} - free
    assert {
        "image.repository",
        "results.claim",
        "resources.limits.memory",
        "config.lr",
        "env.0.name",
    } <= guarded


@pytest.mark.parametrize("hostile", HOSTILE, ids=[repr(text)[:30] for text in HOSTILE])
def test_a_hostile_text_arrives_unchanged(helm: Path, harmless: list[Document], hostile: str) -> None:
    check_arrives_unchanged(helm, harmless, hostile)


@pytest.mark.parametrize("api", ["mpijob-v1", "mpijob-v2beta1", "trainjob"])
def test_a_hostile_text_arrives_unchanged_by_every_api(helm: Path, api: str) -> None:
    harmless = render_harmless(helm, api)
    for hostile in (INJECTION, "{a: [b", "---\nkind: Pod", "$(TRAINER_RUN) $(HOME)"):
        check_arrives_unchanged(helm, harmless, hostile, api)


@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@given(hostile=st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_any_text_arrives_unchanged(helm: Path, harmless: list[Document], hostile: str) -> None:
    check_arrives_unchanged(helm, harmless, hostile)


def test_guarded_values_refuse_an_injection(helm: Path) -> None:
    guarded = [place for place in PLACES if not place.accepts(INJECTION)]
    done = helm_template(helm, CHARTS / "ddp", values=build_values(dict.fromkeys(guarded, INJECTION)))
    assert done.returncode == 1 and "specifications of the schema" in done.stderr
    between, quote = (".", "") if helm.name == "helm3" else ("/", "'")
    refused = [f"{between.join(map(str, place.path))}{quote}: " for place in guarded]
    assert [path for path in refused if path not in done.stderr] == []


@pytest.mark.parametrize(
    "block", [{"resources": {"limits": {INJECTION: 1}}}, {"config": {INJECTION: 1}}], ids=str
)
def test_a_name_refuses_an_injection(helm: Path, block: dict[str, Any]) -> None:
    done = helm_template(helm, CHARTS / "ddp", values={"run": block})
    assert done.returncode == 1 and "specifications of the schema" in done.stderr
