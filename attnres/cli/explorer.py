"""The command that writes the page on which depth weights are looked at token by token."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from attnres.arguments import parse


def explore(arguments: list[str]) -> None:
    """Write explorer.html, a page to look at what every token reads over depth.

    attnres explore runs/demo                       every finished run of an experiment
    attnres explore runs/demo/block runs/demo/full  some runs
    attnres explore converted --text speech.txt     a model that attnres convert wrote or you saved

    The page shows which depths a reader looks at for a token, the text coloured by the weight of
    any source, the mixing matrices of all runs side by side and, beside each weight, what the loss
    gains without that source. It is one file that needs no network; open it in any browser. That
    loss is what `attnres ablate FOLDER` left in the folder; --ablate measures it on the text shown,
    a pass over the text for each source of each reader. Methods without depth weights are shown by
    their mixing matrix alone.
    """
    import tyro

    @dataclass(frozen=True)
    class Explore:
        folders: Annotated[
            tuple[Path, ...],
            tyro.conf.Positional,
            tyro.conf.arg(metavar="FOLDER...", help_behavior_hint="(required)"),
        ]
        """folder of an experiment, of a finished run or of a saved model; one or several"""
        output: Annotated[Path | None, tyro.conf.arg(aliases=["-o"], metavar="FILE")] = None
        """page to write; explorer.html in the first folder, if not given"""
        text: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
        """text to show: .txt, .md, .jsonl, .json, .parquet; a run's held-out text, if not given"""
        tokens: int = 2000
        """the most tokens of a text"""
        ablate: bool = False
        """measure the loss without each source and layer on the text shown"""

    chosen = parse(Explore, "explore", explore, arguments)
    if not chosen.folders:
        raise ValueError("give a folder: attnres explore FOLDER")
    if chosen.tokens < 1:
        raise ValueError(f"--tokens is at least 1, got {chosen.tokens}")
    from transformers.utils import logging

    from attnres.analysis.explorer.explore import write_explorer

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    page = chosen.output or chosen.folders[0] / "explorer.html"
    write_explorer(
        chosen.folders,
        page,
        n_tokens=chosen.tokens,
        text=chosen.text,
        measure_effects=chosen.ablate,
    )
    print(f"page: {page}")
