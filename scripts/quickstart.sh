#!/usr/bin/env bash
# From a fresh clone to a trained model: installs what is missing (apt), builds, trains a small byte-level model on
# English text for a few minutes, and scores text that the model has not seen. Everything it writes lies below build/
# and runs/quickstart. Running it again trains again; the earlier run is kept beside the new one.
set -euo pipefail
cd "$(dirname "$0")/.."
root=runs/quickstart

say() { printf '\n== %s\n' "$*"; }

say "1 of 5: what must be installed"
scripts/install.sh --quickstart
echo "Everything needed is installed."

say "2 of 5: build"
# One compiler for every core, but not more than the memory takes.
jobs=$(nproc)
memory_jobs=$(($(awk '/MemAvailable/ {print $2}' /proc/meminfo) / 2000000))
if ((memory_jobs < jobs)); then jobs=$((memory_jobs > 0 ? memory_jobs : 1)); fi
# The CUDA kernels take minutes to compile: only where there is a GPU, and for that one.
cuda=(-DTESSERA_CUDA=OFF)
targets=(train)
if command -v nvcc > /dev/null && nvidia-smi > /dev/null 2>&1; then
    cuda=(-DTESSERA_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=native)
    targets+=(tessera_cuda)
    gpus=$(nvidia-smi -L | wc -l)
fi
cmake --preset release -DTESSERA_TESTS=OFF "${cuda[@]}" > /dev/null
cmake --build build --target "${targets[@]}" -j "$jobs"
train=$PWD/build/train

say "3 of 5: text and an empty model"
# The King James Bible as Debian's bible-kjv prints it, a verse a line, without the number of the verse. The last books
# are held out.
mkdir -p "$root/data" "$root/model"
bible=$(command -v bible || echo /usr/bin/bible)
"$bible" -f gen1:1-rev22:21 | sed -E 's/^[0-9]*[A-Za-z]+[0-9]+:[0-9]+ //' > "$root/data/all.txt"
verses=$(wc -l < "$root/data/all.txt")
if ((verses < 30000)); then
    echo "quickstart.sh: $bible printed only $verses verses" >&2
    exit 65
fi
held_out=$((verses * 3 / 100))
head -n "-$held_out" "$root/data/all.txt" > "$root/data/train.txt"
tail -n "$held_out" "$root/data/all.txt" > "$root/data/valid.txt"
rm "$root/data/all.txt"
cat > "$root/model/config.json" << 'JSON'
{
  "architectures": ["LlamaForCausalLM"],
  "model_type": "llama",
  "vocab_size": 256,
  "hidden_size": 192,
  "intermediate_size": 512,
  "num_hidden_layers": 4,
  "num_attention_heads": 6,
  "num_key_value_heads": 6,
  "head_dim": 32,
  "hidden_act": "silu",
  "initializer_range": 0.02,
  "max_position_embeddings": 256,
  "rms_norm_eps": 1e-6,
  "rope_theta": 10000.0,
  "tie_word_embeddings": true,
  "bos_token_id": null,
  "eos_token_id": null,
  "torch_dtype": "float32"
}
JSON
echo "Bytes to train on: $(wc -c < "$root/data/train.txt"); held out, the end of the book: $(wc -c < "$root/data/valid.txt")"

# Two ranks where they have a core, or a GPU, each.
ranks=1
if ((${gpus:-$(nproc)} >= 2)); then ranks=2; fi
if [[ $(id -u) -eq 0 ]]; then # mpirun wants to be told that root means it
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
# mpirun counts cores without their second threads, of which virtual machines are often made: hence --oversubscribe.
launch=(mpirun -np "$ranks" --oversubscribe "$train" --config configs/quickstart.toml)

say "4 of 5: train on $ranks ranks"
"${launch[@]}"

say "5 of 5: score the held-out text"
rm -f "$root/scores/log_probs.h5"
"${launch[@]}" --set job_type=log_prob --set "model_name=$root/training/hf" --set model.init=pretrained \
    --set "output_dir=$root/scores"
"$train" inspect "$root/scores/log_probs.h5"

# The numbers of metrics.jsonl, one record a line.
number() { sed -n "s/.*\"$1\": *\([-+0-9.eE]*\).*/\1/p" "$root/training/metrics.jsonl"; }
before=$(number loss | head -n 1)
after=$(number eval_loss | tail -n 1)
if [[ -z $before || -z $after ]]; then
    echo "quickstart.sh: $root/training/metrics.jsonl has no loss or no eval_loss" >&2
    exit 65
fi
say "done"
printf 'The first step had a loss of %.2f nats a byte, as good as guessing (ln 256 = 5.55).\n' "$before"
printf 'After training, text that the model has never seen costs %.2f nats a byte.\n' "$after"
cat << WORDS
The log-probabilities of that text, byte by byte, were printed in summary above.

    $root/training/hf            the model, as transformers loads it
    $root/training/metrics.jsonl every number of the run, one record a line
    $root/scores/log_probs.h5    a log-probability for every byte; opens with h5py
    configs/quickstart.toml      the job; configs/ holds more of them
WORDS
if awk -v loss="$after" 'BEGIN { exit !(loss > 2.0) }'; then
    echo "quickstart.sh: the loss should have fallen below 2.0: something is wrong" >&2
    exit 1
fi
