"""A prompt read in chunks: what is held of its sources is that of one chunk."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnres.layout import check_count

if TYPE_CHECKING:
    from transformers.modeling_outputs import CausalLMOutputWithPast


@torch.no_grad()
def prefill(
    model: Any,
    prompt_BT: Tensor,
    *,
    chunk_tokens: int | None = None,
    attention_mask: Tensor | None = None,
    cache: Any = None,
) -> "CausalLMOutputWithPast":
    """Fill a KV cache with a prompt, and give the logits of its last token.

    `model.generate(..., prefill_chunk_size=chunk_tokens)` of transformers does the same before it
    decodes. Depth sources belong to one token, so nothing of them is kept from chunk to chunk; the
    logits are those of one pass, to the rounding of attention and matrix products of other shapes.

    Args:
        model: an `AttnResForCausalLM`, also one whose sequence is sharded, or a plain causal LM.
        chunk_tokens: positions that are read at once; None is all.
        attention_mask: 0 for padding, which is on the left; of the cache and the prompt together.
        cache: a KV cache to go on from, which is filled; None makes the model's own.

    Returns:
        `logits`, [B, 1, V], of the last position, and `cache`.

    Raises:
        ValueError: a count that is no positive integer, an empty prompt, a mask that does not fit.
    """
    n_prompt = prompt_BT.shape[1]
    n_cached = 0 if cache is None else cache.get_seq_length()
    check_count("chunk_tokens", n_prompt if chunk_tokens is None else chunk_tokens)
    if attention_mask is not None and attention_mask.shape[1] != n_cached + n_prompt:
        raise ValueError(
            f"the mask has {attention_mask.shape[1]} positions, the cache {n_cached} and the "
            f"prompt {n_prompt}"
        )
    output: Any = None
    for start in range(0, n_prompt, chunk_tokens or n_prompt):
        chunk_BT = prompt_BT[:, start : start + (chunk_tokens or n_prompt)]
        end = n_cached + start + chunk_BT.shape[1]
        output = model(
            input_ids=chunk_BT,
            cache=cache if output is None else output.cache,
            use_cache=True,
            logits_to_keep=1,
            **_places(attention_mask, end, chunk_BT.shape[1]),
        )
    return output


def _places(mask_BT: Tensor | None, end: int, n_tokens: int) -> dict[str, Tensor]:
    """The mask up to a chunk's end, and the positions of its tokens, padding not counted."""
    if mask_BT is None:
        return {}
    mask_BT = mask_BT[:, :end]
    position_BT = (mask_BT.long().cumsum(-1) - 1).clamp(min=0)
    return {"attention_mask": mask_BT, "position_ids": position_BT[:, -n_tokens:]}
