"""Run `python -m trainer.environment`."""

from __future__ import annotations

import sys

from trainer.installation import packages_needed
from trainer.launch.stop import ignore_further, listen_early

if __name__ == "__main__":
    listen_early()
    with packages_needed():
        from trainer.environment.launcher import main

        try:
            code = main(sys.argv[1:])
        finally:
            ignore_further()
    sys.exit(code)
