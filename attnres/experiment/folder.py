"""Where a study is: a folder with a runs.py, in which `study()` returns a `Study`."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import attnres
from attnres.experiment.study import Study, quick
from attnres.experiment.sweep import Sweep, quicker

HERE = Path("experiments")
OF_THE_REPOSITORY = Path(attnres.__file__).parent.parent / "experiments"


def find_folder(name: str) -> Path:
    """The folder of this path, or the one of this name below experiments/."""
    for folder in (Path(name), HERE / name, OF_THE_REPOSITORY / name):
        if (folder / "runs.py").is_file():
            return folder.resolve()
    known = ", ".join(_names()) or "none here: run it in the repository, or give a folder"
    raise ValueError(f"no study {name!r}: no such folder with a runs.py; there are: {known}")


def load_study(
    folder: Path, is_quick: bool = False, n_seeds: int | None = None, point: str = ""
) -> Study:
    """What `study()` of runs.py returns; a method that runs.py registers is then known.

    `n_seeds` seeds, from 0 on, stand in place of the study's own. Of a `Sweep` it is the study at
    one point.
    """
    loaded = load_any(folder)
    study = loaded.studies[point] if isinstance(loaded, Sweep) else loaded
    if is_quick:
        study = quick(study) if not point else quicker(study)
    return study if n_seeds is None else replace(study, seeds=tuple(range(n_seeds)))


def points(folder: Path) -> list[str]:
    """Those of a sweep; of a study one without a name."""
    loaded = load_any(folder)
    return [*loaded.studies] if isinstance(loaded, Sweep) else [""]


def load_any(folder: Path) -> Study | Sweep:
    file = folder / "runs.py"
    try:
        study = _load(file).study()
    except (ImportError, AttributeError, SyntaxError, TypeError) as error:
        raise ValueError(f"study() of {file}: {error}") from error
    if not isinstance(study, Study | Sweep):
        raise ValueError(f"study() of {file} returns {study!r}, neither Study nor Sweep")
    return study


def _load(file: Path) -> ModuleType:
    name = f"attnres_study_{file.parent.name}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None, file
    assert spec.loader is not None, file
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def _names() -> list[str]:
    files = [*HERE.glob("*/runs.py"), *OF_THE_REPOSITORY.glob("*/runs.py")]
    texts = {file.parent.name: file.read_text(encoding="utf-8") for file in files}
    return sorted(name for name, text in texts.items() if "def study(" in text)
