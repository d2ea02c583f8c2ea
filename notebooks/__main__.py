"""python -m notebooks [NAME...]: executes these notebooks, else all, and writes their outputs into them."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import nbformat

from notebooks.execution import FOLDER, execute, list_notebooks


def main(names: list[str]) -> int:
    """0, or 2 where there is no such notebook; a failing cell ends it with its traceback."""
    known = {path.stem: path for path in list_notebooks()}
    if wrong := [name for name in names if name not in known]:
        print(f"{', '.join(wrong)}: expected some of {', '.join(known)}", file=sys.stderr)
        return 2
    for name in names or known:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as work:
            content = execute(known[name], Path(work))
        nbformat.write(content, known[name])
        print(f"{known[name].relative_to(FOLDER.parent)}: {time.monotonic() - began:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
