"""Build the CPU kernel with the package where there is a compiler; without one, say so and go on.

Everything else of the build stands in pyproject.toml.
"""

import os
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

OPS = Path("attnres") / "ops"
ALL_VARIANTS = bool(os.environ.get("ATTNRES_BUILD_ALL"))  # for a wheel that is installed elsewhere


def _cpu_build():
    """The module by its file: importing the package would need torch."""
    return SimpleNamespace(**runpy.run_path(str(OPS / "cpu_build.py")))


class BuildWithKernel(build_py):
    def run(self):
        super().run()
        place = OPS if self.editable_mode else Path(self.build_lib) / OPS
        cpu_build = _cpu_build()
        wanted = list(cpu_build.VARIANTS) if ALL_VARIANTS else cpu_build.variants()[:1]
        for variant in wanted:
            try:
                cpu_build.build(variant, place)
            except (OSError, RuntimeError) as error:
                print(f"the CPU kernel was not built ({variant}): {error}", file=sys.stderr)


class PlatformWheel(bdist_wheel):
    """For any Python 3 of one platform: the kernel is no Python extension."""

    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


setup(cmdclass={"build_py": BuildWithKernel, "bdist_wheel": PlatformWheel})
