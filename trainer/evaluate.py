"""`python -m trainer.evaluate`: judges the weights of a finished run, here and in one process."""

import sys

from stratlab_spec.settings.wording import end_at_interrupt
from trainer.installation import packages_needed

if __name__ == "__main__":
    end_at_interrupt()
    with packages_needed():
        from trainer.evaluation.command import main

        sys.exit(main())
