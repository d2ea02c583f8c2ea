"""`python -m trainer.layout`: what a run of strategy nd would look like."""

import sys

from trainer.settings.installation import packages_needed
from trainer.settings.interruption import end_at_interrupt

if __name__ == "__main__":
    end_at_interrupt()
    with packages_needed():
        from trainer.layout.command import main

        sys.exit(main(sys.argv[1:]))
