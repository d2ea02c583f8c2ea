"""No text in the values can change the structure of what is rendered, and every text arrives as it was typed.

With an unquoted value, a line break and `hostNetwork: true` are enough to get the host's network.
"""

import copy
import re
from pathlib import Path
from typing import Any

import pytest

from charts.values_schema import values_schema
from tests.charts.pod_security import find_pods
from tests.charts.rendering import (
    CHARTS,
    HELMS,
    Document,
    environment,
    expand,
    find_program,
    helm_template,
    pick,
    render,
    waiter_pod,
)
from tests.charts.string_values import StringValue, build_values, find_string_values

INSTEAD = "certificates.secret"
"""Of certificates.configMap: not both at a time."""
LAUNCHER = "workload.launcherResources."
"""Only an MPIJob has a launcher."""
FIRST, SECOND = map(find_program, HELMS)
PLACES = [place for place in find_string_values(values_schema()) if str(place) != INSTEAD]
INJECTION = 'x"\n      hostNetwork: true\n'
HOSTILE = [
    INJECTION,
    "x' # \"",
    "- x\n# y",
    "{a: [b",
    "&a *a !!binary |",
    '{{ fail "no" }}',
    "---\nkind: Pod",
    "$(TRAINER_RUN) $(HOME) $$ $(nothing)",
    "\\n\\x41\\",
    "\ttab\r\n ",
    "null",
    "1e9",
    "\xa0\u2028\ufeff\U0001f600\ufffd",
    "\x00\x1b\x85",
    "a,b=c\\,d",
]
ROUNDS = 5
"""Each place gets another hostile text in each; in the first all get INJECTION."""
SECRET = re.compile(
    re.findall(r'regexMatch "(.+)" .name', (CHARTS / "run/templates/_environment.tpl").read_text())[0]
)
"""What the chart takes for the name of a secret, and refuses in run.env."""
ONE_OF_ITS_KIND = re.compile(
    r"^pod\.(volumes|initContainers)\.\d+\.(name|mountPath|persistentVolumeClaim\.claimName)$"
)
"""The chart refuses the same text in two of these."""


def choose_texts(turn: int) -> dict[StringValue, str]:
    """A hostile text, bare or after a prefix, wherever the schema takes one; a harmless one elsewhere."""
    texts = {}
    for number, place in enumerate(PLACES):
        hostile = HOSTILE[(number + turn * 3) % len(HOSTILE)] if turn else INJECTION
        variants = [hostile, f"/{hostile}", f"http://{hostile}"]
        if ONE_OF_ITS_KIND.search(str(place)):
            variants = [f"{place.marker}{hostile}"]
        texts[place] = next(filter(place.accepts, variants), place.marker)
    accelerator = next(text for place, text in texts.items() if str(place) == "accelerator")
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


def test_the_walk_finds_the_places() -> None:
    free = {str(place) for place in PLACES if place.accepts(INJECTION)}
    assert {"env.0.value", "config.dataset", "config.dataset_path"} <= free
    assert {"image.repository", "results.claim", "config.lr", "env.0.name"} <= {*map(str, PLACES)} - free


@pytest.mark.parametrize("api", ["pytorchjob", "mpijob-v1", "mpijob-v2beta1", "trainjob"])
def test_a_hostile_text_arrives_unchanged(api: str) -> None:
    """Every text in many places, by the first helm; by the other in the two worst of its ways."""
    harmless = render_harmless(FIRST, api)
    for helm, turn in [(FIRST, turn) for turn in range(ROUNDS if api == "pytorchjob" else 1)] + [(SECOND, 0)]:
        texts = choose_texts(turn)
        documents = render(helm, CHARTS / "ddp", values=build_values(texts, api))
        assert as_seen_by_programs(documents) == replace_markers(harmless, texts)


def test_guarded_values_refuse_an_injection(helm: Path) -> None:
    guarded = [place for place in PLACES if not place.accepts(INJECTION)]
    done = helm_template(helm, CHARTS / "ddp", values=build_values(dict.fromkeys(guarded, INJECTION)))
    assert done.returncode == 1
    between, quote = (".", "") if helm.name == "helm3" else ("/", "'")
    refused = [f"{between.join(map(str, place.path))}{quote}: " for place in guarded]
    assert [path for path in refused if path not in done.stderr] == []


def test_a_name_refuses_an_injection(helm: Path) -> None:
    for block in ({"resources": {"limits": {INJECTION: 1}}}, {"config": {INJECTION: 1}}):
        assert helm_template(helm, CHARTS / "ddp", values={"run": block}).returncode == 1
