#!/usr/bin/env bash
# Installs what is missing, builds, and runs the tests. Arguments go to ctest: scripts/test.sh -R ParameterServer
# PRESET=asan or tsan runs them under sanitizers; MUSTER_DATA=FOLDER lets the tests that can use the real data sets.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${PRESET:-dev}
scripts/install_deps.sh
cmake --preset "$preset" >/dev/null
cmake --build --preset "$preset"
# Most of the tests wait for other processes more than they compute.
ctest --preset "$preset" -j$(($(nproc) + 1)) "$@"
