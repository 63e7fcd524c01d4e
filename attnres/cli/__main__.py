"""`python -m attnres.cli` is the command `attnres`."""

from attnres.cli import main

if __name__ == "__main__":
    main()
