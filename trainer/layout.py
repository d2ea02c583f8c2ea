"""Which process is where: the axes, the mesh, which layouts are possible, and what each rank would hold.

`python -m trainer.layout`: what a run of strategy nd would look like.
"""

import sys

from stratlab_spec.settings.wording import end_at_interrupt
from trainer.installation import packages_needed

if __name__ == "__main__":
    end_at_interrupt()
    with packages_needed():
        from stratlab_spec.memory.layout_report import main

        sys.exit(main(sys.argv[1:]))
