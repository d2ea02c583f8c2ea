"""Start the command line of `stratlab` and `python -m stratlab`; print one sentence if packages are missing."""

from __future__ import annotations

import sys

from stratlab.machine import Interrupted, interrupt_raises, read_version

MISSING_PACKAGE = 2


def main() -> None:
    """Run the console script."""
    if sys.argv[1:] == ["--version"]:  # also without the packages
        print(f"stratlab {read_version()}")
        return
    try:
        with interrupt_raises():
            from stratlab.cli import main as run

            run()
    except Interrupted as stop:  # while importing; the command line handles it inside a verb
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
