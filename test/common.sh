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
export ASAN_OPTIONS=detect_leaks=0   # texts and tables that a program needs to its end are freed with it


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

# tiny_model DIR: the config of a ViT of 2 layers, 32 wide, for images of 32 px and 10 classes, to be used with --from-scratch.
tiny_model() {
    mkdir -p "$1"
    echo '{"model_type": "vit", "architectures": ["ViTForImageClassification"], "hidden_size": 32, "num_hidden_layers": 2,
           "num_attention_heads": 2, "intermediate_size": 64, "patch_size": 8, "image_size": 32, "num_labels": 10}' >"$1/config.json"
}

# cifar_records FROM TO [LABEL...]: CIFAR-10 records whose pixels are whatever the trainer's own file holds there; labels 0 .. 9 in turn.
cifar_records() {
    local i
    for ((i = $1; i <= $2; i++)); do
        printf "\\x$(printf %02x $((i % 10)))"
        tail -c +$((1 + i * 3072)) "$train_vit" | head -c 3072
    done
}

# tiny_data DIR: 64 training and 16 test images as a CIFAR-10 directory.
tiny_data() {
    mkdir -p "$1"
    cifar_records 0 63 >"$1/data_batch_1.bin"
    cifar_records 64 79 >"$1/test_batch.bin"
}
