"""The command `attnres`: one subcommand a job, each with --help.

Bad input ends with one line on standard error and exit status 2.
"""

import os
import signal
import sys
from collections.abc import Callable
from importlib import metadata

from attnres.arguments import fail, show_warnings_in_a_line
from attnres.cli.analyses import ablate, dynamics
from attnres.cli.conformance import conform
from attnres.cli.costs import cost
from attnres.cli.evaluations import evaluate
from attnres.cli.experiments import experiment
from attnres.cli.explorer import explore
from attnres.cli.fits import fit
from attnres.cli.layouts import layout
from attnres.cli.models import convert, generate
from attnres.cli.pipelines import pipeline_plan
from attnres.cli.ranks import fail_if_lost, fail_once, is_one_of_many
from attnres.cli.reports import report
from attnres.cli.serving import serve
from attnres.cli.texts import corpus
from attnres.cli.training import demo, train
from attnres.huge_pages import restart_with_them
from attnres.quiet import silence_imports

COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "demo": demo,
    "train": train,
    "report": report,
    "experiment": experiment,
    "fit": fit,
    "dynamics": dynamics,
    "ablate": ablate,
    "explore": explore,
    "corpus": corpus,
    "convert": convert,
    "generate": generate,
    "serve": serve,
    "evaluate": evaluate,
    "layout": layout,
    "cost": cost,
    "pipeline-plan": pipeline_plan,
    "conform": conform,
}
OVER_RANKS = ("train",)  # commands that several processes share
TRAINING = ("demo", "train")  # in this process, often on a CPU
# Commands that go on where they were interrupted
RESUMED = ("demo", "train", "experiment", "corpus", "evaluate")


def program() -> None:
    """The command as a process of its own."""
    if sys.argv[1:2] and sys.argv[1] in TRAINING:
        restart_with_them()
    main(sys.argv[1:])


def main(arguments: list[str]) -> None:
    """The command within a process, without its name."""
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help"):
        print(_overview())
        return
    if name == "--version":
        print(f"attnres {_version()}")
        return
    if name not in COMMANDS:
        fail(f"no command {name!r}; there are: {', '.join(COMMANDS)}")
    if is_one_of_many() and name not in OVER_RANKS:
        fail_once(f"attnres {name} is a command of one process; over several there is: train")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing here is fetched from a hub
    show_warnings_in_a_line()
    silence_imports()
    try:
        COMMANDS[name](arguments[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read the output has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(128 + signal.SIGPIPE) from None
    except (ValueError, OSError, FloatingPointError) as error:
        fail_once(str(error))
    except OverflowError as error:
        fail_once(f"a number is too large: {error}")
    except MemoryError:
        fail_once("there is not as much memory as this takes")
    except RuntimeError as error:
        fail_if_lost(error)
        if "can't allocate memory" in str(error):  # what torch makes of a MemoryError
            fail_once("there is not as much memory as this takes")
        raise
    except ModuleNotFoundError as error:
        says_how = "pip install" in str(error)
        fail(
            str(error) if says_how else f"{error}: pip install 'attention-residuals[train,report]'"
        )
    except KeyboardInterrupt:
        resumes = "; the same command resumes" if name in RESUMED else ""
        print(f"\nattnres: interrupted{resumes}", file=sys.stderr)
        raise SystemExit(130) from None


def _overview() -> str:
    lines = ["usage: attnres COMMAND [--help]", ""]
    for name, command in COMMANDS.items():
        lines.append(f"  {name:15}{(command.__doc__ or '').splitlines()[0]}")
    return "\n".join(lines)


def _version() -> str:
    try:
        return metadata.version("attention-residuals")
    except metadata.PackageNotFoundError:
        return "of a source tree that is not installed"
