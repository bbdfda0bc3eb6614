#!/usr/bin/env bash
# Run the suite on every installed CPython >= 3.11 with each torch of a list, and print one row
# for each pair. Run it with `make matrix`. A torch that cannot be installed is "not available",
# and the next one is tried; after a failed build or test the exit status is 1.
#
#   MATRIX_TORCHES  default "2.13.0 2.6.0 2.5.1 newest"
#   MATRIX_PYTHONS  interpreters to use instead of those found
#   MATRIX_KEEP=1   keep the environments (several GB each)
set -u
cd "$(dirname "$0")/.." || exit 1
: "${NEEDS:?run this with: make matrix}"
torches=${MATRIX_TORCHES:-2.13.0 2.6.0 2.5.1 newest}
out=build/matrix
result=$out/result.md
failed=0

# Print "3.12 /path/of/python" for an interpreter that works and is not free-threaded.
describe() {
    "$1" -c 'import sys, sysconfig
if sys.implementation.name == "cpython" and sys.version_info >= (3, 11) and not sysconfig.get_config_var("Py_GIL_DISABLED"):
    print(f"{sys.version_info[0]}.{sys.version_info[1]}", sys.executable)' 2>/dev/null
}

# One interpreter for each minor version; pyenv's newest patch release first.
find_pythons() {
    if [ -n "${MATRIX_PYTHONS:-}" ]; then
        for python in $MATRIX_PYTHONS; do describe "$python"; done
    else
        for python in $(ls -d "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.*/bin/python 2>/dev/null | sort -rV) \
            python3.1{1..9} python3; do describe "$python"; done
    fi | sort -s -u -k1,1V
}

# The counts of pytest's last line: "120 passed, 2 skipped".
counts() {
    local line
    line=$(grep -E '[0-9]+ (passed|failed|errors?|skipped)|no tests ran' "$1" | tail -n 1)
    line=$(printf '%s' "$line" | sed -E 's/^=+ *//; s/ in [0-9.]+s.*//')
    printf '%s' "${line:-crashed}"
}

# suite CELL NAME [VARIABLE=VALUE]: run the suite and print its counts. The log is kept beside the result.
suite() {
    local cell=$1 log=$out/$1-$2.log status
    env "${@:3}" "$out/$cell/bin/python" -m pytest -q -p no:cacheprovider tests/py >"$log" 2>&1
    status=$?
    counts "$log"
    [ $status -eq 0 ] || printf ' (exit %s, %s)' "$status" "$log"
    return $status
}

row() {
    printf '| %s | %s | %s | %s | %s |\n' "$(date +%F)" "$@" | tee -a "$result"
}

# run_cell VERSION PYTHON TORCH: one row of the table.
run_cell() {
    local version=$1 python=$2 torch=$3
    local cell="py$version-torch$torch" spec="torch==$torch"
    local log="$out/$cell-install.log" here="$out/$cell" seen plain fallback
    [ "$torch" = newest ] && spec=torch
    if ! { "$python" -m venv --clear "$here" && "$here/bin/python" -m pip install --disable-pip-version-check "$spec" &&
        "$here/bin/python" -c 'import torch'; } >"$log" 2>&1; then
        row "$version" "$torch" "not available" "not available"
        return 0
    fi
    seen=$("$here/bin/python" -c 'import platform, torch; print(platform.python_version(), torch.__version__)' 2>/dev/null)
    set -- ${seen}
    # shellcheck disable=SC2086
    if ! "$here/bin/python" -m pip install --disable-pip-version-check $NEEDS >>"$log" 2>&1; then
        row "$1" "$2" "not available: $NEEDS" "not available"
        return 0
    fi
    if ! "$here/bin/python" -m pip install --disable-pip-version-check --no-build-isolation --no-deps . >>"$log" 2>&1; then
        row "$1" "$2" "does not build ($log)" "-"
        return 1
    fi
    plain=$(suite "$cell" plain)
    local status=$?
    fallback=$(suite "$cell" fallback MODSCOPE_INTERPOSE=0) || status=1
    row "$1" "$2" "$plain" "$fallback"
    return $status
}

mkdir -p "$out"
pythons=$(find_pythons)
[ -n "$pythons" ] || { echo "matrix: no CPython >= 3.11 was found" >&2; exit 1; }
printf 'matrix: torch %s on\n%s\n' "$torches" "$pythons"
[ -s "$result" ] || printf '| date | Python | torch | suite | suite with the fallback |\n|---|---|---|---|---|\n' >"$result"
while read -r version python; do
    for torch in $torches; do
        run_cell "$version" "$python" "$torch" </dev/null || failed=1
        [ -n "${MATRIX_KEEP:-}" ] || rm -rf "$out/py$version-torch$torch"
    done
done <<<"$pythons"
printf '\n%s:\n' "$result"
cat "$result"
exit $failed
