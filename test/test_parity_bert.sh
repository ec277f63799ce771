#!/usr/bin/env bash
# 50 steps of every preset and policy, with dropout and without, against the logs of scripts/reference_bert.py in test/fixtures/parity_bert
# (made by scripts/make_fixtures.sh bert): each step's loss within 1e-4 relative.
. "$(dirname "$0")/common.sh"
need_bert
need_data rte
need_python tokenizers
quietly "$python" scripts/tokenize_glue.py --task rte -d "$PREBR_TEST_DATA/rte" -m "$bert" --max-length 64 -o "$tmp/rte.tok" || finish
for log in test/fixtures/parity_bert/*.csv; do
    name=$(basename "$log" .csv)
    options=$(grep "^$name:" test/fixtures/parity_bert/options.txt | cut -d: -f2-)
    [ -n "$options" ] || { fail "no options for $name"; continue; }
    quietly $train_bert -m "$bert" -d "$tmp/rte.tok" -o "$tmp/$name" --eval-every -1 --save-every 1000 $options || continue
    "$python" scripts/compare_logs.py "$log" "$tmp/$name/log.csv" --tolerance 1e-4 >"$tmp/out" || { tail -20 "$tmp/out"; fail "$name ($options)"; }
    echo "$name: $(grep -i 'max' "$tmp/out" | tail -1)"
    rm -r "${tmp:?}/$name"
done
finish
