"""`stratlab` and `python -m stratlab`: the command line, or one sentence where its packages are not installed."""

from __future__ import annotations

import sys

from stratlab.machine import Interrupted, interrupt_raises, read_version

MISSING_PACKAGE = 2


def main() -> None:
    """The console script."""
    if sys.argv[1:] == ["--version"]:  # also without the packages
        print(f"stratlab {read_version()}")
        return
    try:
        with interrupt_raises():
            from stratlab.cli import main as run

            run()
    except Interrupted as stop:  # while importing; of a verb the command line says it
        print(f"stopped by {stop}", file=sys.stderr)
        sys.exit(stop.code)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] in ("stratlab", "stratlab_spec"):
            raise
        print(
            f"stratlab needs {missing.name}, which is not installed here: pip install dist/stratlab-*.whl "
            "dist/stratlab_spec-*.whl of `make dist`",
            file=sys.stderr,
        )
        sys.exit(MISSING_PACKAGE)


if __name__ == "__main__":
    main()
