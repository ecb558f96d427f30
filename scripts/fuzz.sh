#!/usr/bin/env bash
# Fuzzes what is read from the network and from disks, for SECONDS_EACH (60), all at a time. What breaks one is left in
# build/fuzz, and its name is in the output: build/fuzz/bin/NAME_fuzzer FILE does it again.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install_deps.sh clang libclang-rt-14-dev
seconds=${SECONDS_EACH:-60}
cmake --preset fuzz >/dev/null
cmake --build --preset fuzz
corpus=$(mktemp -d)
trap 'rm -rf "$corpus"' EXIT
build/fuzz/bin/write_seeds "$corpus"
fuzz() {
  local name=$1
  # A frame may ask for as much memory as it has bytes, and for no more.
  TMPDIR=$corpus build/fuzz/bin/"${name}"_fuzzer -max_total_time="$seconds" -max_len=65536 -malloc_limit_mb=64 -rss_limit_mb=2048 -timeout=10 \
    -print_final_stats=1 -artifact_prefix=build/fuzz/"$name"- "$corpus/$name" >build/fuzz/"$name".log 2>&1 ||
    { tail -40 build/fuzz/"$name".log; return 1; }
  echo "$name: $(grep -a 'number_of_executed_units' build/fuzz/"$name".log | tr -dc 0-9) inputs in $seconds s, none breaks it"
}
pids=()
for name in wire checkpoint journal; do
  fuzz "$name" &
  pids+=($!)
done
status=0
for pid in "${pids[@]}"; do wait "$pid" || status=1; done
exit $status
