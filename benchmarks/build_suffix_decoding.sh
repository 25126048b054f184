#!/bin/sh
# Suffix decoding, the peer of `toolkit replay`, for one Python: the part of arctic-inference that needs no GPU.
# usage: build_suffix_decoding.sh [PYTHON]      .venv/bin/python when absent; needs cmake and a C++20 compiler; a minute
#
# Only the package's suffix_decoding is put in place: no plugin of it gets into vLLM. To undo it, remove the folder that
# is named at the end.
set -eu
python=${1:-$(dirname "$0")/../.venv/bin/python}
source=arctic-inference==0.3.0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

pip() { "$python" -m pip --quiet --disable-pip-version-check "$@"; }
# Its build requirements (torch, grpc) are for its other parts.
pip download --no-binary :all: --no-deps --no-build-isolation --dest "$work" "$source"
pip install --no-deps --target "$work/tools" nanobind==2.9.2
tar -xzf "$work"/arctic_inference-*.tar.gz -C "$work" --strip-components=1

export PYTHONPATH="$work/tools"
executable=$("$python" -c 'import sys; print(sys.executable)')
cmake -S "$work/csrc/suffix_decoding" -B "$work/build" -DPython_EXECUTABLE="$executable" -Wno-dev >"$work/log" 2>&1 &&
  cmake --build "$work/build" >>"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
unset PYTHONPATH

place=$("$python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')/arctic_inference
mkdir -p "$place"
cp "$work/arctic_inference/__init__.py" "$work/LICENSE" "$place"
cp -R "$work/arctic_inference/suffix_decoding" "$place"
cp "$work"/build/_C.*.so "$place/suffix_decoding"
"$python" -c 'import arctic_inference.suffix_decoding'
echo "suffix decoding is in $place"
