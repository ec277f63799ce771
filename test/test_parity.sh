#!/usr/bin/env bash
# 50 steps of every preset and policy against the logs of scripts/reference_vit.py in test/fixtures/parity (made by scripts/make_fixtures.sh):
# each step's loss within 1e-4 relative.
. "$(dirname "$0")/common.sh"
need_data vit_tiny_patch16_224 cifar-10-batches-bin
need_python csv
for log in test/fixtures/parity/*.csv; do
    name=$(basename "$log" .csv)
    options=$(grep "^$name:" test/fixtures/parity/options.txt | cut -d: -f2-)
    [ -n "$options" ] || { fail "no options for $name"; continue; }
    quietly $train_vit -m "$PREBR_TEST_DATA/vit_tiny_patch16_224" -d "$PREBR_TEST_DATA/cifar-10-batches-bin" -o "$tmp/$name" --eval-every -1 $options || continue
    "$python" scripts/compare_logs.py "$log" "$tmp/$name/log.csv" --tolerance 1e-4 >"$tmp/out" || { tail -20 "$tmp/out"; fail "$name ($options)"; }
    echo "$name: $(grep -i 'max' "$tmp/out" | tail -1)"
done
finish
