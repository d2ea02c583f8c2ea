"""Find helm, render charts with it, and explain its refusals.

For values that a chart's schema refuses, `explain_refusal` adds the known names and the allowed values.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from stratlab import UserError
from stratlab.run_settings import SETTINGS, find_problem
from stratlab.wording import name_allowed
from stratlab_spec.settings.config import SETTINGS_ELSEWHERE
from stratlab_spec.settings.wording import VARIABLE

UNKNOWN = re.compile(r"- at '(?P<path>[^']*)': additional properties (?P<names>'.*') not allowed")
UNMATCHED = re.compile(r"- at '/config/(?P<name>\w+)': '(?P<text>.*)' does not match pattern ")
NO_CHOICE = re.compile(r"- at '/config/(?P<name>\w+)': value must be one of ")
OF_SETTING = re.compile(r" *- at '/config/(?P<name>\w+)': ")
NOTHING = ", <nil>"
"""One of helm's choices: null, which resets a setting."""
CONFIG = "run.config."
REPOSITORY = Path(__file__).resolve().parents[1]
TIMEOUT_S = 60
RELEASE = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
LONGEST = 53
"""Longest name of a release; helm's pattern includes this limit."""


class HelmFailed(Exception):
    """Carry helm's own error text."""


def explain_refusal(text: str, chart: Path, settings: Sequence[str] = (), values: Sequence[Path] = ()) -> str:
    """Return helm's error with the allowed names for each unknown name.

    Helm's patterns and choices are replaced by the value, which helm does not show, and the expected values.

    Args:
        settings: as typed by the user.
        values: files; `settings` override them.
    """
    subchart = ""
    lines: list[str] = []
    wishes = _find_wishes(text, settings, values)
    for line in text.splitlines():
        about = OF_SETTING.match(line)
        if about and about["name"] in wishes:  # once, in place of helm's pattern
            if (wish := wishes[about["name"]]) not in lines:
                lines.append(wish)
            continue
        lines.append(line.removesuffix(NOTHING))
        if re.fullmatch(r"\S+:", line):
            subchart = line.removesuffix(":")
        if found := UNKNOWN.search(line):
            schema = _find_schema(chart, subchart)
            allowed = _allowed_names(schema, found["path"])
            lines += [
                f"  {name}: {_explain_name(name, found['path'], allowed, schema, chart)}"
                for name in re.findall(r"'([^']*)'", found["names"])
                if allowed
            ]
    return "\n".join(lines)


def _find_wishes(text: str, settings: Sequence[str], values: Sequence[Path]) -> dict[str, str]:
    """Return name of a setting -> the line that replaces helm's."""
    given = {found["name"]: found["text"] for found in map(UNMATCHED.search, text.splitlines()) if found}
    for found in filter(None, map(NO_CHOICE.search, text.splitlines())):
        if (value := _find_value(found["name"], settings, values)) is not None:
            given.setdefault(found["name"], value)
    wishes = {name: find_problem(name, value) for name, value in given.items()}
    return {name: f"- {CONFIG}{name}={given[name]}: {wish}" for name, wish in wishes.items() if wish}


def _find_value(name: str, settings: Sequence[str], values: Sequence[Path]) -> str | None:
    """Return the last value set for `run.config.<name>`; None = it was not set like this."""
    for setting in reversed([part for text in settings for part in text.split(",")]):
        key, equals, value = setting.partition("=")
        if equals and key.strip() == f"{CONFIG}{name}":
            return value
    for file in reversed(values):
        try:
            node: Any = yaml.safe_load(file.read_text())
        except (OSError, ValueError, yaml.YAMLError):
            continue
        for part in ("run", "config", name):
            node = node.get(part) if isinstance(node, Mapping) else None
        if isinstance(node, str | int | float):
            return str(node)
    return None


def _explain_name(name: str, path: str, allowed: Sequence[str], schema: Path, chart: Path) -> str:
    """Explain an unknown name: the place of a setting with this name, or its other name."""
    told = name_allowed(name, allowed, "allowed are", f"in {schema}")
    if name in SETTINGS_ELSEWHERE:
        instead = VARIABLE.sub(lambda found: f"run.config.{found[1].lower()}", SETTINGS_ELSEWHERE[name])
        return f"{instead}; {told}"
    of_run = _allowed_names(_find_schema(chart, "run"), "")
    place = f"{CONFIG}{name}" if name in SETTINGS else f"run.{name}" if name in of_run else ""
    if place and path != "/config":
        told = f"did you mean {place}? {told[told.index('allowed are') :]}"
    return told


def _find_schema(chart: Path, subchart: str) -> Path:
    folder = chart / "charts" / subchart if subchart and subchart != chart.name else chart
    return folder / "values.schema.json"


def _allowed_names(schema: Path, path: str) -> list[str]:
    """Return the properties in the schema at this path; none for a packed chart."""
    try:
        node: Any = json.loads(schema.read_text())
    except OSError:
        return []
    for part in filter(None, path.split("/")):
        node = node.get("properties", {}).get(part, {})
    return sorted(node.get("properties", {}))


def find_helm() -> Path:
    """Return helm from $STRATLAB_HELM, from .tools in the repository, or from PATH, in this order.

    Raises:
        UserError: helm is missing, or $STRATLAB_HELM cannot be run.
    """
    if given := os.environ.get("STRATLAB_HELM"):
        if not os.access(given, os.X_OK) or not Path(given).is_file():
            raise UserError(
                f"STRATLAB_HELM={given}: not a program; set it to the path of helm [SL-helm-no-program]"
            )
        return Path(given).absolute()
    for place in (REPOSITORY / ".tools" / "helm", REPOSITORY / ".tools" / "bin" / "helm"):
        if place.is_file():
            return place
    if found := shutil.which("helm"):
        return Path(found)
    raise UserError(
        "helm is missing, which renders the charts: put Helm 3.17 or 4 on PATH, or set STRATLAB_HELM to its path; "
        "in the repository `make setup` installs it [SL-helm-missing]"
    )


def read_chart_name(helm: Path, chart: Path) -> str:
    """Return the name in the chart's Chart.yaml.

    Raises:
        UserError: `chart` is not a chart.
    """
    if not chart.exists():
        raise UserError(
            f"{chart}: the chart does not exist{_hint_at_charts(chart.parent, chart.name)} [SL-no-such-chart]"
        )
    try:
        content = yaml.safe_load(run_helm(helm, ["show", "chart", str(chart)]))
    except HelmFailed as failure:
        why = "it has no Chart.yaml" + _hint_at_charts(chart)
        if not chart.is_dir() or (chart / "Chart.yaml").exists():
            why = f"helm show: {failure}"
        raise UserError(
            f"{chart}: not a chart, expected its folder or its package; {why} [SL-no-chart]"
        ) from None
    if content.get("type") == "library":
        others = _hint_at_charts(chart.parent)
        raise UserError(
            f"{chart}: a library that all charts share, which cannot run{others} [SL-chart-library]"
        )
    return str(content["name"])


def render_chart(
    helm: Path,
    chart: Path,
    release: str,
    *,
    settings: Sequence[str] = (),
    values: Sequence[Path] = (),
    literals: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Return the objects that `helm install RELEASE CHART` would create, without hooks such as tests.

    `settings` are `key=value` as for `--set`. In `literals` helm treats no character of the value as special (a comma
    in a path). `literals` override `settings`, which override the files in `values`.

    Raises:
        UserError: with helm's error for a value that the chart's schema refuses, and the allowed names.
    """
    if not RELEASE.fullmatch(release) or len(release) > LONGEST:
        raise UserError(
            f"--name {release}: expected small letters, digits, '.' and '-', {LONGEST} at most, with a letter or a "
            "digit at both ends [SL-helm-release-name]"
        )
    arguments = ["template", release, str(chart), "--no-hooks"]
    for file in values:
        _check_values(file)
    for option, given in (("--values", map(str, values)), ("--set", settings), ("--set-literal", literals)):
        arguments += [part for each in given for part in (option, each)]
    try:
        rendered = run_helm(helm, arguments)
    except HelmFailed as failure:
        told = explain_refusal(f"helm template: {failure}", chart, settings, values)
        raise UserError(told if "[SL-" in told else f"{told} [SL-chart-refuses]") from None
    documents = filter(None, yaml.safe_load_all(rendered))
    # a chart uses a List to order kinds that helm does not know
    return [
        each for found in documents for each in (found["items"] if found.get("kind") == "List" else [found])
    ]


def list_size(nodes: int | None, processes: int | None) -> list[str]:
    """Return settings of a chart for its pods and the processes of each; None keeps the chart's own."""
    asked = {"run.nodes": nodes, "run.processesPerNode": processes}
    return [f"{name}={value}" for name, value in asked.items() if value is not None]


def _check_values(file: Path) -> None:
    """Report problems of a values file that helm explains badly; helm explains problems inside the YAML well."""
    if not file.is_file():
        why = "is a folder" if file.is_dir() else "the file does not exist"
        raise UserError(f"--values {file}: {why} [SL-values-no-file]")
    try:
        content = yaml.safe_load(file.read_bytes())
    except (OSError, ValueError, yaml.YAMLError):
        return
    has_run = isinstance(content, dict) and isinstance(content.get("run"), dict)
    if isinstance(content, dict) and not has_run and content.keys() & SETTINGS.keys():
        raise UserError(
            f"--values {file}: is a settings file of `python -m trainer --config`; a chart's values have its "
            "content below run: and config: [SL-values-settings-file]"
        )
    if content is not None and not isinstance(content, dict):
        raise UserError(
            f"--values {file}: holds a {type(content).__name__}; expected values of a chart by their names, "
            "which begin with run: [SL-values-no-mapping]"
        )


def run_helm(
    helm: Path,
    arguments: Sequence[str],
    *,
    timeout_s: float = TIMEOUT_S,
    remarks: tuple[str, ...] = ("level=INFO",),
) -> str:
    """Return helm's output. Helm leaves the terminal's process group, so that Ctrl-C spares an installation.

    Args:
        remarks: prefixes of error lines that are not a reason.

    Raises:
        HelmFailed: with helm's own text, one line each.
        subprocess.TimeoutExpired: helm did not end.
    """
    done = subprocess.run(
        [str(helm), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    if done.returncode:
        words = [line for line in done.stderr.strip().splitlines() if not line.startswith(remarks)]
        raise HelmFailed("\n".join(words).removeprefix("Error: "))
    return done.stdout


@contextmanager
def write_values(values: Mapping[str, Any]) -> Iterator[Path]:
    """Yield a temporary values file for helm. JSON is valid YAML, and its texts cannot be read as other types."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "values.json"
        file.write_text(json.dumps(values))
        yield file


def _hint_at_charts(folder: Path, wanted: str = "") -> str:
    """Return the chart with the nearest name, or the charts in `folder`, else in `charts`; "" = without any chart."""
    for place in dict.fromkeys((folder, Path("charts"))):
        charts = place.glob("*/Chart.yaml")
        if known := sorted(path.parent.name for path in charts if "type: library" not in path.read_text()):
            near = difflib.get_close_matches(wanted, known, n=1)
            return f", did you mean {place / near[0]}?" if near else f"; {place} has {', '.join(known)}"
    return ""
