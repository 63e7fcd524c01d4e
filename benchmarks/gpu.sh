#!/usr/bin/env bash
# Every test and benchmark that needs a GPU, in under eight minutes; the table comes last.
# PYTHON names the interpreter; its torch, triton and pytest are used as they are.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
export PYTHONUNBUFFERED=1 ATTNRES_TEST_DEVICE=cuda CUBLAS_WORKSPACE_CONFIG=:4096:8
unset TRITON_INTERPRET

"$PYTHON" -c '
import sys, torch
if not torch.cuda.is_available():
    sys.exit("no GPU: torch %s sees no CUDA device, so nothing was run" % torch.__version__)
import triton
print(torch.cuda.get_device_name(), "torch", torch.__version__, "triton", triton.__version__)
'

workers=()  # most of the time goes into compiling
if "$PYTHON" -c 'import xdist' 2>/dev/null; then workers=(-n "$(($(nproc) < 8 ? $(nproc) : 8))"); fi
tests=(tests/ops/test_triton.py tests/ops/test_triton_ops.py)
if ! timeout 230 "$PYTHON" -m pytest -p no:cacheprovider "${workers[@]}" "${tests[@]}"; then
  echo "the tests are red or took over 230 s: no time is printed"
  exit 1
fi
timeout 230 "$PYTHON" benchmarks/gpu_depth_attention.py --budget-s 200 "$@"
