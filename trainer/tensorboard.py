"""`python -m trainer.tensorboard`: TensorBoard's event files from metrics.jsonl."""

import sys

from trainer.installation import packages_needed

if __name__ == "__main__":
    with packages_needed():
        from trainer.launch.tensorboard import main

        sys.exit(main(sys.argv[1:]))
