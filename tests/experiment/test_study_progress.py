"""What a log has of a study."""

import io

from rich.console import Console
from tiny_study import make_row, make_study

from attnres.experiment.progress import StudyProgress
from attnres.experiment.study import Trial


def test_without_a_terminal_a_line_says_how_long_it_takes_yet():
    clock_s, log = [0.0], io.StringIO()
    study = make_study()
    row = make_row(study, Trial("final", "full", 1e-3, 0), 3.0)
    console = Console(file=log, get_time=lambda: clock_s[0], width=40)
    with StudyProgress("study", 100, console) as progress:
        progress.show(n_done=2, n_left=4, steps=[20])
        for n_done in (3, 4):
            clock_s[0] += 300.0
            progress.show(n_done, 6 - n_done, steps=[20])
            progress.finished(row, n_done, 6 - n_done)
        progress.show(n_done=6, n_left=0, steps=[])
        progress.finished(row, 6, 0)
    ends = [line.rpartition("tokens/s")[2] for line in log.getvalue().splitlines()]
    assert ends == [", about 14 min left", ", about 9 min left", ""]  # 280 and 180 steps, 20 a min
