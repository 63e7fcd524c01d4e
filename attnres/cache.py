"""Where files live that can be made again: compiled kernels, tokens."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """$ATTNRES_CACHE, else $XDG_CACHE_HOME/attnres, else ~/.cache/attnres."""
    if folder := os.environ.get("ATTNRES_CACHE"):
        return Path(folder).expanduser()
    if folder := os.environ.get("XDG_CACHE_HOME"):
        return Path(folder) / "attnres"
    return Path.home() / ".cache" / "attnres"
