"""Names that come from a file: none may lead out of the folder that the file is in."""

from pathlib import Path, PureWindowsPath


def check_plain(name: object, source: Path) -> str:
    """The name of a file beside `source`; ValueError for a path, or what is no name at all."""
    if not isinstance(name, str) or not name or name in (".", "..") or "\0" in name:
        raise ValueError(f"{source} names no file: {name!r}")
    if "/" in name or PureWindowsPath(name).name != name:
        raise ValueError(f"{source} names {name!r}, which may lead out of its folder")
    return name


def check_inside(path: Path, folder: Path) -> None:
    """ValueError where a path, by a link at any place of it, leads out of the folder."""
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{path} is a link that leads out of {folder}, to {path.resolve()}")
