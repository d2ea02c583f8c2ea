"""`python -m trainer.check`: checks many runs at once and starts nothing."""

import sys

from trainer.installation import packages_needed

if __name__ == "__main__":
    with packages_needed():
        from trainer.launch.questions import main

        sys.exit(main(sys.argv[1:]))
