"""Which `trainer` a program would import. Other distributions install an import package of that name too."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

DISTRIBUTION = "stratlab-trainer"
WHEEL = "dist/stratlab_trainer-*.whl of `make dist`"
LOOK = """
import json
from importlib.metadata import distribution, packages_distributions
from importlib.util import find_spec
spec = find_spec("trainer")
owners = map(distribution, sorted(set(packages_distributions().get("trainer", []))))
print(json.dumps([spec and spec.origin, [(o.name, o.version, str(o.locate_file("trainer"))) for o in owners]]))
"""


def explain_trainer(python: str, environ: Mapping[str, str]) -> str:
    """Why `python -m trainer` would not start stratlab's, and what to do; "" where it would.

    Args:
        python: the interpreter, by its path or its name on the path of `environ`.
        environ: of the process that would be started.
    """
    done = subprocess.run([python, "-c", LOOK], env=dict(environ), capture_output=True, text=True)
    if done.returncode:
        return ""  # no word of this is about `trainer`
    origin, owners = json.loads(done.stdout.splitlines()[-1])
    again = "--force-reinstall --no-deps " if any(owner[0] == DISTRIBUTION for owner in owners) else ""
    install = f"pip install {again}{WHEEL}"
    if not origin:
        return f"the trainer is not installed here: {install} [SL-trainer-not-installed]"
    folder = Path(origin).parent
    ours = _is_ours(folder)
    others = [
        (name, version)
        for name, version, place in owners
        if name != DISTRIBUTION and (not ours or Path(place).resolve() == folder.resolve())
    ]
    if others:
        names = " ".join(name for name, _ in others)
        told = ", ".join(f"{name} {version}" for name, version in others)
        return (
            f"`trainer` is an import package of another distribution here, {told} ({origin}): "
            f"pip uninstall {names}, then {install}; or give each an environment of its own [SL-trainer-of-others]"
        )
    if ours:
        return ""
    return f"`trainer` is {origin} here, which is not stratlab's: rename it, or start elsewhere [SL-trainer-foreign]"


def _is_ours(folder: Path) -> bool:
    """By the file that holds the distribution's name."""
    try:
        return DISTRIBUTION in (folder / "settings" / "installation.py").read_text()
    except (OSError, ValueError):
        return False
