"""A study of seconds on a small text, as a folder with a runs.py, and rows without runs."""

from pathlib import Path

from attnres.experiment.results import Row
from attnres.experiment.study import Study, Trial
from attnres.train.recipe import Recipe

RUNS = '''"""A study for tests."""

from pathlib import Path

from tiny_runs import recipe

from attnres.experiment.study import Study


def study() -> Study:
    return Study(
        name="tiny",
        base=recipe(Path({text!r}), "standard", n_steps={n_steps}),
        arms={arms!r},
        learning_rates=(1e-3, 1e-2),
        seeds=(0, 1),
        n_scored=4,
    )
'''
ARMS = {"standard": "standard", "block": "attn_res:n_blocks=2"}


def write_study(folder: Path, text: Path, arms: dict[str, str] = ARMS, n_steps: int = 10) -> Path:
    folder.mkdir()
    (folder / "runs.py").write_text(RUNS.format(text=str(text), arms=arms, n_steps=n_steps))
    return folder


def make_study(**changes) -> Study:
    settings = {
        "name": "made",
        "base": Recipe(name="base"),
        "arms": {"standard": "standard", "full": "attn_res", "block": "attn_res:n_blocks=2"},
        "learning_rates": (1.0, 2.0),
        "seeds": (0, 1, 2),
    }
    return Study(**(settings | changes))


def make_row(study: Study, trial: Trial, loss: float, **changes) -> Row:
    """A row whose two losses are `loss` and `loss` + 1."""
    settings = {
        "residual": str(study.arms[trial.arm]),
        "tuning_loss": loss,
        "report_loss": loss + 1,
        "n_params": 100,
        "n_residual_params": 10,
        "tokens_per_s": 50.0,
        "fingerprint": study.fingerprint,
        "tokens": "abc",
        "torch_version": "2.13.0",
        "commit": "0123",
    }
    return Row(**trial._asdict(), **(settings | changes))


def tuned(study: Study, losses: dict[str, tuple[float, ...]]) -> list[Row]:
    """Rows of the tuning runs: by arm, the loss at each rate."""
    return [
        make_row(study, Trial("tuning", arm, lr, study.tuning_seed), loss)
        for arm, pair in losses.items()
        for lr, loss in zip(study.learning_rates, pair, strict=True)
    ]


def finals(study: Study, arm: str, lr: float, losses: dict[int, float]) -> list[Row]:
    """Rows of the final runs, by seed; the loss is the one that is reported."""
    return [
        make_row(study, Trial("final", arm, lr, seed), 9.0, report_loss=loss)
        for seed, loss in losses.items()
    ]
