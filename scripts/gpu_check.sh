#!/usr/bin/env bash
# Runs everything that needs a GPU, on a machine that may have no package manager and none of our libraries.
#
#   gpu_check.sh pack DIR    puts the tests of CUDA, gpu_bench, muster-trainer and the libraries they need into DIR, from
#                            build/PRESET (variable PRESET, release by default); fails if DIR is 60 MB or more when packed
#   gpu_check.sh run DIR     on the machine with the GPU: runs all of it, each program under a deadline, and prints one closing line;
#                            exit status 0 if nothing failed and something ran on a GPU, else 1
#
# DIR holds this script too: DIR/gpu_check.sh run. The machine has to have the NVIDIA driver and CUDA 13's cuBLAS, and for what is about
# several GPUs NCCL (else that is skipped), in /usr/local/cuda, where the loader looks, or where LD_LIBRARY_PATH says. MUSTER_DATA=FOLDER takes
# the real sets, mnist/ and census/; without it they are synthetic. Where python3 has PyTorch and that sees the GPU, PyTorch and gpu_bench run
# in turn too (torch_gpu_train.py). What each program printed comes into DIR/results/.
set -euo pipefail

tests=(cuda_dense_test cuda_convolution_test cuda_training_test cuda_embedding_test cuda_model_test cuda_local_training_test
  cuda_golden_losses_test cuda_module_test cuda_replica_test gpu_exchange_test nccl_test)
packed_limit_mb=60
test_deadline_s=300
bench_deadline_s=420
torch_start_deadline_s=60

fail() {
  echo "gpu_check.sh: $*" >&2
  exit 1
}

pack() {
  local root build folder=$1 program
  root=$(cd "$(dirname "$0")/.." && pwd)
  build=$root/build/${PRESET:-release}
  [ ! -e "$folder" ] || fail "$folder is there already"
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  mkdir -p "$folder/bin" "$folder/lib"
  for program in "${tests[@]/#/$build/tests/}" "$build/bin/gpu_bench" "$build/bin/muster-trainer"; do
    [ -x "$program" ] || fail "$program is not built"
    "$root/scripts/make_bundle.sh" "$program" "$scratch/one" "$build/lib/libmuster_cuda.so"
    # It would name places of this machine, and is looked at before LD_LIBRARY_PATH.
    # shellcheck disable=SC2016  # the loader expands it
    patchelf --force-rpath --set-rpath '$ORIGIN/../lib' "$scratch/one/bin/$(basename "$program")"
    cp -n "$scratch/one/bin/"* "$folder/bin/"
    cp -n "$scratch/one/lib/"* "$folder/lib/"
    cat "$scratch/one/required_glibc" >>"$scratch/required_glibc"
  done
  sort -V "$scratch/required_glibc" | tail -1 >"$folder/required_glibc"
  cp "$root/scripts/gpu_check.sh" "$root/tests/golden/golden_losses.json" "$root/bench/peers/torch_gpu_train.py" \
    "$root/bench/peers/torch_train.py" "$folder/"
  tar -C "$folder" -czf "$scratch/packed.tar.gz" .
  local bytes
  bytes=$(stat -c %s "$scratch/packed.tar.gz")
  echo "$folder: $((bytes / 1000000)) MB packed, needs glibc $(cat "$folder/required_glibc")"
  [ "$bytes" -lt $((packed_limit_mb * 1000000)) ] || fail "that is not under $packed_limit_mb MB"
}

# Of all programs so far.
passed=0 failed=0 skipped=0

# check NAME DEADLINE COMMAND...: one program that passes or fails as a whole.
check() {
  local name=$1 deadline_s=$2 status=0
  shift 2
  timeout --kill-after=10 "$deadline_s" "$@" >"$results/$name.log" 2>&1 || status=$?
  if [ "$status" -eq 0 ]; then
    passed=$((passed + 1))
    echo "ok      $name"
    return 0
  fi
  failed=$((failed + 1))
  [ "$status" -ne 124 ] && [ "$status" -ne 137 ] || echo "no end after $deadline_s s" >>"$results/$name.log"
  echo "FAILED  $name (status $status), the end of $results/$name.log:"
  tail -n 20 "$results/$name.log"
  return 1
}

run() {
  cd "$1"
  results=$PWD/results
  rm -rf "$results"
  mkdir -p "$results"
  local cuda_libraries=/usr/local/cuda/lib64
  export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$cuda_libraries" MUSTER_GOLDEN_LOSSES=$PWD/golden_losses.json
  local name log
  for name in "${tests[@]}"; do
    log=$results/$name.log
    local status=0
    timeout --kill-after=10 "$test_deadline_s" "bin/$name" >"$log" 2>&1 || status=$?
    local ok bad skips
    ok=$(grep -c '^\[       OK \]' "$log" || true)
    # Googletest lists what failed and what was skipped again at its end.
    bad=$(grep -c '^\[  FAILED  \] .*ms)$' "$log" || true)
    skips=$(grep -c '^\[  SKIPPED \] .*ms)$' "$log" || true)
    # A program that crashed, did not start or did not end is a failure of its own.
    [ "$status" -eq 0 ] || [ "$bad" -gt 0 ] || bad=1
    passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skips))
    echo "$name: $ok passed, $bad failed, $skips skipped"
    if [ "$bad" -gt 0 ]; then
      echo "  status $status; see $log:"
      grep -A6 'Failure$' "$log" | head -n 30 || true
      tail -n 5 "$log"
    elif [ "$skips" -gt 0 ]; then
      grep -m1 -A1 ': Skipped$' "$log" || true
    fi
  done
  # Whole trainings by the program that users run, each through the module.
  local result=$results/trainer.json
  local train=(bin/muster-trainer --job_name=local --device=cuda:0 "--result_json=$result" --seed=1)
  check trainer_mlp 120 "${train[@]}" --model=mnist_mlp --train_steps=1000 || true
  check trainer_deep 180 "${train[@]}" --model=mnist_cnn --variant=deep --train_steps=1000 --learning_rate=0.001 || true
  check trainer_wide_deep 120 "${train[@]}" --model=wide_deep --variant=minibatch --train_steps=3000 || true
  check trainer_wide_deep_whole_set 120 "${train[@]}" --model=wide_deep --variant=tutorial --train_steps=50 || true
  if check trainer_evaluates 120 "${train[@]}" --model=mnist_mlp --augment=shift --train_steps=500 "--save_model=$results/model"; then
    check evaluation 60 bin/muster-trainer --evaluate "$results/model" --device=cuda:0 || true
  fi
  # A worker on the GPU, its parameter server on the CPU, which ends when the worker has.
  local port=$((20000 + RANDOM % 10000)) model
  for model in mnist_cnn wide_deep; do
    # shellcheck disable=SC2016  # that shell expands it
    check "trainer_worker_$model" 120 bash -c '
      model=$1 && shift
      timeout 100 bin/muster-trainer --job_name=ps "$@" &
      bin/muster-trainer --job_name=worker --sync_replicas --device=cuda:0 "--model=$model" --batch_size=100 --train_steps=200 "$@" && wait $!' \
      - "$model" "--ps_hosts=127.0.0.1:$port" "--worker_hosts=127.0.0.1:$((port + 1))" --task_index=0 || true
    port=$((port + 2))
  done
  # Workers who sum by NCCL: one, and where there are several GPUs two.
  local gpus workers why
  gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ' || true)
  for workers in 1 2; do
    why=$(grep -m1 -o 'NCCL is missing on this host' "$results/nccl_test.log" || true)
    [ "$workers" -eq 1 ] || [ "$gpus" -ge "$workers" ] || why="nvidia-smi lists $gpus GPUs"
    if [ -n "$why" ]; then
      skipped=$((skipped + 1))
      echo "SKIPPED trainer_nccl_$workers: $why"
      continue
    fi
    # shellcheck disable=SC2016  # that shell expands it
    check "trainer_nccl_$workers" 120 bash -c '
      pids=()
      for ((i = 0; i < $1; ++i)); do
        timeout 100 bin/muster-trainer --job_name=worker "--task_index=$i" "--worker_hosts=$2" "--device=cuda:$i" --strategy=allreduce \
          --collective=nccl --model=mnist_cnn --variant=deep --learning_rate=0.001 --global_batch_size=100 --train_steps=200 &
        pids+=($!)
      done
      for pid in "${pids[@]}"; do wait "$pid" || exit; done' \
      - "$workers" "127.0.0.1:$port$([ "$workers" -eq 1 ] || echo ",127.0.0.1:$((port + 1))")" || true
    port=$((port + 2))
  done
  if check gpu_bench "$bench_deadline_s" bin/gpu_bench; then
    cat "$results/gpu_bench.log"
  fi
  # The ratio to PyTorch.
  local sees_gpu='import torch; assert torch.cuda.is_available(), "PyTorch sees no GPU"'
  log=$results/torch_gpu_train.log
  if timeout --kill-after=10 "$torch_start_deadline_s" python3 -c "$sees_gpu" >"$log" 2>&1; then
    if check torch_gpu_train "$bench_deadline_s" python3 torch_gpu_train.py --gpu_bench=bin/gpu_bench --workloads=mlp512,deep; then
      cat "$log"
    fi
  else
    [ -s "$log" ] || echo "no answer from PyTorch after $torch_start_deadline_s s" >"$log"
    skipped=$((skipped + 1))
    echo "SKIPPED torch_gpu_train: $(tail -n 1 "$log")"  # the last line says why
  fi
  local used_gpu=no
  [ "$passed" -eq 0 ] || ! grep -q '"device": "cuda:' "$result" 2>/dev/null || used_gpu=yes
  echo "gpu_check: $passed passed, $failed failed, $skipped skipped; on a GPU: $used_gpu"
  [ "$failed" -eq 0 ] && [ "$used_gpu" = yes ]
}

case ${1:-} in
  pack)
    [ $# -eq 2 ] || fail "usage: gpu_check.sh pack DIR"
    pack "$2"
    ;;
  run)
    run "${2:-$(dirname "$0")}"
    ;;
  *)
    sed -n '2,/^set /{/^#/p}' "$0" >&2
    exit 2
    ;;
esac
