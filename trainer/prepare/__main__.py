"""Run `python -m trainer.prepare`: put a data set, a model or a token cache onto the results volume, once."""

import sys

from trainer.installation import packages_needed

if __name__ == "__main__":
    with packages_needed():
        from trainer.prepare.preparation import main

        sys.exit(main(sys.argv[1:]))
