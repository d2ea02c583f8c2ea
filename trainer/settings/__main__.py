"""`python -m trainer.settings`: the settings that the environment resolves to, their schema, or DeepSpeed's of them."""

import sys

from trainer.settings.installation import packages_needed
from trainer.settings.interruption import end_at_interrupt

if __name__ == "__main__":
    end_at_interrupt()
    with packages_needed():
        if sys.argv[1:2] == ["deepspeed"]:
            from trainer.api.command import main as print_deepspeed

            sys.exit(print_deepspeed(sys.argv[2:]))
        from trainer.settings.schema import main

        sys.exit(main(sys.argv[1:]))
