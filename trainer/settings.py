"""The settings of a run: every setting, its rules and bounds, and the values that follow only from them.

`python -m trainer.settings`: print the settings that the environment resolves to, their schema, or DeepSpeed's part.
"""

import sys

from stratlab_spec.settings.wording import end_at_interrupt
from trainer.installation import packages_needed

if __name__ == "__main__":
    end_at_interrupt()
    with packages_needed():
        if sys.argv[1:2] == ["deepspeed"]:
            from trainer.api.experiment import main as print_deepspeed

            sys.exit(print_deepspeed(sys.argv[2:]))
        from stratlab_spec.settings.files import main

        sys.exit(main(sys.argv[1:]))
