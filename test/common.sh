# What every shell test starts with: a scratch directory that goes away, checks that say what they saw, and skipping (77).
set -u
cd "$(dirname "$0")/.."
bin=.
[ -n "${BUILD:-}" ] && [ -x "$BUILD/train_vit" ] && bin=$BUILD   # the sanitized build keeps its programs to itself
train_vit=$bin/train_vit
pack_images=$bin/data/pack_images
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
failures=0

skip() { echo "skipped: $*"; exit 77; }
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }
finish() { [ "$failures" = 0 ] && echo ok; exit "$failures"; }

# need_data PATH...: the named parts of $PREBR_TEST_DATA, or the test is skipped.
need_data() {
    for part in "$@"; do
        [ -e "${PREBR_TEST_DATA:-/nonexistent}/$part" ] || skip "no $part in PREBR_TEST_DATA"
    done
}

# python: the interpreter that has the named modules, or the test is skipped. $PYTHON, then .venv, then python3.
need_python() {
    for python in "${PYTHON:-}" .venv/bin/python python3; do
        [ -n "$python" ] && command -v "$python" >/dev/null && "$python" -c "import $1" 2>/dev/null && return
    done
    skip "no Python with $1"
}

# quietly COMMAND...: runs it, shows its output only if it fails.
quietly() {
    "$@" >"$tmp/out" 2>&1 || { cat "$tmp/out"; fail "$*"; return 1; }
}

# refuses STATUS TEXT COMMAND...: it must exit with that status and say one line on stderr that contains the text.
refuses() {
    local status=$1 text=$2
    shift 2
    "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
    local got=$?
    [ "$got" = "$status" ] || fail "status $got instead of $status: $*: $(head -c 300 "$tmp/err")"
    grep -qF -- "$text" "$tmp/err" || fail "\"$text\" is not in what it said: $*: $(head -c 300 "$tmp/err")"
    [ "$(wc -l <"$tmp/err")" = 1 ] || fail "not one line: $*: $(head -c 500 "$tmp/err")"
}
