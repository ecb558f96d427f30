#!/usr/bin/env bash
# make_bundle.sh PROGRAM FOLDER [MODULE...]: puts a program, the modules it loads and every library they need but the host's own
# into FOLDER/bin and FOLDER/lib, so that it runs on a host with nothing installed. The program must have been linked with DT_RPATH
# $ORIGIN/../lib, which its modules and their libraries are looked for in too.
set -euo pipefail
program=$1
folder=$2
modules=("${@:3}")

rm -rf "$folder.new"
mkdir -p "$folder.new/bin" "$folder.new/lib"
strip -o "$folder.new/bin/$(basename "$program")" "$program"
for module in "${modules[@]}"; do
  # It would name places of this machine.
  strip --strip-unneeded -o "$folder.new/lib/$(basename "$module")" "$module"
  patchelf --remove-rpath "$folder.new/lib/$(basename "$module")"
done

# The C library and its loader belong to the host: they must match its kernel and each other. So do the NVIDIA driver and the
# libraries of CUDA, which are large and have to match it.
host_libraries='^(ld-linux.*|libc|libm|libdl|libpthread|librt|libresolv|linux-vdso|libcuda|libcublas|libcublasLt|libnccl)\.so'
ldd "$program" "${modules[@]}" | grep -v ':$' | sort -u -k1,1 | while read -r name _ path _; do
  base=$(basename "$name")
  [[ $base =~ $host_libraries ]] && continue
  if [ ! -f "$path" ]; then
    echo "make_bundle.sh: $program needs $name, which is not found" >&2
    exit 1
  fi
  strip --strip-unneeded -o "$folder.new/lib/$base" "$path"
done
# The newest version of the C library that any of them asks for.
objdump -T "$folder.new"/bin/* "$folder.new"/lib/* | grep -o 'GLIBC_[0-9.]*' | cut -d_ -f2 | sort -uV | tail -1 \
  >"$folder.new/required_glibc"
rm -rf "$folder"
mv "$folder.new" "$folder"
