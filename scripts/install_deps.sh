#!/usr/bin/env bash
# Installs what building and testing muster needs on Debian 12, if anything is missing, and the packages it is given. Uses sudo only when
# not root.
set -euo pipefail

packages=(
  ca-certificates clang-format cmake g++ git iproute2 mold ninja-build ccache openssh-client openssh-server patchelf python3
  libabsl-dev libbenchmark-dev libcli11-dev libcurl4-openssl-dev libdnnl-dev libeigen3-dev libgmock-dev libgrpc++-dev libgtest-dev
  libprotobuf-dev libspdlog-dev libssh-dev libssl-dev libxxhash-dev libyaml-cpp-dev nlohmann-json3-dev prometheus-cpp-dev protobuf-compiler
  protobuf-compiler-grpc zlib1g-dev
  # What the native collectives are compared with.
  libgloo-dev
  # Tests read saved models with other programs.
  python3-numpy python3-onnx python3-opencv python3-xxhash
  # Login shells of hosts.
  csh fish ksh tcsh zsh
  # oneDNN's CMake package looks for OpenCL's headers.
  ocl-icd-opencl-dev opencl-c-headers opencl-clhpp-headers
  "$@"
)

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(sudo)
echo "installing: ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
# A service that starts by itself would be an open port nobody asked for: policy-rc.d keeps sshd from starting.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
  "${as_root[@]}" chmod 755 "$policy"
  trap '"${as_root[@]}" rm -f "$policy"' EXIT
fi
"${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
