"""Huge pages, which glibc's allocator asks Linux for when a process is started so.

Training on a CPU touches hundreds of megabytes a step, and each 4 KB page that its caches of
addresses lose costs a walk through page tables, in a virtual machine through two: docs/faq.md has
what it came to. Where Linux gives huge pages unasked, or none, there is nothing to ask for.
"""

import os
import sys
from pathlib import Path

VARIABLE = "GLIBC_TUNABLES"
HUGE_PAGES = "glibc.malloc.hugetlb=1"  # madvise; glibc manual, "Memory Allocation Tunables"
SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def ask_for_them() -> bool:
    """In processes that this one starts from now on; False where the user or Linux has decided."""
    if VARIABLE in os.environ or not _are_given_on_request():
        return False
    os.environ[VARIABLE] = HUGE_PAGES
    return True


def restart_with_them() -> None:
    """Start this program anew under them, where they can be had and it is not; else do nothing."""
    if sys.executable and ask_for_them():
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _are_given_on_request() -> bool:
    try:
        return "[madvise]" in SETTING.read_text()
    except OSError:
        return False
