"""Read the file of a sweep.

`read_sweep` checks the file against `Sweep` and `Tune`, and reports every mistake at once with key, value and allowed
values.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict, ValidationError

from stratlab import UserError
from stratlab.compare.variants import PREFIX, REFUSED
from stratlab.wording import ask_nearest

OLD_VARY = "varied"
log = logging.getLogger("stratlab")

StrictStr = Annotated[str, Strict()]
Scalar = Annotated[bool, Strict()] | Annotated[int, Strict()] | Annotated[float, Strict()] | StrictStr
STRATEGY = "strategy"
NOT_HERE = {
    "run.config.comparison": "set the key `comparison` of the file",
    "run.config.strategy": "it follows from the chart, which the matrix names under `strategy`",
    "run.config.run": "the release gives the run its name",
}


class Tune(BaseModel):
    """Define the tuning of each strategy. All other settings equal the comparison's: seed, data, batch, precision."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    knobs: dict[str, dict[str, Annotated[list[Scalar], Field(min_length=1)]]] = Field(
        min_length=1,
        description="charts with knobs and lists of values, such as {ddp: {static_graph: [true]}}",
    )
    """Name of a chart in the matrix -> knob (docs/knobs.md) -> values to try in addition to its default."""
    steps: int = Field(ge=10, le=1_000_000, strict=True)
    """Steps of each candidate's run; the first 5 are never timed."""
    candidates: int = Field(default=4, ge=2, le=100, strict=True)
    """Most candidates for each combination of the matrix; the first one is the strategy with its defaults."""
    repeats: int = Field(default=1, ge=1, le=100, strict=True)
    """Runs of each candidate. From two runs on, a lead must exceed the measured noise."""
    metric: Literal["throughput", "step_time", "memory"] = "throughput"
    """The criterion for candidates: samples per second, the median step, or the peak of device memory."""


KINDS = ("bool", "int", "float", "str", "list[any]", "dict[str,any]")
KEY = "[key]"
PATHS = ("matrix", "set", "exclude")
"""Keys whose own keys are paths; the rules of the file report unknown paths."""
WITHIN = {
    "list_type": "a list of values",
    "too_short": "a list with at least one value",
    "dict_type": "names with values, such as {name: value}",
    "string_type": "a text",
}
"""Kind of mistake inside a key -> allowed values."""
SCALAR = "a text, a number, true or false"
SHOWN = 80
"""Number of characters shown of a value."""


def list_wrong_keys(failure: ValidationError, sweep: type[BaseModel]) -> list[str]:
    """Return one sentence for each place; a value with several allowed kinds is reported once."""
    found: dict[str, str] = {}
    for error in failure.errors(include_url=False):
        place = ".".join(str(part) for part in error["loc"] if str(part) not in KINDS)
        if error["loc"][-1] == KEY and error["loc"][0] in PATHS:
            continue
        found.setdefault(place, _say(place, error, sweep))
    return list(found.values())


def _say(place: str, error: Mapping[str, Any], sweep: type[BaseModel]) -> str:
    loc = error["loc"]
    of_tune = loc[0] == "tune" and len(loc) > 1
    model, name = (Tune, str(loc[1])) if of_tune else (sweep, str(loc[0]))
    if error["type"] in ("extra_forbidden", "invalid_key"):
        asked = ask_nearest(name, model.model_fields)
        there = f"{', ' if asked else ''}{asked}; there are {', '.join(model.model_fields)}"
        return f"{place}: unknown key{there} [SL-sweep-key-unknown]"
    if error["type"] == "missing":
        return f"{place}: is missing, expected {_expect(model, name)} [SL-sweep-key-missing]"
    if loc[-1] == KEY:
        return f"{place.removesuffix(f'.{KEY}')}: expected a text as the name [SL-sweep-name-not-text]"
    if loc[-1] in KINDS:
        expected = f"{SCALAR}{', a list, or names with values' if name == 'set' else ''}"
    elif len(loc) == 1 + of_tune:
        expected = _expect(model, name)
    else:
        expected = WITHIN.get(error["type"], _expect(model, name))
    return f"{place}={show_value(error['input'])}: expected {expected} [SL-sweep-value]"


def _expect(model: type[BaseModel], name: str) -> str:
    """Describe the values of the key: its description, and the limits of a number."""
    entry = model.model_json_schema()["properties"][name]
    if entry.get("type") == "integer":
        return f"a whole number from {entry['minimum']} to {entry['maximum']}"
    if "enum" in entry:
        return f"one of {', '.join(entry['enum'])}"
    return str(entry["description"])


def show_value(value: object) -> str:
    """Format a value as YAML, and shorten a long one.

    >>> [show_value(value) for value in (None, True, "two", 2.5, [1])]
    ['null', 'true', "'two'", '2.5', '[1]']
    """
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    text = repr(value) if isinstance(value, str | int | float | list | dict) else str(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class Sweep(BaseModel):
    """Hold the file of a sweep. Paths in it are relative to the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    comparison: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="a name of letters, digits, '.', '_' and '-', with a letter or a digit first",
    )
    """The folder on the results volume and the experiment in MLflow; the names of the releases begin with it."""
    namespace: str = Field(
        default="stratlab",
        pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$",
        description="a name of small letters, digits and '-', 63 at most, with a letter or a digit at both ends",
    )
    """Namespace of the releases."""
    charts: str = Field(default="charts", description="the name of a folder")
    """Folder with one chart per strategy."""
    values: Annotated[list[StrictStr], BeforeValidator(_as_list)] = Field(
        default=[], description="the name of a file, or a list of them"
    )
    """Files for `helm --values`, used by every release."""
    set: dict[str, Scalar | list[Any] | dict[str, Any]] = Field(
        default={}, description="paths with values, such as {run.nodes: 2}"
    )
    """Path below the chart's values -> value, used by every release."""
    matrix: dict[str, Annotated[list[Scalar], Field(min_length=1)]] = Field(
        description="lists of values, such as {strategy: [ddp, fsdp], run.nodes: [1, 2]}"
    )
    """`strategy` -> names of charts; any path below `run` -> values. Every combination is a release."""
    repeats: int = Field(default=1, ge=1, le=100, strict=True)
    """Runs of each combination: the same settings under other names."""
    exclude: list[dict[str, Scalar]] = Field(
        default=[], description="a list of combinations, such as [{strategy: ddp, run.nodes: 2}]"
    )
    """Combinations to leave out: those that match all keys of an entry."""
    parallel: int = Field(default=1, ge=1, le=64, strict=True)
    """Number of releases that run at the same time."""
    vary: Annotated[list[StrictStr], BeforeValidator(_as_list)] = Field(
        default=[], description="a path of the matrix, or a list of them"
    )
    """Paths of the matrix that differ on purpose between the runs; the results are ranked over them."""
    tune: Tune | None = Field(
        default=None, description="the keys knobs, steps and perhaps more, as names with values"
    )
    """Tune each strategy first, by short runs that form the comparison `<comparison>-tuning`."""


def read_sweep(file: Path) -> Sweep:
    """Read the sweep from a YAML file.

    Raises:
        UserError: with one line per mistake.
    """
    try:
        content = yaml.safe_load(file.read_text())
    except OSError as failure:
        raise UserError(
            f"{file}: {failure.strerror}; expected the file of a sweep [SL-sweep-unreadable]"
        ) from failure
    except UnicodeDecodeError as failure:
        raise UserError(
            f"{file}: not YAML: byte {failure.start} is not UTF-8 [SL-sweep-not-utf8]"
        ) from failure
    except RecursionError:
        raise UserError(
            f"{file}: its lists or maps are nested too deeply for a sweep [SL-sweep-too-deep]"
        ) from None
    except (yaml.YAMLError, ValueError) as failure:  # ValueError: an invalid date or number
        raise UserError(f"{file}: not YAML: {failure} [SL-sweep-not-yaml]") from failure
    if not isinstance(content, dict):
        raise UserError(f"{file}: expected the keys {', '.join(Sweep.model_fields)} [SL-sweep-no-map]")
    if OLD_VARY in content:
        log.warning(
            "%s: the key `varied` is called `vary` now; the next version does not read the old name "
            "[SL-sweep-key-renamed]",
            file,
        )
        content.setdefault("vary", content.pop(OLD_VARY))
    problems: list[str] = []
    try:
        sweep = Sweep.model_validate(content)
    except ValidationError as failure:
        problems += list_wrong_keys(failure, Sweep)
    problems += _broken_rules(content)
    if problems:
        raise UserError("\n  ".join([f"{file}:", *problems]))
    return sweep


def list_varied(sweep: Sweep) -> tuple[str, ...]:
    """Return the names of the settings that differ on purpose between the runs."""
    return tuple(path.removeprefix(PREFIX) for path in sweep.vary)


def same(a: Any, b: Any) -> bool:
    """Return whether two values are equal and of the same type: 1 is not true."""
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)


def _has_twice(values: Any) -> bool:
    return isinstance(values, list) and any(same(a, b) for i, a in enumerate(values) for b in values[:i])


def _broken_rules(content: dict[Any, Any]) -> Iterator[str]:
    """Yield broken rules that the schema cannot express, also if other parts of the file are wrong."""
    matrix, given, exclude = (content.get(key) for key in ("matrix", "set", "exclude"))
    matrix = matrix if isinstance(matrix, dict) else {}
    given = given if isinstance(given, dict) else {}
    for path, values in matrix.items():
        yield from _wrong_path("matrix", str(path), (STRATEGY,))
        if path in given:
            yield f"matrix: {path} is also in `set`; remove one of them [SL-matrix-in-set]"
        if _has_twice(values):
            yield f"matrix: {path} has the same value twice [SL-matrix-value-twice]"
    if matrix and STRATEGY not in matrix:
        yield "matrix: `strategy` is missing; list the charts to compare [SL-matrix-no-strategy]"
    for path in given:
        yield from _wrong_path("set", str(path), ())
    for entry in exclude if isinstance(exclude, list) else []:
        for path, value in entry.items() if isinstance(entry, dict) else []:
            values = matrix.get(path)
            if values is None:
                near = _nearest(str(path), map(str, matrix))
                yield f"exclude: {path} is not in the matrix{near} [SL-exclude-not-in-matrix]"
            elif isinstance(values, list) and not any(same(value, other) for other in values):
                yield f"exclude: {path} is never {value!r}; the matrix has {values} [SL-exclude-never]"
    yield from _wrong_varied(content.get("vary"), matrix)
    yield from _wrong_tuning(content.get("tune"), matrix)


def _wrong_varied(varied: Any, matrix: dict[Any, Any]) -> Iterator[str]:
    given = _as_list(varied) if isinstance(varied, (str, list)) else []
    for path in filter(lambda each: isinstance(each, str), given):  # the key's own message covers other types
        name = path.removeprefix(PREFIX)
        if name in REFUSED:
            yield f"vary: {path} cannot be varied: {REFUSED[name]} [SL-sweep-varied-refused]"
        elif path not in matrix or not path.startswith(PREFIX):
            paths = [str(each) for each in matrix if str(each).startswith(PREFIX)]
            there = f"there are {', '.join(paths)}" if paths else "which has no setting"
            near = _nearest(PREFIX + name, paths)
            yield f"vary: {path} is not a setting of the matrix, {there}{near} [SL-sweep-varied-no-setting]"


def _wrong_tuning(tune: Any, matrix: dict[Any, Any]) -> Iterator[str]:
    knobs = tune.get("knobs") if isinstance(tune, dict) else None
    charts = matrix.get(STRATEGY)
    most = tune.get("candidates", Tune.model_fields["candidates"].default) if isinstance(tune, dict) else 0
    for chart, tried in knobs.items() if isinstance(knobs, dict) else []:
        if isinstance(tried, dict) and isinstance(most, int) and most > 1:
            yield from _unreachable(str(chart), tried, most)
        if isinstance(charts, list) and chart not in charts:
            near = f"{', '.join(map(str, charts))}{_nearest(str(chart), map(str, charts))}"
            yield f"tune: {chart} is not a strategy of the matrix; there are {near} [SL-tune-no-strategy]"
        for knob, values in tried.items() if isinstance(tried, dict) else []:
            if f"run.config.{knob}" in matrix:
                yield (
                    f"tune: {chart}: run.config.{knob} is also in the matrix; either compare it or tune it "
                    "[SL-tune-in-matrix]"
                )
            if _has_twice(values):
                yield f"tune: {chart}: {knob} has the same value twice [SL-tune-value-twice]"


def _unreachable(chart: str, tried: dict[Any, Any], most: int) -> Iterator[str]:
    """Yield the first knob whose first value would come after the last candidate; candidate 1 has the defaults."""
    before = 1
    for knob, values in tried.items():
        if before >= most:
            least = 2 + sum(len(each) for each in list(tried.values())[:-1] if isinstance(each, list))
            yield (
                f"tune.candidates={most}: {chart}'s {knob} would never be tried; {before} candidates come first "
                f"(the defaults, and each value of the knobs above); use at least {least}, or fewer values "
                "[SL-tune-knob-unreachable]"
            )
            return
        before += len(values) if isinstance(values, list) else 0


def _wrong_path(key: str, path: str, also: tuple[str, ...]) -> Iterator[str]:
    if path in NOT_HERE:
        yield f"{key}: leave {path} out, {NOT_HERE[path]} [SL-sweep-path-follows]"
    elif path not in also and not (path.startswith("run.") and all(path.split("."))):
        allowed = " or ".join([*also, "a path such as run.config.model"])
        near = f"{allowed}{_nearest(path, also)}"
        yield f"{key}: {path} is not a path of the values; expected {near} [SL-sweep-no-path]"


def _nearest(name: str, known: Iterable[str]) -> str:
    asked = ask_nearest(name, known)
    return f", {asked}" if asked else ""


def cannot_start(lines: Iterable[str]) -> UserError:
    """Build the error with one line per cause."""
    return UserError("\n  ".join(["the sweep cannot start:", *lines]))
