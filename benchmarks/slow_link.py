"""Each rank in a network namespace of its own, behind a link of a given speed (Linux, as root).

A bridge joins the namespaces, and a token bucket (`tc ... tbf`) holds back what each rank sends:
real sockets and a real queue. It adds no latency; that is netem's part, which kernels may lack.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MARK = "ATTNRES_IN_NAMESPACE"
TOOLS = ("unshare", "nsenter", "ip", "tc")
MTU = 9000  # bytes; large frames, so that headers take less of the speed
QUEUE_BYTES = 2**27  # enough that nothing is dropped


class NoLinkError(Exception):
    """This machine cannot slow a link."""


def enter_namespace() -> None:
    """Start this process again in a network of its own; NoLinkError where that cannot be."""
    if os.environ.get(MARK):
        return
    lacking = [tool for tool in TOOLS if shutil.which(tool) is None]
    if lacking or os.geteuid() != 0:
        raise NoLinkError(f"a slow link needs root and {', '.join(lacking or TOOLS)}")
    os.environ[MARK] = "1"
    sys.stdout.flush()
    os.execvp("unshare", ["unshare", "--net", sys.executable, *sys.orig_argv[1:]])


@contextmanager
def slow_links(n_ranks: int, bits_per_s: float) -> Iterator[list[list[str]]]:
    """What is put before each rank's command; its interface is `interface(rank)`."""
    holders = [subprocess.Popen(["unshare", "--net", "sleep", "infinity"]) for _ in range(n_ranks)]
    try:
        _do("ip link set lo up")
        _do("ip link add name switch type bridge")
        _do(f"ip link set switch mtu {MTU} up")
        prefixes = []
        for rank, holder in enumerate(holders):
            _wait_for(holder.pid)
            inside = f"nsenter --target {holder.pid} --net"
            _plug_in(rank, holder.pid, inside, bits_per_s)
            prefixes.append(inside.split())
        yield prefixes
    finally:
        for holder in holders:
            holder.kill()
            holder.wait()
        subprocess.run(["ip", "link", "delete", "switch"], check=False, capture_output=True)


def interface(rank: int) -> str:
    return f"rank{rank}"


def _plug_in(rank: int, pid: int, inside: str, bits_per_s: float) -> None:
    name, plug = interface(rank), f"plug{rank}"
    burst = max(64 * 1024, int(bits_per_s / 8 / 100))  # bytes; what passes in a tick of 10 ms
    _do(f"ip link add name {plug} mtu {MTU} type veth peer name {name} mtu {MTU}")
    _do(f"ip link set {plug} master switch up")
    _do(f"ip link set {name} netns {pid}")
    _do(f"{inside} ip link set lo up")
    _do(f"{inside} ip address add 10.77.0.{rank + 1}/24 dev {name}")
    _do(f"{inside} ip link set {name} up")
    bucket = f"tbf rate {int(bits_per_s)}bit burst {burst} limit {QUEUE_BYTES}"
    _do(f"{inside} tc qdisc add dev {name} root {bucket}")


def _wait_for(pid: int) -> None:
    """Until a process is in another network than this one."""
    own = os.readlink("/proc/self/ns/net")
    while Path(f"/proc/{pid}").exists() and os.readlink(f"/proc/{pid}/ns/net") == own:
        time.sleep(0.01)


def _do(command: str) -> None:
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoLinkError(f"{command}: {done.stderr.strip()}")
