from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import regress
import yaml
from jsonschema import Draft202012Validator

from charts.values_schema import main, values_schema
from stratlab_spec.settings.config import Config
from tests.charts.rendering import CHARTS, LIBRARY


def objects(schema: Any) -> Iterator[dict[str, Any]]:
    """Every part of a schema that describes an object."""
    if isinstance(schema, list):
        for part in schema:
            yield from objects(part)
    elif isinstance(schema, dict):
        if schema.get("type") == "object":
            yield schema
        for part in schema.values():
            yield from objects(part)


def test_the_file_is_current_and_written_as_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "schema.json")]) == main([]) == 0
    written = (tmp_path / "schema.json").read_text()
    assert written == capsys.readouterr().out
    assert written == (CHARTS / LIBRARY / "values.schema.json").read_text(), "run `make schema`"


def patterns(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        yield from (value for key, value in node.items() if key == "pattern" and isinstance(value, str))
    for part in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from patterns(part)


@pytest.mark.parametrize("chart", [LIBRARY, "prepare", "ddp"])
def test_it_is_a_schema_for_two_validators_and_for_editors(chart: str) -> None:
    """Editors and ajv read expressions as ECMA-262 with the flag u, where an escape that means nothing is an error."""
    schema = json.loads((CHARTS / chart / "values.schema.json").read_text())
    Draft202012Validator.check_schema(schema)
    jsonschema_rs.meta.validate(schema)
    for pattern in patterns(schema):
        regress.Regex(pattern, "u")


def test_unknown_names_are_refused_everywhere() -> None:
    found = list(objects(values_schema()))
    assert len(found) >= 10
    free = [part for part in found if part.get("additionalProperties") is not False]
    names = [
        part for part in free if "propertyNames" in part
    ]  # limits and requests: any resource, as an amount
    assert [part for part in free if part not in names] == [{"type": "object"}]  # `global`, which is Helm's
    assert all(isinstance(part["additionalProperties"], dict) for part in names)


def test_every_setting_of_the_trainer_is_in_it_but_those_of_the_chart() -> None:
    settings = values_schema()["properties"]["config"]["properties"].keys()
    filled = {"run", "results", "image", "accelerator", "wait_s", "grace_s", "allow_faults"}
    assert Config.model_fields.keys() - settings == filled


def test_the_defaults_are_allowed_and_every_value_has_one() -> None:
    defaults = yaml.safe_load((CHARTS / LIBRARY / "values.yaml").read_text())
    Draft202012Validator(values_schema()).validate(defaults)
    missing = set(paths(values_schema())) - set(leaves(defaults))
    assert missing == set()


NO_VALUES_BELOW = ("config", "resources", "analysis.resources", "pod.affinity")


def paths(schema: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Dotted names of the values, down to what is no record; `global` is no value of ours."""
    for name, part in schema["properties"].items():
        if part.get("properties") and f"{prefix}{name}" not in NO_VALUES_BELOW:
            yield from paths(part, f"{prefix}{name}.")
        elif name != "global":
            yield f"{prefix}{name}"


def leaves(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        yield f"{prefix}{name}"
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{name}.")
