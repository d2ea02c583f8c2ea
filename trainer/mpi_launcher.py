"""`python -m trainer.mpi_launcher`: the entry point of an MPIJob's launcher pod."""

import sys

from trainer.installation import packages_needed

if __name__ == "__main__":
    with packages_needed():
        from trainer.launch.mpi import main

        sys.exit(main())
