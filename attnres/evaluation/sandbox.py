"""Runs a program that a model wrote: a process of its own, with limits, in an empty folder.

It keeps a bad program from filling memory, disk or time, and from the network where the system lets
a process leave it. It is no wall against malice: give it a container or a machine of its own.
"""

import os
import secrets
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress

SECONDS = 10  # of one program
MEMORY_BYTES = 2 << 30
FILE_BYTES = 1 << 20  # of one file that it writes
N_FILES = 64  # open at once

# In the program's own process, before it begins: no limit is set between fork and exec of ours.
BEFORE = f"""
import ctypes, resource, sys
for name, most in (("AS", {MEMORY_BYTES}), ("FSIZE", {FILE_BYTES}), ("NOFILE", {N_FILES}),
                   ("CPU", {SECONDS}), ("CORE", 0)):
    resource.setrlimit(getattr(resource, "RLIMIT_" + name), (most, most))
ctypes.CDLL(None).unshare(0x10000000 | 0x40000000)  # user and network namespaces, if it may
del ctypes, resource
exec(compile(sys.stdin.read(), "program", "exec"), {{"__name__": "__main__"}})
"""


def passes(program: str, seconds: float = SECONDS) -> bool:
    """Whether it runs to its end, within the limits, without an error."""
    word = secrets.token_hex(16)  # so that leaving early is no success
    with tempfile.TemporaryDirectory(prefix="attnres-program-") as folder:
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", BEFORE],
            cwd=folder,
            env={"HOME": folder},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
            errors="replace",
        )
        try:
            said, _ = process.communicate(f"{program}\nprint({word!r})\n", timeout=seconds)
        except subprocess.TimeoutExpired:
            return False
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what it started, too
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
    return process.returncode == 0 and said.rstrip().endswith(word)
