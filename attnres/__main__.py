"""`python -m attnres` is the command `attnres`, for launchers that start a module."""

from attnres.cli import program

if __name__ == "__main__":
    program()
