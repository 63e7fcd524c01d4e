"""How far each form of a converted SmolLM2 is from the plain model, before any training.

    python experiments/conversion/forms.py [TOKENS]

Prints a table of relative logit errors (Euclidean norm, over the first TOKENS tokens, by default
64, of Moby Dick's first chapter) and the share of positions with the same greedy token.
"""

import copy
import sys
from typing import Any

import torch

from attnres.models import AttnResCausalLMConfig, AttnResForCausalLM, convert, self_test
from attnres.models.pretrained import load_pretrained
from attnres.train.corpus import embedded_documents

LAYOUTS = {"Full": 1, "blocks of 8 sublayers": 8}


def unscaled(model: Any, size: int) -> Any:
    """The mean form with the epsilon of the plain model."""
    mean = convert(model, form="mean", sublayers_per_block=size)
    config = AttnResCausalLMConfig(
        text_config=mean.config.text_config, residual=mean.config.residual
    )
    other = AttnResForCausalLM(config).to(model.dtype)
    other.load_state_dict(mean.state_dict())
    return other


def main() -> None:
    loaded = load_pretrained("smollm2", "float32")
    assert loaded.tokenizer is not None
    n_tokens = int(sys.argv[1]) if len(sys.argv) > 1 else 64
    text = next(d.text for d in embedded_documents() if "Call me Ishmael" in d.text)
    tokens_BT = loaded.tokenizer(text[:2000], return_tensors="pt")["input_ids"][:, :n_tokens]
    for dtype in (torch.float32, torch.bfloat16):
        model = copy.deepcopy(loaded.model).to(dtype)
        for name, size in LAYOUTS.items():
            for form in ("centered", "sum", "mean", "mean, eps as it was"):
                if form in ("centered", "sum", "mean"):
                    converted = convert(model, form=form, sublayers_per_block=size)
                else:
                    converted = unscaled(model, size)
                found = self_test(model, converted, tokens_BT)
                print(
                    f"{str(dtype)[6:]:9} {name:22} {form:20} {found.relative_error:8.2e} "
                    f"{found.greedy_agreement:8.2%}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
