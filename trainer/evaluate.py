"""`python -m trainer.evaluate`: judges the weights of a finished run, here and in one process."""

import sys

from trainer.settings.installation import packages_needed
from trainer.settings.interruption import end_at_interrupt

if __name__ == "__main__":
    end_at_interrupt()
    with packages_needed():
        from trainer.evaluation.command import main

        sys.exit(main())
