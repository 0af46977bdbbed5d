#!/usr/bin/env bash
# Trains GPT-2 on 4 local ranks (2 tensor x 2 data), merges the checkpoint, samples from it in one
# process, and shows that the first losses equal those of one process of plain LibTorch, which calls
# nothing of oslo_cpp.
#
#   tutorials/demo.sh [BUILD_DIR]      BUILD_DIR is "build" unless given; output in BUILD_DIR/demo
#   tutorials/demo.sh --programs       names the programs that it runs, which have to be built before
#
# Exit 1 when the losses or the plan are not what they should be.
set -euo pipefail

programs=(oslo train_gpt2 train_plain_gpt2 generate_gpt2)
if [[ ${1:-} == --programs ]]; then
  echo "${programs[@]}"
  exit
fi

build=$(cd "${1:-build}" && pwd)
bin=$build/bin
work=$build/demo
for program in "${programs[@]}"; do
  if [[ ! -x $bin/$program ]]; then
    echo "error: no $bin/$program; build first (./dev build)" >&2
    exit 1
  fi
done
rm -rf "$work"
mkdir -p "$work"

# One thread a rank: four ranks share this machine's cores. The head has 50257 outputs, which is
# most of the work, so a step is 8 sequences of 64 tokens.
export OMP_NUM_THREADS=1
steps=40 compared=5
common=(--batch-size 8 --seq-len 64 --lr 1e-3 --seed 0)

say() { printf '\n== %s\n' "$*"; }

say "GPT-2 on 4 ranks: tensor parallel 2 x data parallel 2, $steps steps"
"$bin/oslo" run -n 4 -- "$bin/train_gpt2" "${common[@]}" --steps "$steps" --save-interval 20 \
  --set model_parallelism.tensor_parallel_size=2 --print-plan \
  --out "$work/parallel" --losses "$work/parallel.losses" | tee "$work/parallel.log"

# Found from the example: the tied vocabulary, nine tenths of this small model, is cut once for both
# its names, and the blocks are cut as Megatron-LM does, so that the ranks share their work.
say "what the plan has to say"
expect_placement() {
  if ! grep -qE "^(\[rank 0\])? +$1 .*$2" "$work/parallel.log"; then
    echo "FAILED: the plan does not say '$2' of $1"
    exit 1
  fi
  echo "$1: $2"
}
expect_placement transformer.wte.weight 'vocab: shard\(0\)'
expect_placement 'transformer.h.\*.attn.c_attn.weight' 'column: shard\(0, blocks 3'
expect_placement 'transformer.h.\*.mlp.c_proj.weight' 'row: shard\(1'
expect_placement lm_head.weight 'column: shard\(0\).*tied to transformer.wte.weight'

say "the checkpoints: one file for each tensor rank, and the merged one"
(cd "$work/parallel" && ls -l parallel_ckpt merged_ckpt)

say "a sample from the merged checkpoint, in one process with the plain model"
"$bin/generate_gpt2" --checkpoint "$work/parallel/merged_ckpt" --prompt "ROMEO:" --tokens 40

say "the same first $compared steps in one process of plain LibTorch"
"$bin/train_plain_gpt2" "${common[@]}" --steps "$compared" --losses "$work/single.losses"

# Both runs compute the same sums in another order. A loss near 10.8 in float32 is exact to 1e-6;
# AdamW's first steps magnify that, because they move every weight by about the learning rate,
# whatever the size of its gradient: about 1e-5 after 5 steps. A wrong sample, seed, scale or
# missing all-reduce changes the loss by more than 1e-2. 1e-4 lies well between.
say "the losses side by side"
paste <(head -n "$compared" "$work/parallel.losses") "$work/single.losses" |
  awk -v tolerance=1e-4 -v expected="$compared" '
    BEGIN { printf "%4s  %12s  %12s  %10s\n", "step", "4 ranks", "LibTorch", "difference" }
    NF == 2 && $1 > 0 && $2 > 0 {
      difference = $1 > $2 ? $1 - $2 : $2 - $1
      if (difference > largest) largest = difference
      rows++
      printf "%4d  %12.7f  %12.7f  %10.1e\n", rows, $1, $2, difference
    }
    END {
      if (rows != expected) {
        printf "FAILED: %d losses to compare, %d expected\n", rows, expected
        exit 1
      }
      equal = largest <= tolerance
      printf "%s: the largest difference is %.1e, at most %.0e is rounding\n",
             equal ? "equal" : "FAILED", largest, tolerance
      exit !equal
    }'
