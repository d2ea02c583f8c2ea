"""A run as a live table, on a terminal."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from stratlab.cluster.pod_row import PodRow, build_row
from stratlab.cluster.resource_events import format_event
from stratlab.cluster.workloads import FAILED, RUNNING, SUCCEEDED
from stratlab.watch.lines import describe_analysis, describe_state, describe_waiting, list_remedies
from stratlab.watch.picture import Picture

COLOURS = {SUCCEEDED: "green", RUNNING: "green", FAILED: "red", "deleted": "red", "Pending": "yellow"}
EVENTS_SHOWN = 5
TOLD_SHOWN = 3
PODS_SHOWN = 32


class LiveTable:
    """The newest picture, drawn four times a second at most; sentences scroll above it."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=4)

    def __enter__(self) -> LiveTable:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def say(self, sentence: str) -> None:
        self._live.console.print(Text(sentence), soft_wrap=True)

    def show(self, picture: Picture) -> None:
        self._live.update(render(picture))


def render(picture: Picture) -> Group:
    """State, progress, pods, the last warnings, the analysis. Nothing of it is markup."""
    parts: list[RenderableType] = [Text(describe_state(picture), style=COLOURS.get(picture.state, "bold"))]
    if waiting := describe_waiting(picture):
        parts.append(Text(waiting, style="yellow"))
    if picture.progress:
        parts += [
            ProgressBar(total=picture.progress.steps, completed=picture.progress.step, width=60),
            Text(str(picture.progress)),
        ]
    parts += [Text(sentence, style="yellow") for sentence in picture.told[-TOLD_SHOWN:]]
    rows = [build_row(pod) for pod in picture.training_pods]
    if rows:
        parts.append(_table(rows))
    for event in picture.events[-EVENTS_SHOWN:]:
        about = event["involvedObject"].get("name", "")
        parts.append(Text(f"{about}: {format_event(event)}", style="yellow"))
    parts += [Text(sentence, style="yellow") for sentence in list_remedies(picture)]
    for source, sentence in picture.refused.items():
        parts.append(Text(f"{source} cannot be looked at: {sentence}", style="yellow"))
    if analysis := describe_analysis(picture):
        parts.append(Text(analysis))
    return Group(*parts)


def _table(rows: list[PodRow]) -> Table:
    table = Table("pod", "phase", "ready", "restarts", "node", "why")
    # A pod in trouble is shown even if there are many.
    shown = sorted(rows, key=lambda row: not row.note)[:PODS_SHOWN] if len(rows) > PODS_SHOWN else rows
    for row in shown:
        phase = Text(row.phase, style=COLOURS.get(row.phase, ""))
        table.add_row(Text(row.name), phase, row.ready, str(row.restarts), Text(row.node), Text(row.note))
    if len(rows) > len(shown):
        table.add_row(f"and {len(rows) - len(shown)} more", "", "", "", "", "")
    return table
