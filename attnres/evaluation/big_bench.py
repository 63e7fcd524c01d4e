"""Multiple-choice tasks of BIG-bench, from the unpacked source of the package bigbench.

    pip download --no-deps --no-binary :all: bigbench==1.0.0
    tar xzf bigbench-1.0.0.tar.gz --wildcards '*/task.json'

A question is put as the task's own file says; scored are those with a single best choice.
"""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from attnres.evaluation import own_task
from attnres.evaluation.task import Task

N_QUESTIONS = 1000  # of a task, at most, evenly spread
N_EXAMPLES = 8  # further ones to draw examples from
VERSION = "1"
DEFAULT = (  # in English, and each takes more than one step
    "date_understanding",
    "dyck_languages",
    "epistemic_reasoning",
    "formal_fallacies_syllogisms_negation",
    "hyperbaton",
    "navigate",
    "reasoning_about_colored_objects",
    "social_iqa",
    "sports_understanding",
    "strategyqa",
    "temporal_sequences",
    "winowhy",
)


def tasks(folder: Path | None, names: Sequence[str] = ()) -> list[Task]:
    """Of these names, as the folders of the package have them; ValueError where one is not there.

    Args:
        folder: in or below which the tasks are.
        names: `DEFAULT` where there is none.
    """
    if folder is None:
        raise ValueError(
            "give the unpacked source of the package bigbench by --big-bench FOLDER; it comes by "
            "pip download --no-deps --no-binary :all: bigbench==1.0.0"
        )
    files = {file.parent.name: file for file in folder.glob("**/task.json")}
    for name in names or DEFAULT:
        if name not in files:
            raise ValueError(f"there is no task {name!r} of BIG-bench in {folder}")
    return [
        own_task.choice(f"bigbench_{name}", partial(_splits, files[name]), VERSION)
        for name in names or DEFAULT
    ]


def _splits(file: Path) -> own_task.Splits:
    rows = read_task(file)
    kept = {i * len(rows) // N_QUESTIONS for i in range(N_QUESTIONS)}
    asked = [row for place, row in enumerate(rows) if place in kept]
    others = [row for place, row in enumerate(rows) if place not in kept][:N_EXAMPLES]
    return {"test": asked, "train": others or asked[:N_EXAMPLES]}


def read_task(file: Path) -> list[own_task.Row]:
    """The questions of a task.json; ValueError where they are no choices."""
    task = json.loads(file.read_text(encoding="utf-8"))
    rows = [_row(task, example) for example in task.get("examples", ()) if _best(example)]
    if not rows:
        raise ValueError(f"{file} has no multiple-choice questions")
    return rows


def _best(example: dict[str, Any]) -> list[str]:
    """The one best choice; none where there are several."""
    scores = example.get("target_scores", {})
    best = [choice for choice, score in scores.items() if score == max(scores.values())]
    return best if len(best) == 1 else []


def _row(task: dict[str, Any], example: dict[str, Any]) -> own_task.Row:
    """As the JSON tasks of BIG-bench are put: prefixes, and the choices where they are shown."""
    choices = list(example["target_scores"])
    shown = ""
    if str(task.get("append_choices_to_input", True)).lower() != "false":
        prefix = task.get("choice_prefix", "\n  choice: ")
        shown = "".join(f"{prefix}{choice}" for choice in choices)
    text = (
        f"{task.get('task_prefix', '')}{task.get('example_input_prefix', chr(10) + 'Q: ')}"
        f"{example['input']}{shown}{task.get('example_output_prefix', chr(10) + 'A: ')}"
    )
    (best,) = _best(example)
    return {"text": text.rstrip(" "), "choices": choices, "gold": choices.index(best)}
