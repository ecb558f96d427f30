#!/usr/bin/env bash
# Trains MNIST on four hosts behind real sshds on this machine: installs what is missing, builds, starts the hosts, runs
# examples/mnist.yaml on them, stops everything. Nothing outside the repository and one temporary folder is touched.
#   --keep   leaves the hosts up to play with, and says how
#   --stop   ends what --keep left
set -euo pipefail
cd "$(dirname "$0")/.."

kept=${TMPDIR:-/tmp}/muster-demo-$(id -u)
bin=$PWD/build/release/bin
mode=${1:-}

case $mode in
  '' | --keep) ;;
  --stop)
    [ -d "$kept" ] || { echo "no demo cluster is up" >&2; exit 0; }
    tests/cluster/loopback down "$kept/cluster"
    rm -rf "$kept"
    exit 0
    ;;
  *)
    echo "usage: scripts/demo.sh [--keep | --stop]" >&2
    exit 2
    ;;
esac

scripts/install_deps.sh
cmake --preset release >/dev/null
cmake --build --preset release --target muster muster-agent muster-bundle muster-trainer-bundle

if [ "$mode" = --keep ]; then
  folder=$kept
  mkdir -p -m 700 "$folder"
else
  folder=$(mktemp -d "${TMPDIR:-/tmp}/muster-demo-XXXXXX")
  trap 'tests/cluster/loopback down "$folder/cluster" || true; rm -rf "$folder"' EXIT
fi
export MUSTER_HOME=$folder/home MUSTER_KNOWN_HOSTS=$folder/cluster/known_hosts
# What --keep left is over when this machine was started anew.
if [ -d "$folder/cluster" ] && ! "$bin/muster" check -i "$folder/cluster/inventory.yaml" >/dev/null 2>&1; then
  tests/cluster/loopback down "$folder/cluster"
fi
[ -d "$folder/cluster" ] || tests/cluster/loopback up "$folder/cluster" 4

if [ "$mode" = --keep ]; then
  cat >&2 <<TEXT

The four hosts stay up. To play with them, from this folder:
  export MUSTER_HOME=$MUSTER_HOME MUSTER_KNOWN_HOSTS=$MUSTER_KNOWN_HOSTS
  export MUSTER_INVENTORY=$folder/cluster/inventory.yaml PATH=$bin:\$PATH
  muster check
  muster run examples/mnist.yaml
  muster show mnist
  scripts/demo.sh --stop

TEXT
fi
"$bin/muster" run examples/mnist.yaml -i "$folder/cluster/inventory.yaml"
