#!/usr/bin/env bash
# Makes test/fixtures/parity/*.csv: 50-step logs of the PyTorch twin for every line of options.txt there, which test_parity.sh then
# holds train_vit against. Needs $PREBR_TEST_DATA and a Python with torch ($PYTHON, else .venv/bin/python, else python3).
#   scripts/make_fixtures.sh [NAME...]     all, or only the named lines
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
fixtures=test/fixtures/parity
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
while IFS=: read -r name options; do
    [ $# = 0 ] || [[ " $* " == *" $name "* ]] || continue
    "$python" scripts/reference_vit.py -m "$PREBR_TEST_DATA/vit_tiny_patch16_224" -d "$PREBR_TEST_DATA/cifar-10-batches-bin" \
        -o "$tmp/$name" --eval-every -1 $options </dev/null >"$tmp/out" || { cat "$tmp/out"; exit 1; }
    cp "$tmp/$name/log.csv" "$fixtures/$name.csv"
    echo "$name: $(tail -1 "$fixtures/$name.csv")"
done <$fixtures/options.txt
