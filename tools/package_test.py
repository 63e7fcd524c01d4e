"""Whether the wheel and the sdist work for somebody who has nothing of the repository.

Both are built, the wheel from the sdist; the wheel is installed into an empty environment in a
temporary folder, first alone, then with extras, and what a newcomer types is typed. With --python
and --torch it tries other versions.
"""

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
IN_THE_WHEEL = (  # patterns of names
    r"attnres/py\.typed$",
    r"attnres/analysis/report\.html$",
    r"attnres/train/texts/corpus\.jsonl\.xz$",
    r"attnres/train/texts/LICENSES\.md$",
    r"attnres/ops/cpu\.cpp$",
    r"attnres/ops/cpu-.*\.so$",
)
USE = """
import torch, attnres
from attnres.ops import backends
query, key_weight = torch.zeros(8), torch.ones(8)
a, b = torch.ones(1, 8), 3 * torch.ones(1, 8)
assert torch.allclose(attnres.depth_attention(query, [a, b], key_weight), 2 * a)
state = attnres.AttnRes(8, attnres.BlockLayout.of(4, n_blocks=2)).start(a)
cpu = next(each for each in backends() if each.name == "cpu")
assert cpu.runs, cpu
print("torch", torch.__version__, attnres.__file__)
"""
MISSING = {  # what fails without an extra, and the extra that its line names
    "import attnres.models": "hf",
    "import attnres.distributed as d; d.Pipeline": "hf",
    "from attnres.analysis import report; report.render([], 'none')": "report",
}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--python", default=sys.executable, help="of the environment")
    arguments.add_argument("--torch", default="torch", help="what pip installs, as torch==2.13.0")
    arguments.add_argument("--folder", type=Path, help="to work in and to keep; else a new one")
    chosen = arguments.parse_args()
    with tempfile.TemporaryDirectory() as name:
        place = (chosen.folder or Path(name)).resolve()
        wheel = build(place / "dist")
        Trial(place, wheel, chosen.python).run(chosen.torch)
    print("the package works")


def build(folder: Path) -> Path:
    """The wheel of the sdist, with the kernel for this processor in it."""
    say("build the sdist, and the wheel of it")
    folder.mkdir(parents=True, exist_ok=True)
    call([sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)], cwd=folder.parent)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    names = zipfile.ZipFile(wheel).namelist()
    lacking = [wanted for wanted in IN_THE_WHEEL if not any(map(re.compile(wanted).search, names))]
    assert not lacking, f"the wheel lacks {lacking}"
    assert not [each for each in names if re.search(r"(^|/)(tests|experiments|docs)/", each)]
    with tarfile.open(sdist) as packed:
        assert any(each.endswith("attnres/ops/cpu_rows.h") for each in packed.getnames())
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, {sdist.name}")
    return wheel


class Trial:
    """An empty environment and what is typed in it."""

    def __init__(self, place: Path, wheel: Path, python: str):
        self.place, self.wheel = place, wheel
        self.bin = place / "venv" / "bin"
        kept = ("PATH", "HOME", "LANG", "TMPDIR", "PIP_INDEX_URL", "PIP_CONFIG_FILE")
        self.environment = {name: os.environ[name] for name in kept if name in os.environ}
        self.environment |= {"ATTNRES_CACHE": str(place / "cache"), "OMP_NUM_THREADS": "1"}
        call([python, "-m", "venv", str(place / "venv")], cwd=place)

    def run(self, torch: str) -> None:
        say("torch and the wheel alone")
        self.pip(torch)
        self.pip(str(self.wheel))
        print(self.python(USE).strip())
        assert not list((self.place / "cache").glob("*.so")), "a kernel was built anew"
        for code, extra in MISSING.items():
            self.fails([self.bin / "python", "-c", code], extra)
        self.fails([self.bin / "attnres", "layout", "--layers", "4", "--n-blocks", "4"], "train")
        say("with the extras train and report")
        self.pip(f"{self.wheel}[train,report]")
        self.attnres("--help")
        self.attnres("layout", "--layers", "93", "--layers-per-block", "12")
        say("a demo of two steps, on the text that ships")
        self.attnres("demo", "--n-steps", "2", "--folder", "runs")
        assert (self.place / "runs" / "report.html").stat().st_size > 10_000
        self.attnres("generate", "runs/full", "Call me Ishmael.", "--n-tokens", "4")

    def pip(self, *wanted: str) -> None:
        """Install, at the torch that is there."""
        frozen = call([self.bin / "pip", "freeze"], cwd=self.place, env=self.environment)
        pins = self.place / "pins.txt"
        pins.write_text("".join(f"{x}\n" for x in frozen.splitlines() if x.startswith("torch==")))
        command = [self.bin / "pip", "install", "--quiet", "--constraint", pins, *wanted]
        call(command, cwd=self.place, env=self.environment)

    def python(self, code: str) -> str:
        return call([self.bin / "python", "-c", code], cwd=self.place, env=self.environment)

    def attnres(self, *arguments: str) -> str:
        return call([self.bin / "attnres", *arguments], cwd=self.place, env=self.environment)

    def fails(self, command: list, extra: str) -> None:
        """It must end with one line that says how to install the extra."""
        done = subprocess.run(
            command, cwd=self.place, env=self.environment, capture_output=True, text=True
        )
        last = done.stderr.strip().splitlines()[-1:]
        assert done.returncode, f"{command} needs no extra"
        assert f"pip install 'attention-residuals[{extra}" in "".join(last), (command, last)
        print(*last)


def call(command: list, **settings) -> str:
    """Standard output; what goes wrong ends the trial with all that was said."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **settings)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def say(words: str) -> None:
    print(f"-- {words}", flush=True)


if __name__ == "__main__":
    main()
