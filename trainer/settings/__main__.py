"""`python -m trainer.settings`: the settings that the environment resolves to, or their schema."""

import sys

from trainer.settings.installation import packages_needed

if __name__ == "__main__":
    with packages_needed():
        from trainer.settings.schema import main

        sys.exit(main(sys.argv[1:]))
