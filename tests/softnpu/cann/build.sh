#!/bin/sh
# Builds the software CANN libraries.   usage: build.sh PYTHON OUT_DIR
#
# PYTHON is the interpreter whose torch_npu supplies the ACL headers. Every acl*, rt* and Msprof* symbol that
# the wheel needs and this folder doesn't define becomes a stub that returns 0.
set -e
python=$1
out=$2
here=$(cd "$(dirname "$0")" && pwd)
npu=$(TORCH_DEVICE_BACKEND_AUTOLOAD=0 "$python" -c \
  "import importlib.util; print(importlib.util.find_spec('torch_npu').submodule_search_locations[0])")
mkdir -p "$out"

objects=""
for source in "$here"/*.cpp; do
  object="$out/$(basename "$source" .cpp).o"
  g++ -std=c++17 -O1 -g -fPIC -I"$npu/include" -c "$source" -o "$object"
  objects="$objects $object"
done

nm $objects | awk '$2 == "T" {print $3}' | sort -u >"$out/defined.txt"
nm -D --undefined-only "$npu"/lib/*.so "$npu"/_C*.so 2>/dev/null | awk '{print $NF}' |
  grep -E '^(acl|rt|Msprof)[A-Za-z0-9]*$' | sort -u >"$out/needed.txt"
comm -13 "$out/defined.txt" "$out/needed.txt" | sed 's/.*/int &(void) { return 0; }/' >"$out/stubs.c"
gcc -fPIC -c "$out/stubs.c" -o "$out/stubs.o"
g++ -shared -Wl,-soname,libascendcl.so -o "$out/libascendcl.so" $objects "$out/stubs.o" -lpthread

# The other libraries that the wheel loads are empty and only depend on the first.
: >"$out/empty.c"
for name in hccl acl_op_compiler ge_runner graph acl_tdt_channel atb; do
  gcc -shared -fPIC -Wl,-soname,lib$name.so -o "$out/lib$name.so" "$out/empty.c" \
    -Wl,--no-as-needed -L"$out" -lascendcl
done
