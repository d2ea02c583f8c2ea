"""`python -m trainer.replay`: sends to MLflow what it does not have yet of a run whose server was away."""

import sys

from trainer.installation import packages_needed

if __name__ == "__main__":
    with packages_needed():
        from trainer.launch.replay import main

        sys.exit(main(sys.argv[1:]))
