"""What a run is asked for: every setting, its rules and bounds, and what follows from them alone.

`python -m trainer.settings`: the settings that the environment resolves to, their schema, or DeepSpeed's of them.
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
