"""Optional dependencies: where one is missing, the error has the line that installs it."""

from importlib import import_module


def require(what: str, extra: str, *names: str) -> None:
    """ModuleNotFoundError where one of the packages is not there.

    Args:
        what: what cannot be done without, as in "a report".
        extra: of this package, that brings it.
        names: of the packages to import.
    """
    for name in names:
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            line = f"{what} needs {error.name}: pip install 'attention-residuals[{extra}]'"
            raise ModuleNotFoundError(line, name=error.name) from error
