"""`python -m trainer.culprit`: the exit code of a run of several pods."""

import sys

from trainer.installation import packages_needed

if __name__ == "__main__":
    with packages_needed():
        from trainer.launch.culprit import main

        sys.exit(main(sys.argv[1:]))
