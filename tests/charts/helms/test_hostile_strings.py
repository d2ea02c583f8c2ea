"""No text in the values can change the structure of what is rendered, and every text arrives as it was typed.

With an unquoted value, a line break and `hostNetwork: true` are enough to get the host's network."""

import copy
import json
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from charts.values_schema import values_schema
from tests.charts.pod_security import find_pods
from tests.charts.rendering import (
    CHARTS,
    HELMS,
    environment,
    expand,
    find_program,
    helm_template,
    pick,
    render,
    waiter_pod,
)

Schema = dict[str, Any]


@dataclass(frozen=True, eq=False)
class StringValue:
    """A place, as in --set; the schema of its text; and a text that is allowed there and occurs nowhere else."""

    path: tuple[str | int, ...]
    schema: Schema
    marker: str

    def accepts(self, text):
        return _accepts(self.schema, text)

    def __str__(self):
        return ".".join(map(str, self.path))


def find_string_values(schema):
    """Where a list takes one of several records, each has an item of its own. What only allows others is no place."""
    found = []
    places = [place for place in _walk(schema, ()) if place[0] != ALLOWED]
    for number, (path, text_schema) in enumerate(places):
        texts = (
            f"mark{number}x",
            f"/mark{number}x",
            f"http://mark{number}x",
            f"mark.x/{number}x",
            f"MARK_{_letters(number)}",
            f"7{number:03}77",
            f"0.7{number:03}77",
            f"every_{number + 100}",
            f"kill@{number + 1000}",
        )
        marker = next(text for text in texts if _accepts(text_schema, text))
        found.append(StringValue(path, text_schema, marker))
    return found


ALLOWED = ("podSecurity", "hostPaths", 0)
HOST_PATH = "hostPath.path"
EXPRESSIONS = {"matchExpressions": [{"operator": "In"}]}
NEAR = {"labelSelector": EXPRESSIONS}
TERMS = {
    "requiredDuringSchedulingIgnoredDuringExecution": [NEAR],
    "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": NEAR}],
}
# Without these some texts would reach nothing, or not be allowed.
SWITCHES = {
    "rdma": {"enabled": True},
    "allowFaults": True,
    "scheduling": {"gang": "kueue"},
    "podSecurity": {"level": "privileged"},
    "pod": {
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [EXPRESSIONS]},
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": EXPRESSIONS}],
            },
            "podAffinity": TERMS,
            "podAntiAffinity": TERMS,
        },
        "topologySpread": [{"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}],
    },
}


def build_values(texts, api="pytorchjob"):
    """A values file that says these texts, below `run`."""
    values = {"workload": {"api": api}, **json.loads(json.dumps(SWITCHES))}
    for place, text in texts.items():
        _put(values, place.path, text)
        if str(place).endswith(HOST_PATH):
            _put(values, ALLOWED, text)
            volume = values["pod"]["volumes"][place.path[2]]
            volume["readOnly"] = True
    return {"run": values}


def _accepts(schema, text):
    exact = schema | ({"pattern": schema["pattern"].replace("$", r"\Z")} if "pattern" in schema else {})
    return Draft202012Validator(exact).is_valid(
        text
    )  # `$` of Python matches before a last newline, helm's does not


def _walk(schema, path):
    kinds = schema.get("type", [])
    if "string" in ([kinds] if isinstance(kinds, str) else kinds) and "enum" not in schema:
        yield path, schema
    for branch in schema.get("anyOf", []):
        yield from _walk(branch, path)
    for name, part in schema.get("properties", {}).items():
        yield from _walk(part, (*path, name))
    if isinstance(schema.get("additionalProperties"), dict):
        yield from _walk(schema["additionalProperties"], (*path, "memory"))
    if "items" in schema:
        for index, item in enumerate(schema["items"].get("anyOf", [schema["items"]])):
            yield from _walk(item, (*path, index))


def _put(values, path, text):
    where = values
    for key, following in pairwise(path):
        empty = [] if isinstance(following, int) else {}
        where = _reach(where, key) if isinstance(key, int) else where.setdefault(key, empty)
    if isinstance(path[-1], int):
        _reach(where, path[-1])
    where[path[-1]] = text


def _reach(items, index):
    items.extend({} for _ in range(index + 1 - len(items)))
    return items[index]


def _letters(number):
    return "".join("ABCDEFGHIJ"[int(digit)] for digit in str(number))


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


def choose_texts(turn):
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


def as_seen_by_programs(documents):
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


def replace_markers(node, texts):
    if isinstance(node, dict):
        return {replace_markers(key, texts): replace_markers(value, texts) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return type(node)(replace_markers(item, texts) for item in node)
    for place, text in texts.items():
        if isinstance(node, str):
            node = node.replace(place.marker, text)
    return node


def render_harmless(helm, api):
    texts = {place: place.marker for place in PLACES}
    documents = as_seen_by_programs(render(helm, CHARTS / "ddp", values=build_values(texts, api)))
    lost = [str(place) for place in PLACES if place.marker not in str(documents)]
    if not api.startswith("mpijob"):
        lost = [place for place in lost if not place.startswith(LAUNCHER)]
    assert lost == [], "values that reach nothing"
    return documents


@pytest.mark.parametrize("api", ["pytorchjob", "mpijob-v1", "mpijob-v2beta1", "trainjob"])
def test_a_hostile_text_arrives_unchanged(api):
    """Every text in many places, by the first helm; by the other in the two worst of its ways."""
    harmless = render_harmless(FIRST, api)
    for helm, turn in [(FIRST, turn) for turn in range(ROUNDS if api == "pytorchjob" else 1)] + [(SECOND, 0)]:
        texts = choose_texts(turn)
        documents = render(helm, CHARTS / "ddp", values=build_values(texts, api))
        assert as_seen_by_programs(documents) == replace_markers(harmless, texts)


def test_guarded_values_refuse_an_injection(helm):
    guarded = [place for place in PLACES if not place.accepts(INJECTION)]
    done = helm_template(helm, CHARTS / "ddp", values=build_values(dict.fromkeys(guarded, INJECTION)))
    assert done.returncode == 1
    between, quote = (".", "") if helm.name == "helm3" else ("/", "'")
    refused = [f"{between.join(map(str, place.path))}{quote}: " for place in guarded]
    assert [path for path in refused if path not in done.stderr] == []
