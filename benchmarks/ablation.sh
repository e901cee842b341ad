#!/usr/bin/env bash
# BiS-RQA whole, each of its two prompts alone, and the untrained model, on the same test questions.
# Usage: benchmarks/ablation.sh CONFIG [--setting value ...]     (from the repository's root)
# Each part goes on where it stopped; the last line prints the table.
set -euo pipefail
config=$1
shift
name=$(basename "$config" .yaml)
python=.venv/bin/python

arm() { # name, what differs in it
  local run=$1
  shift
  $python train.py --config "$config" --name "$run" "$@"
  $python evaluate.py --checkpoint "checkpoints/$run"
}
arm "$name" "$@"
arm "${name}_text" --prompt.soft_prompt false "$@"
arm "${name}_soft" --prompt.hard_prompt false --generator.mode frozen "$@"
$python evaluate.py --config "$config" --untrained --out "checkpoints/${name}_untrained" "$@"

$python benchmarks/table.py \
  "untrained, with triples=checkpoints/${name}_untrained" \
  "LoRA, triples only=checkpoints/${name}_text" \
  "soft prompt only, LLM frozen=checkpoints/${name}_soft" \
  "BiS-RQA=checkpoints/$name"
