#!/usr/bin/env bash
# Trains each model with its own numbers (the optimizer, batch and steps it was published with) and holds the median of its
# test accuracies against the bar that it must reach. Needs the real data: MUSTER_DATA=FOLDER with mnist/ and census/.
#   --models=A,B   only these of: softmax mlp-200 mlp lenet lenet-4-workers deep wide-deep-tutorial wide-deep-dist-test
#                  wide-deep-minibatch wide-only
#   --seeds=1,2,3  one training for each
#   --threads=1    of each training in one process
# Exit status: 0 if all bars are held, 1 if one is missed or a training fails, 2 for bad input. All of it takes hours on two
# cores; without lenet, lenet-4-workers and deep it takes minutes.
set -euo pipefail
cd "$(dirname "$0")/.."

all_models=(softmax mlp-200 mlp lenet lenet-4-workers deep wide-deep-tutorial wide-deep-dist-test wide-deep-minibatch wide-only)
declare -A bar=([softmax]=0.9167 [mlp-200]=0.93 [mlp]=0.972 [lenet]=0.990 [lenet-4-workers]=0.990 [deep]=0.992
  [wide-deep-tutorial]=0.840 [wide-deep-dist-test]=0.840 [wide-deep-minibatch]=0.845 [wide-only]=0.832)
# What is not the model's own.
declare -A flags=(
  [softmax]='--model=mnist_softmax'
  [mlp-200]='--model=mnist_mlp --train_steps=200 --learning_rate=0.01'
  [mlp]='--model=mnist_mlp'
  [lenet]='--model=mnist_cnn --variant=lenet'
  [deep]='--model=mnist_cnn --variant=deep'
  [wide-deep-tutorial]='--model=wide_deep --variant=tutorial'
  [wide-deep-dist-test]='--model=wide_deep --variant=dist_test'
  [wide-deep-minibatch]='--model=wide_deep --variant=minibatch'
  [wide-only]='--model=wide_deep --variant=wide_only'
)

fail() {  # STATUS MESSAGE
  echo "accuracy_bars.sh: $2" >&2
  exit "$1"
}

models=("${all_models[@]}")
seeds=(1 2 3)
threads=1
for argument; do
  value=${argument#*=}
  case $argument in
    --models=?*) IFS=, read -ra models <<<"$value" ;;
    --seeds=?*) IFS=, read -ra seeds <<<"$value" ;;
    --threads=?*) threads=$value ;;
    *) fail 2 "unknown argument '$argument': --models=A,B --seeds=1,2,3 --threads=N" ;;
  esac
done
for model in "${models[@]}"; do
  [ -n "${bar[$model]:-}" ] || fail 2 "unknown model '$model': it is one of ${all_models[*]}"
done
for number in "${seeds[@]}" "$threads"; do
  [[ $number =~ ^[0-9]+$ ]] || fail 2 "expected a whole number, found '$number'"
done
for set in mnist census; do
  [ -d "${MUSTER_DATA:-}/$set" ] || fail 2 "MUSTER_DATA must name a folder with $set/; \`muster data fetch $set DIR\` makes one"
done
MUSTER_DATA=$(realpath "$MUSTER_DATA")
export MUSTER_DATA

cmake --preset release >/dev/null
cmake --build --preset release --target muster muster-agent muster-trainer-bundle >&2
bin=$PWD/build/release/bin
folder=$(mktemp -d "${TMPDIR:-/tmp}/muster-bars-XXXXXX")
trap 'rm -rf "$folder"' EXIT

in_one_process() {  # MODEL SEED: writes the result record
  # shellcheck disable=SC2086 # the flags are words
  "$bin/muster-trainer" --job_name=local ${flags[$1]} --seed="$2" --threads="$threads" --result_json="$folder/result.json" \
    >"$folder/log" 2>&1
}

# Two servers and four workers on this machine, which share lenet's own batch of 64.
with_four_workers() {  # MODEL SEED: writes the result record
  echo "hosts: {here: {local: true, dir: \"$folder/host\"}}" >"$folder/inventory.yaml"
  cat >"$folder/job.yaml" <<JOB
name: $1
model: mnist_cnn
variant: lenet
update: {mode: sync}
replicas: {ps: {count: 2}, worker: {count: 4}}
train: {global_batch_size: 64, seed: $2, threads: 1}
JOB
  MUSTER_HOME=$folder/home "$bin/muster" run -q -o json "$folder/job.yaml" -i "$folder/inventory.yaml" \
    >"$folder/result.json" 2>"$folder/log"
}

of_result() {  # KEY
  sed -n "s/^ *\"$1\": \([0-9.]*\),*\$/\1/p" "$folder/result.json"
}

line='%-20s %7s  %-24s %-7s %-7s %s'
rows=
missed=
for model in "${models[@]}"; do
  accuracies=()
  for seed in "${seeds[@]}"; do
    begin=$SECONDS
    train=in_one_process
    [ "$model" != lenet-4-workers ] || train=with_four_workers
    "$train" "$model" "$seed" || { cat "$folder/log" >&2; fail 1 "$model with seed $seed did not end well"; }
    accuracy=$(of_result test_accuracy)
    [ -n "$accuracy" ] || fail 1 "$model with seed $seed left no test accuracy"
    accuracy=$(printf %.4f "$accuracy")
    accuracies+=("$accuracy")
    echo "$model, seed $seed: $accuracy after $(of_result steps) steps, $((SECONDS - begin)) s" >&2
  done
  # Of an even number the lower one.
  median=$(printf '%s\n' "${accuracies[@]}" | sort -g | sed -n "$(((${#accuracies[@]} + 1) / 2))p")
  verdict=held
  if ! awk -v median="$median" -v bar="${bar[$model]}" 'BEGIN { exit !(median + 0 >= bar + 0) }'; then
    verdict=MISSED
    missed+=" $model"
  fi
  # shellcheck disable=SC2059 # one format for all lines
  rows+=$(printf "$line" "$model" "$(of_result steps)" "${accuracies[*]}" "$median" "${bar[$model]}" "$verdict")$'\n'
done

# shellcheck disable=SC2059
printf "$line\n%s" MODEL STEPS 'TEST ACCURACY' MEDIAN BAR '' "$rows"
if [ -n "$missed" ]; then
  echo "bars are missed:$missed"
  exit 1
fi
echo "all bars are held (models: ${#models[@]}, seeds: ${#seeds[@]})"
