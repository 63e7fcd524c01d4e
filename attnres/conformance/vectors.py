"""Questions and answers as files for other languages, and answers that come back as a file."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnres.conformance.answers import Answer
from attnres.conformance.budget import budgets, case_named, cases_of, exact
from attnres.conformance.calling import SIGNATURES
from attnres.conformance.cases import Case, KindName
from attnres.conformance.mistakes import MISTAKES
from attnres.conformance.report import Report, judge

FORMAT = 1
KINDS: tuple[KindName, ...] = ("op", "full", "block")
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
README = [
    "Questions and right answers of attention over depth (arXiv:2603.15031), made by attnres.",
    "KIND.safetensors holds float64 tensors: KIND/CASE/input/NAME, KIND/CASE/upstream and "
    "KIND/CASE/answer/NAME.",
    "Every input is exact in bfloat16 already, so the answers hold for all dtypes.",
    "op: query [D], sources [S, B, T, D], key_weight [D], eps; the answer is mix [B, T, D]: "
    "key_i = key_weight * source_i / sqrt(mean_D(source_i^2) + eps), "
    "alpha = softmax_i(query . key_i), mix = sum_i alpha_i source_i, in float32 or wider.",
    "full, block: embed [B, T, D], outputs of L sublayers [L, B, T, D], queries and key_weights "
    "[L + 1, D] (row d belongs to the read before sublayer d, row L to the output read), "
    "sublayers_per_block, eps; the answer is reads [L + 1, B, T, D].",
    "The sources of a read are the embedding, the sum of the outputs of each finished block, and "
    "the sum so far of the unfinished block where it has begun.",
    "gradient_of_NAME is the gradient of sum(answer * upstream). An input without such an answer "
    "needs none.",
    "allowed: what the largest difference may be, by dtype. check: exact allows none; finite asks "
    "of gradients only that they are finite.",
    "To have answers checked, write a safetensors file of KIND/CASE/answer/NAME in your dtype, "
    "with or without gradients: attnres conform --answers FILE.",
]


def export(folder: Path, kinds: Sequence[KindName] = KINDS) -> list[Path]:
    """Write the vectors of each kind and `conformance.json`; the same bytes each time.

    Answers come from this machine's torch, so that another may write other last bits.

    Raises:
        ModuleNotFoundError: without safetensors.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for kind in kinds:
        paths.append(folder / f"{kind}.safetensors")
        save_file(_tensors(kind), paths[-1], metadata={"format": str(FORMAT)})
    paths.append(folder / "conformance.json")
    text = json.dumps(_described(kinds), indent=1, ensure_ascii=False)
    paths[-1].write_text(text + "\n", encoding="utf-8")
    return paths


def judge_file(path: Path) -> list[Report]:
    """A report on each kind of which the file has answers.

    Raises:
        ValueError: no safetensors file, a name that is no answer of a case, no answer at all.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is no safetensors file: {error}") from error
    found: dict[KindName, dict[str, dict[str, Tensor]]] = {}
    for name, tensor in tensors.items():
        if (key := _answer_key(name)) is not None:
            kind, case, quantity = key
            found.setdefault(kind, {}).setdefault(case, {})[quantity] = tensor
    if not found:
        raise ValueError(f"{path} has no tensor named KIND/CASE/answer/NAME")
    return [_judge_cases(kind, answers) for kind, answers in found.items()]


def _judge_cases(kind: KindName, found: dict[str, dict[str, Tensor]]) -> Report:
    dtypes = {x.dtype for values in found.values() for x in values.values()}
    if len(dtypes) > 1:
        raise ValueError(f"answers of {kind} have several dtypes: {sorted(map(str, dtypes))}")
    (dtype,) = dtypes
    if dtype not in DTYPES:
        raise ValueError(f"answers of {kind} must be floating point, 16 bits or more, got {dtype}")
    answers = {
        (dtype, case.name): _answer(kind, case, found.get(case.name, {})) for case in cases_of(kind)
    }
    return judge(kind, answers)


def _answer(kind: KindName, case: Case, values: dict[str, Tensor]) -> Answer:
    name = "mix" if kind == "op" else "reads"
    if name not in values:
        return Answer({}, "not answered")
    right = exact(kind, case.name)
    for quantity, value in values.items():
        if value.shape != right[quantity].shape:
            expected = list(right[quantity].shape)
            return Answer({}, f"{quantity} has shape {list(value.shape)}, expected {expected}")
    return Answer({quantity: value.double() for quantity, value in values.items()})


def _answer_key(name: str) -> tuple[KindName, str, str] | None:
    """Kind, case and quantity; None for an input, which an exported file has besides."""
    parts = name.split("/")
    quantity = parts[-1].replace("_of_", " of ")
    for kind in KINDS:
        if parts[0] != kind or len(parts) < 3 or parts[1] not in {x.name for x in cases_of(kind)}:
            continue
        if parts[2] in ("input", "upstream"):
            return None
        if len(parts) == 4 and parts[2] == "answer" and quantity in exact(kind, parts[1]):
            return kind, parts[1], quantity
    raise ValueError(f"{name} is no KIND/CASE/answer/NAME of conformance.json")


def _tensors(kind: KindName) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for case in cases_of(kind):
        start = f"{kind}/{case.name}"
        named = {f"input/{name}": x for name, x in case.inputs.items()}
        named["upstream"] = case.upstream
        named |= {f"answer/{_plain(name)}": x for name, x in exact(kind, case.name).items()}
        tensors |= {f"{start}/{name}": x.contiguous().clone() for name, x in named.items()}
    return tensors


def _plain(quantity: str) -> str:
    return quantity.replace(" ", "_")


def _described(kinds: Sequence[KindName]) -> dict[str, Any]:
    mistakes = [
        {"name": x.name, "what": x.what, "seen_by": x.seen_by, "mend": x.mend}
        for x in MISTAKES.values()
    ]
    described = {
        kind: {
            "signature": SIGNATURES[kind],
            "file": f"{kind}.safetensors",
            "cases": [_case(kind, case.name) for case in cases_of(kind)],
        }
        for kind in kinds
    }
    return {"format": FORMAT, "readme": README, "kinds": described, "mistakes": mistakes}


def _case(kind: KindName, name: str) -> dict[str, Any]:
    case, answers = case_named(kind, name), exact(kind, name)
    described: dict[str, Any] = {"name": name, "why": case.why, "eps": case.eps}
    if kind == "block":
        described["sublayers_per_block"] = case.sublayers_per_block
    return described | {
        "check": case.check,
        "inputs": {name: list(x.shape) for name, x in case.inputs.items()},
        "answers": {_plain(name): list(x.shape) for name, x in answers.items()},
        "allowed": {
            str(dtype).removeprefix("torch."): {
                _plain(quantity): allowed
                for quantity, allowed in budgets(kind, name, dtype).items()
            }
            for dtype in DTYPES
        },
    }
