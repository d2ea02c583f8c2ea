"""The values schema: current, whole, and of one mind with chart and trainer on what is refused and what is taken."""

import json

import jsonschema_rs
import pytest
import regress
import yaml
from jsonschema import Draft202012Validator

from charts.values_schema import main, values_schema
from stratlab_spec.settings.bounds import number_problem
from stratlab_spec.settings.config import Config, ConfigError
from tests.charts.bad_values import (
    BAD,
    BAD_FOR_THE_CLUSTER,
    DEFAULTS,
    GOOD,
    SECOND,
    batches,
    build_values,
    merge_defaults,
    refused_paths,
    trainer_environment,
)
from tests.charts.rendering import CHARTS, LIBRARY, helm_template


def is_refused_by_the_trainer(case):
    """The value itself: rules between settings may speak."""
    variable, text = [*trainer_environment(case).items()][1]
    try:
        Config.from_env(trainer_environment(case))
    except ConfigError as failure:
        return any(problem.startswith(f"{variable}={text!r}: ") for problem in failure.problems)
    return False


def show(case):
    return f"{case[0]}={case[1]!r}"[:50]


@pytest.mark.parametrize("case", BAD, ids=show)
def test_schema_and_trainer_refuse(case):
    assert refused_paths(case) == {case[0]} and is_refused_by_the_trainer(case)


@pytest.mark.parametrize("case", BAD_FOR_THE_CLUSTER, ids=show)
def test_the_schema_refuses(case):
    name = case[0].rpartition(".")
    assert [path.startswith(case[0]) or path == name[0] for path in refused_paths(case)] == [True]


@pytest.mark.parametrize("case", GOOD, ids=show)
def test_schema_and_trainer_take(case):
    assert refused_paths(case) == set()
    if case[0].startswith(("config", "results")):
        assert not is_refused_by_the_trainer(case)


def test_the_chart_takes_and_refuses_them(helm):
    refused = next(batches([*BAD, *BAD_FOR_THE_CLUSTER]))
    done = helm_template(helm, CHARTS / "ddp", values={"run": build_values(*refused)})
    assert done.returncode == 1 and done.stdout == ""
    assert [path for path, _ in refused if path.replace(".", "/").rpartition("/")[2] not in done.stderr] == []
    taken = [*next(batches(GOOD)), *((path, None) for path in EMPTY if not path.startswith("pod"))]
    done = helm_template(helm, CHARTS / "ddp", values={"run": build_values(*dict(taken).items())})
    assert done.returncode == 0, done.stderr


def values_with_a_default(node, prefix=""):
    for name, value in node.items():
        yield f"{prefix}{name}"
        if isinstance(value, dict) and name not in ("requests", "limits"):
            yield from values_with_a_default(value, f"{prefix}{name}.")


EMPTY = {
    *("env", "secrets", "image.pullSecrets", "scheduling.nodeSelector", "scheduling.tolerations"),
    *("pod.labels", "pod.annotations", "pod.topologySpread", "pod.volumes", "pod.initContainers"),
    *("pod.securityContext.supplementalGroups", "pod.securityContext.capabilities"),
    "podSecurity.hostPaths",
    *("analysis.resources.requests", "analysis.resources.limits"),
    *("analysis.wait.resources.requests", "analysis.wait.resources.limits"),
    *("workload.launcherResources.requests", "workload.launcherResources.limits"),
}
"""Lists and maps: null empties them."""


def test_null_takes_no_value_away_but_of_lists_and_maps():
    """Helm makes nothing of it, and the templates zero or an error of their own."""
    paths = {*values_with_a_default(DEFAULTS)}
    assert {path for path in paths if SECOND.is_valid(merge_defaults(build_values((path, None))))} == EMPTY


@pytest.mark.parametrize("text", ["0100", "1.00E+02", "9.99e1"])
def test_a_bound_that_is_allowed_itself(text):
    schema = {"type": "number", "exclusiveMinimum": 0, "maximum": 100}
    assert number_problem(schema, text) is None
    assert all(number_problem(schema, more) for more in ("100.5", "999", "1.01e2", "1e3", "0"))


def objects(schema):
    if isinstance(schema, list):
        for part in schema:
            yield from objects(part)
    elif isinstance(schema, dict):
        if schema.get("type") == "object":
            yield schema
        for part in schema.values():
            yield from objects(part)


def test_the_file_is_current_and_written_as_printed(tmp_path, capsys):
    assert main([str(tmp_path / "schema.json")]) == main([]) == 0
    written = (tmp_path / "schema.json").read_text()
    assert written == capsys.readouterr().out
    assert written == (CHARTS / LIBRARY / "values.schema.json").read_text(), "run `make schema`"


def patterns(node):
    if isinstance(node, dict):
        yield from (value for key, value in node.items() if key == "pattern" and isinstance(value, str))
    for part in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from patterns(part)


@pytest.mark.parametrize("chart", [LIBRARY, "prepare", "ddp"])
def test_it_is_a_schema_for_two_validators_and_for_editors(chart):
    """Editors and ajv read expressions as ECMA-262 with the flag u, where an escape that means nothing is an error."""
    schema = json.loads((CHARTS / chart / "values.schema.json").read_text())
    Draft202012Validator.check_schema(schema)
    jsonschema_rs.meta.validate(schema)
    for pattern in patterns(schema):
        regress.Regex(pattern, "u")


def test_unknown_names_are_refused_everywhere():
    found = list(objects(values_schema()))
    assert len(found) >= 10
    free = [part for part in found if part.get("additionalProperties") is not False]
    names = [
        part for part in free if "propertyNames" in part
    ]  # limits and requests: any resource, as an amount
    assert [part for part in free if part not in names] == [{"type": "object"}]  # `global`, which is Helm's
    assert all(isinstance(part["additionalProperties"], dict) for part in names)


def test_every_setting_of_the_trainer_is_in_it_but_those_of_the_chart():
    settings = values_schema()["properties"]["config"]["properties"].keys()
    filled = {"run", "results", "image", "accelerator", "wait_s", "grace_s", "allow_faults"}
    assert Config.model_fields.keys() - settings == filled


def test_the_defaults_are_allowed_and_every_value_has_one():
    defaults = yaml.safe_load((CHARTS / LIBRARY / "values.yaml").read_text())
    Draft202012Validator(values_schema()).validate(defaults)
    missing = set(paths(values_schema())) - set(leaves(defaults))
    assert missing == set()


NO_VALUES_BELOW = ("config", "resources", "analysis.resources", "pod.affinity")


def paths(schema, prefix=""):
    """Dotted names of the values, down to what is no record; `global` is no value of ours."""
    for name, part in schema["properties"].items():
        if part.get("properties") and f"{prefix}{name}" not in NO_VALUES_BELOW:
            yield from paths(part, f"{prefix}{name}.")
        elif name != "global":
            yield f"{prefix}{name}"


def leaves(values, prefix=""):
    for name, value in values.items():
        yield f"{prefix}{name}"
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{name}.")
