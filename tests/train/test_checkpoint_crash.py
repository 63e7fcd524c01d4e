"""What is on the disk when a save ends early: a failing call, a full disk, kill -9."""

import errno
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from attnres.train import checkpoint
from attnres.train.optim import OptimConfig, build_optimizers


def build():
    model = nn.Linear(3, 2)
    return model, build_optimizers(model, OptimConfig(optimizer="muon"))


def save(folder, step, run):
    model, optimizers = run
    return checkpoint.save(folder, step, model, optimizers, {})


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_everything_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    events, fsync, rename = [], os.fsync, os.rename

    def note_fsync(descriptor):
        events.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def note_rename(source, target):
        events.append("rename")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "rename", note_rename)
    path = save(tmp_path, 1, build())
    at = events.index("rename")
    assert set(events[:at]) == {file.stat().st_ino for file in (path, *path.iterdir())}
    assert events[at + 1 :] == [tmp_path.stat().st_ino]


class CrashError(BaseException):
    """The process ends here: nothing catches it, and no later call gets through."""


class Fault:
    """Lets `n_calls` of the calls that change the disk through; the next ones, or one, raise."""

    def __init__(self, patch, n_calls, error, only_once):
        self.left, self.error, self.only_once, self.fired = n_calls, error, only_once, False
        for name in ("fsync", "mkdir", "rename", "unlink", "rmdir"):
            patch.setattr(os, name, self.wrap(getattr(os, name)))
        patch.setattr(checkpoint, "write_tensors", self.wrap(checkpoint.write_tensors))

    def wrap(self, function):
        def call(*args, **kwargs):
            self.left -= 1
            if self.left < 0 and not (self.only_once and self.fired):
                self.fired = True
                raise self.error
            return function(*args, **kwargs)

        return call


def faults(tmp_path, monkeypatch, run, error, *, only_once=False, earlier=(1, 2), step=3):
    """Saves with the first, the second, ... call failing, until one succeeds; (folder, raised)."""
    for n_calls in range(200):
        folder, raised = tmp_path / str(n_calls), None
        for old in earlier:
            save(folder, old, run)
        with monkeypatch.context() as patch:
            fault = Fault(patch, n_calls, error, only_once)
            try:
                save(folder, step, run)
            except (CrashError, OSError) as caught:
                raised = caught
        if not fault.fired:
            assert n_calls >= 12
            return
        yield folder, raised


@pytest.mark.parametrize("step", [3, 2], ids=["new", "replaced"])
@pytest.mark.parametrize("earlier", [[2], [1, 2]], ids=["one", "two"])
@pytest.mark.filterwarnings("error:damaged checkpoint")
def test_a_crash_at_any_call_leaves_a_whole_checkpoint(tmp_path, monkeypatch, step, earlier):
    run, found = build(), set()
    for folder, raised in faults(
        tmp_path, monkeypatch, run, CrashError(), earlier=earlier, step=step
    ):
        assert raised
        newest = checkpoint.newest(folder)
        assert newest is not None
        assert checkpoint.load(newest, run[0], run[1])["step"] in (2, step)
        found.add(newest.name)
        assert not any(checkpoint.damage(path) for path in folder.glob("step-*"))
        save(folder, 4, run)  # heals what the crash left
        assert len(names(folder)) == 2
        assert all(re.fullmatch(r"step-\d{8}", name) for name in names(folder))
    replaced = {"step-00000002.old"} if step == 2 else set()
    assert found == {"step-00000002", f"step-{step:08d}"} | replaced


@pytest.mark.parametrize("step", [3, 2], ids=["new", "replaced"])
def test_a_failing_call_is_one_error_and_leaves_no_trace(tmp_path, monkeypatch, step):
    run = build()
    full = OSError(errno.ENOSPC, "No space left on device")
    n_cleaned = 0
    for folder, raised in faults(tmp_path, monkeypatch, run, full, only_once=True, step=step):
        assert isinstance(raised, OSError)
        assert raised.errno == errno.ENOSPC
        found = checkpoint.newest(folder)
        if f"cannot save the checkpoint: {full.strerror}" in str(raised):
            n_cleaned += 1
            assert f"{folder}/step-{step:08d}" in str(raised)
            assert names(folder)[:2] == ["step-00000001", "step-00000002"]
        assert found in (folder / "step-00000002", folder / f"step-{step:08d}")
        save(folder, step, run)
        assert len(names(folder)) == 2
    assert n_cleaned > 10


def test_safetensors_error_becomes_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="No such file or directory"):
        checkpoint.write_tensors(tmp_path / "absent" / "file", {"a": torch.zeros(1)}, {})


LIMITED = """
import resource, signal, sys
from pathlib import Path
from torch import nn
from attnres.train import checkpoint

folder, model = Path(sys.argv[1]), nn.Linear(300, 300)
checkpoint.save(folder, 1, nn.Linear(2, 2), [], {})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    checkpoint.save(folder, 2, model, [], {})
except OSError as error:
    print(error)
"""


def start(script, folder):
    environ = {**os.environ, "PYTHONPATH": str(Path(checkpoint.__file__).parents[2])}
    environ["OMP_NUM_THREADS"] = "1"
    command = [sys.executable, "-c", script, str(folder)]
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_file_that_cannot_grow(tmp_path):
    output = start(LIMITED, tmp_path).communicate()[0]
    path = tmp_path / "step-00000002"
    cause = f"cannot save the checkpoint: {os.strerror(errno.EFBIG)}"
    assert output == f"[Errno {errno.EFBIG}] {cause}: '{path}'\n"
    assert names(tmp_path) == ["step-00000001"]
    assert checkpoint.newest(tmp_path) == tmp_path / "step-00000001"


ENDLESS = """
import itertools, sys
from pathlib import Path
import torch
from torch import nn
from attnres.train import checkpoint
from attnres.train.optim import OptimConfig, build_optimizers

model = nn.Linear(300, 300)
optimizers = build_optimizers(model, OptimConfig())
for step in itertools.count(1):
    nn.init.constant_(model.weight, step)
    checkpoint.save(Path(sys.argv[1]), step, model, optimizers, {"twice": 2 * step})
    print(step, flush=True)
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("error:damaged checkpoint")
def test_killed_at_any_moment(tmp_path):
    for round_, delay_s in enumerate((0.0, 0.001, 0.003, 0.007, 0.013)):
        folder = tmp_path / str(round_)
        process = start(ENDLESS, folder)
        assert process.stdout
        printed = [process.stdout.readline() for _ in range(3 + round_)]
        time.sleep(delay_s)
        process.send_signal(signal.SIGKILL)
        printed += process.communicate()[0].split()
        last = int(printed[-1])
        assert process.returncode == -signal.SIGKILL
        path = checkpoint.newest(folder)
        assert path is not None
        model = nn.Linear(300, 300)
        state = checkpoint.load(path, model, build_optimizers(model, OptimConfig()))
        assert state["step"] in (last, last + 1)
        assert state["twice"] == 2 * state["step"]
        assert torch.all(model.weight == state["step"])
