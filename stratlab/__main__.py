"""`python -m stratlab` is `stratlab`."""

from stratlab.cli import main

if __name__ == "__main__":
    main()
