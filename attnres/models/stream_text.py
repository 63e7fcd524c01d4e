"""Text that a saved model goes on with, printed as it comes."""

import math

import torch
from transformers import TextStreamer, set_seed

from attnres.layout import check_count
from attnres.models.pretrained import Pretrained


@torch.no_grad()
def stream_text(
    loaded: Pretrained,
    prompt: str,
    n_tokens: int,
    temperature: float = 0.0,
    seed: int = 0,
    prefill_chunk: int | None = None,
) -> None:
    """Print the prompt and up to `n_tokens` more; greedy where the temperature is 0.

    The prompt is read `prefill_chunk` tokens at once, or all at once where it is None.

    Raises:
        ValueError: no tokenizer, an empty prompt, more tokens than the model has places for, or a
            number out of range.
    """
    model, tokenizer = loaded
    if tokenizer is None:
        raise ValueError("the model has no tokenizer beside it")
    if n_tokens < 1 or not 0 <= temperature < math.inf:
        raise ValueError(
            f"n_tokens is positive and temperature at least 0, got {n_tokens} and {temperature}"
        )
    if prefill_chunk is not None:
        check_count("prefill_chunk", prefill_chunk)
    prompt.encode()  # a ValueError for what is no text, such as bytes that are no UTF-8
    inputs = tokenizer(prompt, return_tensors="pt")
    n_prompt = inputs["input_ids"].shape[1]
    if not n_prompt:
        raise ValueError("the prompt is empty")
    n_places = getattr(model.config, "max_position_embeddings", math.inf)
    if n_prompt + n_tokens > n_places:
        raise ValueError(
            f"{n_prompt} tokens of the prompt and {n_tokens} more are more than the model's "
            f"{n_places} places"
        )
    set_seed(seed)
    sampling = {"do_sample": True, "temperature": temperature} if temperature else {}
    model.generate(
        input_ids=inputs["input_ids"].long(),
        attention_mask=inputs["attention_mask"],
        max_new_tokens=n_tokens,
        pad_token_id=tokenizer.pad_token_id,
        prefill_chunk_size=prefill_chunk,
        streamer=TextStreamer(tokenizer, skip_special_tokens=True),
        **(sampling or {"do_sample": False}),
    )
