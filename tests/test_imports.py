"""What an import takes, which way imports point, and how large a file may be."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import attnres

PACKAGE = Path(attnres.__file__).parent
ROOT = PACKAGE.parent
ORDER = [
    "cache",
    "extras",
    "fields",
    "huge_pages",
    "inside",
    "json_file",
    "quiet",
    "ops",
    "layout",
    "residual",
    "cost",
    "models",
    "distributed",
    "train",
    "inference",
    "analysis",
    "conformance",
    "experiment",
    "evaluation",
    "arguments",
    "cli",
]
OPTIONAL = [
    "transformers",
    "tokenizers",
    "datasets",
    "rich",
    "tyro",
    "matplotlib",
    "jinja2",
    "safetensors",
    "tensorboard",
    "triton",
]
# torch itself imports jinja2 where it is there, so only a process without it says something of it
TAKEN_BY_TORCH = ["jinja2"]
BLOCK = f"""
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {OPTIONAL}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
"""


def run(code: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_light_import_takes_no_optional_dependency():
    done = run("import sys, attnres; print(*{name.partition('.')[0] for name in sys.modules})")
    assert done.returncode == 0, done.stderr
    taken = set(done.stdout.split())
    assert not taken & set(OPTIONAL) - set(TAKEN_BY_TORCH)
    assert "torch" in taken


def test_a_light_import_needs_no_optional_dependency():
    use = "print(attnres.depth_attention(torch.zeros(4), [torch.ones(1, 4)], torch.ones(4)).shape)"
    done = run(f"{BLOCK}\nimport torch, attnres\n{use}")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "torch.Size([1, 4])\n"


def test_models_without_transformers_fail_with_the_install_line():
    done = run(f"{BLOCK}\nimport attnres.models")
    assert done.returncode != 0
    last_line = done.stderr.strip().splitlines()[-1]
    assert last_line == (
        "ModuleNotFoundError: attnres.models needs transformers: "
        "pip install 'attention-residuals[hf]'"
    )


@pytest.mark.parametrize(
    ("code", "extra"),
    [
        ("from attnres.train.data import DataConfig, load_data; load_data(DataConfig())", "train"),
        ("from attnres.analysis.heat_maps import save_mixing; save_mixing({}, 'x.svg')", "report"),
        ("from attnres.cli import main; main(['layout', '--layers', '4'])", "train,report"),
    ],
)
def test_what_needs_an_extra_fails_with_its_install_line(code, extra):
    done = run(f"{BLOCK}\n{code}")
    assert done.returncode != 0
    assert f"pip install 'attention-residuals[{extra}]'" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("version", ["5.23.0", "4.57.1", "6.0.0"])
def test_a_transformers_of_another_cache_is_refused(version):
    done = run(
        f"import transformers; transformers.__version__ = {version!r}; import attnres.models"
    )
    assert f"needs transformers>=5.24,<6, found {version}" in done.stderr.splitlines()[-1]


def imported_parts(tree: ast.AST) -> set[str]:
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    pieces = [name.split(".") for name in names]
    return {piece[1] for piece in pieces if piece[0] == "attnres" and len(piece) > 1}


def test_the_parts_imported_are_found():
    code = "import attnres.cli\ndef f():\n    from attnres.train import x\nfrom attnres import ops"
    assert imported_parts(ast.parse(code)) == {"cli", "train", "ops"}


@pytest.mark.parametrize("part", ORDER)
def test_imports_point_one_way(part):
    later = set(ORDER[ORDER.index(part) + 1 :])
    paths = [*PACKAGE.glob(f"{part}.py"), *PACKAGE.glob(f"{part}/**/*.py")]
    for path in paths:
        imported = imported_parts(ast.parse(path.read_text()))
        assert not imported & later, f"{path} imports {imported & later}"
        assert imported <= set(ORDER), (
            f"{path} imports {imported - set(ORDER)} of the whole package"
        )


def test_every_part_of_the_package_has_its_place():
    parts = {path.relative_to(PACKAGE).parts[0] for path in PACKAGE.rglob("*.py")}
    assert {part.removesuffix(".py") for part in parts} - {"__init__", "__main__"} <= set(ORDER)


def test_the_public_names_are_these_and_each_has_a_docstring():
    assert attnres.__all__ == [
        "AttnRes",
        "BlockLayout",
        "Residual",
        "Standard",
        "depth_attention",
        "depth_weights",
    ]
    for name in attnres.__all__:
        assert getattr(attnres, name).__doc__, name


def test_no_file_is_long_or_called_utils():
    paths = [*PACKAGE.rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    assert len(paths) > 20
    for path in paths:
        assert len(path.read_text().splitlines()) <= 400, path
        assert path.name != "utils.py", path
