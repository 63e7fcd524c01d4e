"""What attention over depth adds to a decode step of a transformers Llama.

    python benchmarks/decode.py --threads 1

One new token a sequence, 512 behind it in a KV cache, random weights. The residual path is timed by
itself: what its reads and sums take longer than the plain sum, over the step of transformers' own
model. Whole steps are a cross-check. Blocks (8) and Full, each read in one phase, in two and as the
dispatcher chooses, and the same reads by peers that run on a CPU.

Clock, allocator and rounds are those of benchmarks/depth_attention.py. No time is printed while a
residual path errs (exit status 1).
"""

from command import run_command
from inference_rows import Kind, Settings, run
from inference_step import decode_case

LIMITS = {
    ("float32", dim, layout): limit
    for dim, limit in ((512, 5.0), (1024, 2.0))
    for layout in ("Block", "Full")
}
DECODE = Kind("decode", decode_case, True, LIMITS)


def main(settings: Settings) -> None:
    run(DECODE, settings)


if __name__ == "__main__":
    run_command(main, Settings, "decode.py", "a residual path", __doc__ or "")
