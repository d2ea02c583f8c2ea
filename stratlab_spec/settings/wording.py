"""The spelling of settings, commands and next steps in messages: as the reader has typed them.

Messages are written with the trainer's variables, TRAINER_LR. A user of a chart has written run.config.lr, a user of
options or a file `lr`; in a plain environment the variable itself was set.

Ctrl-C ends a command with one line, also while torch is imported, when an exception would pass through a hundred
modules, some of which swallow it.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

OPTIONS = "STRATLAB_OPTIONS"
"""Set if `python -m trainer` received the settings as options, in a file or in Python."""
NAMESPACE = "STRATLAB_NAMESPACE"
"""Set by charts: the release's."""
CLUSTER = "KUBERNETES_SERVICE_HOST"
"""Set in every pod by Kubernetes, and not in a rehearsal."""
OF_A_CHART = {
    "RUN": "the release's",
    "RESULTS": "run.results.mountPath",
    "IMAGE": "run.image",
    "WAIT_S": "run.scheduling.waitSeconds",
    "GRACE_S": "run.graceSeconds",
    "ACCELERATOR": "run.accelerator",
    "ALLOW_FAULTS": "run.allowFaults",
}
"""Settings that a chart sets by other values than run.config."""
OF_A_REHEARSAL = {"RUN": "--name", "RESULTS": "--results"}
VARIABLE = re.compile(r"\bTRAINER_([A-Z][A-Z0-9_]*)(?![A-Za-z0-9_])")
VALUE = re.compile(r"\brun\.config\.([a-z][a-z0-9_]*)")


def as_text(value: object) -> str:
    """Return a setting's value as a pod's variables have it: true, 0.001, qwen2.5-3b."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def spell(text: str, env: Mapping[str, str], *, elsewhere: bool = False) -> str:
    """Return `text` with each setting as its reader writes it.

    Args:
        env: of the run.
        elsewhere: it runs on a cluster, regardless of `env`.
    """
    if env.get(OPTIONS):
        return VALUE.sub(r"\1", VARIABLE.sub(lambda found: found[1].lower(), text))
    if NAMESPACE not in env:
        return VALUE.sub(lambda found: f"TRAINER_{found[1].upper()}", text)
    others = OF_A_CHART if elsewhere or CLUSTER in env else OF_A_CHART | OF_A_REHEARSAL
    return VARIABLE.sub(lambda found: others.get(found[1], f"run.config.{found[1].lower()}"), text)


def spell_options(text: str, options: Mapping[str, str]) -> str:
    """Return `text` with the options of a command in place of the settings that they set.

    Args:
        options: setting -> option, {"dataset_path": "--dataset-path"}; other settings stay.
    """
    return VARIABLE.sub(lambda found: options.get(found[1].lower(), found[0]), text)


def name_removal(folder: Path, env: Mapping[str, str]) -> str:
    """Return the command that removes a run's folder.

    Args:
        folder: <results>/<comparison>/<run>.
    """
    if CLUSTER not in env:
        return f"stratlab remove {shlex.quote(str(folder))}"
    namespace = f" -n {env[NAMESPACE]}" if env.get(NAMESPACE) else ""
    return f"stratlab remove {folder.parent.name}/{folder.name} --on-cluster{namespace}"


def name_first(names: Sequence[str], most: int) -> str:
    """Return `a, b and 3 more`: of a list that may be long, the first `most`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def name_again(env: Mapping[str, str]) -> str:
    """Return the instruction that starts a run again under its name: "install again"."""
    return "install again" if CLUSTER in env else "start it again"


class SpellingFormatter(logging.Formatter):
    """Format log lines with settings as their reader writes them."""

    def format(self, record: logging.LogRecord) -> str:
        return spell(super().format(record), os.environ)


def end_at_interrupt() -> None:
    """End this process at once with 130 on SIGINT; processes that it forked end with it (`side_by_side`).

    If SIGINT is ignored, as with `nohup command &`, it stays ignored.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    owner = os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        if os.getpid() == owner:
            os.write(2, b"stopped by SIGINT\n")
        os._exit(128 + number)

    signal.signal(signal.SIGINT, end)
