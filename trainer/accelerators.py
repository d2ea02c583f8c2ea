"""`python -m trainer.accelerators`: whether the accelerators that a run asks for are here."""

import sys

from trainer.installation import packages_needed

if __name__ == "__main__":
    with packages_needed():
        from trainer.launch.visibility import main

        sys.exit(main(sys.argv[1:]))
