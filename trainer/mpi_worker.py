"""`python -m trainer.mpi_worker`: the first process of an MPIJob's worker pod."""

from trainer.launch.stop import listen_early

if __name__ == "__main__":
    listen_early()
    import sys

    from trainer.launch.mpi_worker import main

    sys.exit(main(sys.argv[1:]))
