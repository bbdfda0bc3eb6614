#!/usr/bin/env bash
# Run the suite with several versions of Python and torch, and print a row for each. Run it with `make matrix`.
# Where a Python or a torch cannot be had, the row says so, and the next one is tried. After a failed build or test the
# exit status is 1.
#
#   MATRIX_CELLS   PYTHON:TORCH, default "3.11:2.13.0 3.13:2.15.0 3.12:2.8.0"
#   MATRIX_PARTS   targets of tools/py.mk, such as "suite-virtual suite-predict suite-ranks"; default: all but the pages
#   MATRIX_KEEP=1  keep the environments (several GB each), for the other parts
set -u
cd "$(dirname "$0")/.." || exit 1
: "${NEEDS:?run this with: make matrix}"
cells=${MATRIX_CELLS:-3.11:2.13.0 3.13:2.15.0 3.12:2.8.0}
optional=(${MATRIX_OPTIONAL-torchvision transformers accelerate lightning})
out=build/matrix
result=$out/result.md
failed=0

# find_python VERSION: the path of a CPython with a GIL; pyenv's newest patch release first.
find_python() {
    local python
    for python in $(ls -d "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python 2>/dev/null | sort -rV) "python$1" python3; do
        "$python" -c 'import sys, sysconfig
if sys.implementation.name == "cpython" and sys.version.startswith(sys.argv[1] + ".") and not sysconfig.get_config_var("Py_GIL_DISABLED"):
    print(sys.executable)' "$1" 2>/dev/null | grep . && return
    done
    return 1
}

# counts LOG...: the sums of pytest's last lines, "120 passed, 2 skipped".
counts() {
    local log line words
    for log in "$@"; do
        line=$(grep -E '^=* *[0-9]+ (passed|failed|errors?|skipped).* in [0-9.]+s' "$log" | tail -n 1)
        printf '%s\n' "${line:-1 crashed}"
    done | grep -oE '[0-9]+ (passed|failed|errors?|skipped|crashed)' | sed 's/errors/error/' |
        awk '{ sum[$2] += $1 } END { split("passed skipped failed error crashed", words, " ")
            for (i = 1; i <= 5; i++) if (sum[words[i]]) { printf "%s%d %s", comma, sum[words[i]], words[i]; comma = ", " } }'
}

row() {
    printf '| %s | %s | %s | %s | %s |\n' "$(date +%F)" "$@" | tee -a "$result"
}

# run_cell VERSION TORCH: one row of the table.
run_cell() {
    local version=$1 torch=$2 python status part logs=() package
    local cell="py$version-torch$torch" here="$out/py$version-torch$torch"
    local log="$out/$cell-install.log" pip=("$here/bin/python" -m pip install --quiet --disable-pip-version-check)
    if ! python=$(find_python "$version"); then
        row "$version" "$torch" "-" "this Python is not here"
        return 0
    fi
    # shellcheck disable=SC2086
    if ! { [ -e "$here/.installed" ] || { "$python" -m venv --clear "$here" && "${pip[@]}" "torch==$torch" $NEEDS &&
        "$here/bin/python" -c 'import torch' && touch "$here/.installed"; }; } >"$log" 2>&1; then
        row "$version" "$torch" "-" "this torch is not available ($log)"
        return 0
    fi
    for package in "${optional[@]}"; do
        timeout 180 "${pip[@]}" --retries 0 "$package" "torch==$torch" >>"$log" 2>&1 ||
            echo "matrix: $package cannot be installed with torch $torch: what needs it is skipped"
    done
    if ! "${pip[@]}" --no-build-isolation --no-deps --config-settings=build-dir="$out/$cell-cmake" . >>"$log" 2>&1; then
        row "$version" "$torch" "-" "modscope does not build ($log)"
        return 1
    fi
    # shellcheck disable=SC2086
    "${MAKE:-make}" --no-print-directory --keep-going --jobs="${PARALLEL:-3}" --output-sync=recurse SUITE_NEEDS= \
        VPY="$here/bin/python" LOGS="$out/$cell-logs" $MATRIX_PARTS
    status=$?
    for part in $MATRIX_PARTS; do logs+=("$out/$cell-logs/$part.log"); done
    row "$("$here/bin/python" -c 'import platform; print(platform.python_version())')" \
        "$("$here/bin/python" -c 'import torch; v = torch.version; print(torch.__version__, "(CUDA build)" if v.cuda else "(CPU build)")')" \
        "$MATRIX_PARTS" "$(counts "${logs[@]}")"
    return $status
}

mkdir -p "$out"
printf 'matrix: %s\n' "$cells"
[ -s "$result" ] || printf '| date | Python | torch | parts | result |\n|---|---|---|---|---|\n' >"$result"
for cell in $cells; do
    run_cell "${cell%%:*}" "${cell#*:}" </dev/null || failed=1
    [ -n "${MATRIX_KEEP:-}" ] || rm -rf "$out/py${cell%%:*}-torch${cell#*:}"
done
printf '\n%s:\n' "$result"
cat "$result"
exit $failed
