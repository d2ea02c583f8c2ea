"""Schema, chart and trainer refuse the same values, and take the same ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from charts.values_schema import values_schema
from tests.charts.bad_values import (
    BAD,
    BAD_FOR_THE_CLUSTER,
    DEFAULTS,
    GOOD,
    Case,
    build_values,
    merge_defaults,
    trainer_environment,
)
from tests.charts.rendering import CHARTS, helm_template
from trainer.settings.config import Config, ConfigError
from trainer.settings.number_bounds import number_problem, with_bounds

SCHEMA = Draft202012Validator(values_schema())
SECOND = jsonschema_rs.validator_for(values_schema())
"""Written by others, and quicker."""


def refused_paths(case: Case) -> list[str]:
    """By both validators, who must agree."""
    values = merge_defaults(build_values(case))
    paths = [".".join(map(str, error.absolute_path)) for error in SCHEMA.iter_errors(values)]
    assert [".".join(map(str, error.instance_path)) for error in SECOND.iter_errors(values)] == paths
    return paths


def trainer_problems(case: Case) -> list[str]:
    try:
        Config.from_env(trainer_environment(case))
    except ConfigError as failure:
        return failure.problems
    return []


def test_the_list_names_every_number() -> None:
    assert len({path for path, _ in BAD}) >= 35
    assert {"config.lr", "config.deadline_s", "config.seed", "results.mountPath"} <= {path for path, _ in BAD}


@pytest.mark.parametrize("case", [*BAD, *BAD_FOR_THE_CLUSTER], ids=lambda case: f"{case[0]}={case[1]!r}"[:60])
def test_the_schema_refuses(case: Case) -> None:
    assert {*refused_paths(case)} == {case[0]}


@pytest.mark.parametrize("case", BAD, ids=lambda case: f"{case[0]}={case[1]!r}"[:60])
def test_the_trainer_refuses(case: Case) -> None:
    (variable, text) = [*trainer_environment(case).items()][1]
    assert [problem.startswith(f"{variable}={text!r}: ") for problem in trainer_problems(case)] == [True]


@pytest.mark.parametrize("case", GOOD, ids=lambda case: f"{case[0]}={case[1]!r}"[:60])
def test_schema_and_trainer_take(case: Case) -> None:
    """Rules between settings may speak; the value itself is allowed."""
    assert refused_paths(case) == []
    variable, text = [*trainer_environment(case).items()][1]
    if not case[0].startswith(("scheduling", "analysis")):
        assert not any(problem.startswith(f"{variable}={text!r}: ") for problem in trainer_problems(case))


def batches(cases: list[Case]) -> Iterator[list[Case]]:
    """Each value once, in as few files as it takes: a file has one value for a path."""
    by_path: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        by_path[case[0]].append(case)
    for number in range(max(map(len, by_path.values()))):
        yield [cases[number] for cases in by_path.values() if number < len(cases)]


def mark(case: Case) -> str:
    """By what helm names it; for a wrong key it names a wrong place (Helm 4.3)."""
    path, value = case
    return next(iter(value)) if isinstance(value, dict) else f"at '/{path.replace('.', '/')}'"


def test_the_chart_refuses(helm: Path) -> None:
    """One sentence for each of them, from `helm template` itself."""
    for batch in batches([*BAD, *BAD_FOR_THE_CLUSTER]):
        done = helm_template(helm, CHARTS / "ddp", values={"run": build_values(*batch)})
        assert done.returncode == 1 and done.stdout == ""
        assert [case for case in batch if mark(case) not in done.stderr] == [], done.stderr


def test_the_chart_takes(helm: Path) -> None:
    for batch in batches(GOOD):
        done = helm_template(helm, CHARTS / "ddp", values={"run": build_values(*batch)})
        assert done.returncode == 0, done.stderr


def values_with_a_default(node: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in node.items():
        yield f"{prefix}{name}"
        if isinstance(value, dict) and name not in ("requests", "limits"):
            yield from values_with_a_default(value, f"{prefix}{name}.")


EMPTY = (
    *("env", "secrets", "image.pullSecrets", "scheduling.nodeSelector", "scheduling.tolerations"),
    *("pod.labels", "pod.annotations", "pod.topologySpread", "pod.volumes", "pod.initContainers"),
    *("pod.securityContext.supplementalGroups", "pod.securityContext.capabilities"),
    "podSecurity.hostPaths",
    *("analysis.resources.requests", "analysis.resources.limits"),
    *("analysis.wait.resources.requests", "analysis.wait.resources.limits"),
)
"""Lists and maps: null empties them."""


@pytest.mark.parametrize("path", [*values_with_a_default(DEFAULTS)])
def test_null_takes_no_value_away(path: str) -> None:
    """Helm makes nothing of it, and the templates zero or an error of their own."""
    assert SCHEMA.is_valid(merge_defaults(build_values((path, None)))) == (path in EMPTY)


def test_the_chart_takes_null_for_an_empty_list(helm: Path) -> None:
    done = helm_template(
        helm, CHARTS / "ddp", values={"run": build_values(*((path, None) for path in EMPTY))}
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", ["nodes", "results", "scheduling.waitSeconds", "image.tag"])
def test_the_chart_refuses_null(helm: Path, path: str) -> None:
    done = helm_template(helm, CHARTS / "ddp", values={"run": build_values((path, None))})
    assert done.returncode == 1 and f"missing property '{path.split('.')[-1]}'" in done.stderr


LOWEST = [{"minimum": 0}, {"exclusiveMinimum": 0}]
DIGITS = st.text("0123456789", min_size=1, max_size=12)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(
    whole=DIGITS,
    fraction=st.none() | DIGITS,
    exponent=st.none() | st.tuples(st.sampled_from(["", "+", "-"]), st.integers(0, 60)),
    lowest=st.sampled_from(LOWEST),
    highest=st.sampled_from([1, 10**3, None]),
    itself=st.booleans(),
)
def test_a_text_is_allowed_if_its_number_is(
    whole: str,
    fraction: str | None,
    exponent: tuple[str, int] | None,
    lowest: dict[str, int],
    highest: int | None,
    itself: bool,
) -> None:
    text = whole + (f".{fraction}" if fraction is not None else "")
    text += f"e{exponent[0]}{exponent[1]}" if exponent else ""
    bound = "maximum" if itself else "exclusiveMaximum"
    schema = with_bounds({"type": "number", **lowest, **({bound: float(highest)} if highest else {})})
    number, above = Decimal(text), Decimal(schema.get("maximum", schema.get("exclusiveMaximum")))
    inside = (number > 0 if "exclusiveMinimum" in lowest else number >= 0) and number < above
    inside = inside or (number == above and "maximum" in schema)
    written_plainly = not exponent or len(whole) == 1
    if number_problem(schema, text) is None:
        assert inside
    elif inside and written_plainly and not (exponent and highest == 1):
        # the exponent of a share must be negative, and a number with one is below its power of ten
        assert exponent and exponent[0] != "-" and exponent[1] >= len(str(int(above))) - 1


@pytest.mark.parametrize("text", ["100", "0100", "100.0", "1e2", "1.00E+02", "99.9", "9.99e1", "5e-3"])
def test_a_bound_that_is_allowed_itself(text: str) -> None:
    schema = {"type": "number", "exclusiveMinimum": 0, "maximum": 100}
    assert number_problem(schema, text) is None
    for more in ("100.5", "999", "1.01e2", "1e3", "0"):
        assert number_problem(schema, more) == "expected a number above 0 to 100, written as 0.0015 or 1.5e-3"
