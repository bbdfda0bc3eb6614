#!/bin/sh
# test_c_library.sh PREFIX [CC] - uses the C library that `make install-c PREFIX=...` installed, as a C programmer does:
# builds and runs the examples by pkg-config, shared and static, and looks at what the library exports and needs.
set -eu
prefix=$(cd "$1" && pwd)
cc=${2:-cc}
cd "$(dirname "$0")/.."
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
PKG_CONFIG_PATH=$prefix/lib/pkgconfig
LD_LIBRARY_PATH=$prefix/lib
export PKG_CONFIG_PATH LD_LIBRARY_PATH

fail() {
    echo "test_c_library: $*" >&2
    exit 1
}

# pkg-config escapes spaces for the shell, which must read its answer again.
compile() {
    eval "$1 $(pkg-config --cflags modscope) -Wall -Wextra -Wpedantic -Werror $2"
}

# ---- what it exports and needs ----
library=$prefix/lib/libmodscope.so
version=$(pkg-config --modversion modscope)
grep -q "define MS_VERSION \"$version\"" include/modscope.h || fail "modscope.pc has the version $version, modscope.h another one"
[ -f "$library.$version" ] || fail "$library.$version is missing"
readelf -d "$library" | grep -q "SONAME.*\[libmodscope\.so\.${version%.*}\]" || fail "the SONAME is not libmodscope.so.${version%.*}"
readelf -d "$library" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' | grep -v '^lib\(c\|pthread\)\.so' && fail "it needs more than libc"
nm -D --defined-only "$library" | awk '{ print $3 }' >"$out/exported"
sed 's|/\*.*\*/||' include/*.h | grep -ow 'ms_[a-z0-9_]*' | sort -u >"$out/declared"
grep -vxFf "$out/declared" "$out/exported" && fail "it exports names that no header declares"
for name in ms_watch_open ms_ledger_open ms_capture_begin ms_reader_open ms_allocator_open ms_replay_run ms_cover_choose ms_export_csv; do
    grep -qx $name "$out/exported" || fail "it does not export $name"
done

# ---- each header alone ----
for header in "$prefix"/include/modscope*.h; do
    printf '#include <%s>\n' "${header##*/}" >"$out/alone.c"
    compile "$cc -std=c11" '-fsyntax-only "$out/alone.c"'
    ! command -v c++ >/dev/null || compile c++ '-fsyntax-only -x c++ "$out/alone.c"'
done

# ---- the examples ----
cat >"$out/wanted" <<'END'
as it ran                      132.00 MiB  does not fit
with expandable segments       130.00 MiB  does not fit
with checkpointed blocks       104.00 MiB  fits
with both                      104.00 MiB  fits
END
for way in shared static; do
    libs=$(pkg-config --libs modscope)
    [ $way = shared ] || libs="-Wl,-Bstatic $(pkg-config --static --libs modscope) -Wl,-Bdynamic"
    for example in core_only fits; do
        compile "$cc -std=c11" "examples/$example.c $libs -o \"\$out/$example\""
        is_linked=$(readelf -d "$out/$example" | grep -c 'NEEDED.*libmodscope' || true)
        [ $way = shared ] && wanted=1 || wanted=0
        [ "$is_linked" = $wanted ] || fail "$example is not linked with the $way library"
    done
    "$out/core_only" | grep -qx 'the peak was 1500 bytes, of which' || fail "core_only gives another peak ($way)"
    "$out/fits" tests/corpus/runs/gpt-0.1.0.msc 0.125 >"$out/answer"
    diff "$out/wanted" "$out/answer" || fail "fits gives another answer ($way)"
done
echo "the examples run with libmodscope $version, shared and static"
