"""`python -m trainer.mpi_launcher`: the entry point of an MPIJob's launcher pod."""

from trainer.launch.stop import ignore_further, listen_early

if __name__ == "__main__":
    listen_early()
    import sys

    from trainer.installation import packages_needed

    with packages_needed():
        from trainer.launch.mpi import main

        try:
            code = main()
        finally:
            ignore_further()
        sys.exit(code)
