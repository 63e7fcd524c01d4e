#!/bin/bash
# Submit all runs of a study: those that tune, and after them the final ones.
#   SBATCH_OPTIONS="--partition=cpu --time=1:00:00" experiments/submit.sh methods [--seeds 5 ...]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
list=$(attnres experiment "$@" --list)
tuning=$(sed -n 's/^tuning: //p' <<<"$list")
final=$(sed -n 's/^final: //p' <<<"$list")
mkdir -p runs
read -ra options <<<"${SBATCH_OPTIONS:-}"
submit() { sbatch --parsable "${options[@]}" "$@"; }
first=$(submit --array="$tuning" "$here/array.sbatch" "$@")
submit --array="$final" --dependency="afterany:${first%%;*}" "$here/array.sbatch" "$@"
