"""What attention over depth adds to the prefill of a transformers Llama.

    python benchmarks/prefill.py --batch 1

A prompt of 512 tokens without a KV cache, the logits of the last token, random weights; otherwise
as benchmarks/decode.py.
"""

from command import run_command
from inference_rows import Kind, Settings, run
from inference_step import prefill_case

LIMITS = {
    ("float32", 512, "Block"): 2.0,
    ("float32", 512, "Full"): 2.5,
    ("float32", 1024, "Block"): 1.5,
    ("float32", 1024, "Full"): 2.5,
    ("bfloat16", 512, "Block"): 4.0,
}
PREFILL = Kind("prefill", prefill_case, False, LIMITS)


def main(settings: Settings) -> None:
    run(PREFILL, settings)


if __name__ == "__main__":
    run_command(main, Settings, "prefill.py", "a residual path", __doc__ or "")
