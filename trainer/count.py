"""`python -m trainer.count`: count the memory of one rank without a GPU and without data."""

import os
import sys

from stratlab_spec.settings.wording import end_at_interrupt

if __name__ == "__main__":
    end_at_interrupt()

from trainer.installation import packages_needed

if __name__ == "__main__":
    with packages_needed():
        from trainer.memory_estimation.command import main

        sys.exit(main(sys.argv[1:], os.environ))
