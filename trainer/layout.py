"""The places of processes: axes, the mesh, possible layouts, and the share of each rank.

`python -m trainer.layout`: print the layouts of a run of strategy nd.
"""

import sys

from stratlab_spec.settings.wording import end_at_interrupt
from trainer.installation import packages_needed

if __name__ == "__main__":
    end_at_interrupt()
    with packages_needed():
        from stratlab_spec.memory.layout_report import main

        sys.exit(main(sys.argv[1:]))
