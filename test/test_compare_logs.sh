#!/bin/bash
# scripts/compare_logs.py: its verdict is its exit status, so every status is asked for.
set -eu
python=${PYTHON:-python3}
here=$(cd "$(dirname "$0")" && pwd)
command -v "$python" >/dev/null || { echo "skipped: no $python"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# log NAME FACTOR STEPS: losses 1/step, the third one times FACTOR
log() {
    echo "step,epoch,loss,accuracy" >"$work/$1.csv"
    awk -v f="$2" -v n="$3" 'BEGIN {
        for (i = 1; i <= n; i++) printf "%d,%g,%.9g,%s\n", i, i / 10, (i == 3 ? f : 1) / i, i == n ? "0.5" : ""
    }' >>"$work/$1.csv"
}
log a 1 30
log same 1 30
log near 1.00005 30
log far 1.001 30
log short 1 20
sed 's/^30,.*/30,3,nan,0.5/' "$work/a.csv" >"$work/nan.csv"
sed '5s/,[^,]*$//' "$work/a.csv" >"$work/ragged.csv"
echo "something else" >"$work/other.csv"
head -1 "$work/a.csv" >"$work/empty.csv"

# expect STATUS TEXT ARGUMENT...: exit status and a piece of what is printed
expect() {
    local want=$1 text=$2 status=0
    shift 2
    "$python" "$here/../scripts/compare_logs.py" "$@" >"$work/said" 2>&1 || status=$?
    if [ $status != "$want" ] || ! grep -qF -- "$text" "$work/said"; then
        echo "compare_logs.py $*: expected status $want and \"$text\", got $status and:"
        cat "$work/said"
        exit 1
    fi
}
cd "$work"
expect 0 "max relative difference: 0.000e+00" a.csv same.csv
expect 0 "max relative difference: 5.000e-05 (step 3)" a.csv near.csv
expect 1 "first past 1e-05: step 3" a.csv near.csv --tolerance 1e-5
expect 1 "first past 0.0001: step 3" a.csv far.csv
expect 0 "accuracy: first difference: none" a.csv far.csv --column accuracy
expect 1 "10 steps are in one log only" a.csv short.csv
expect 1 "accuracy: first past 0.0001: step 20" a.csv short.csv --column accuracy --common
expect 0 "10 steps are in one log only" a.csv short.csv --common
expect 1 "step 30" a.csv nan.csv
expect 0 "first difference: none" nan.csv nan.csv
expect 2 "no column \`lr\`" a.csv same.csv --column lr
expect 2 "ragged.csv: line 5" a.csv ragged.csv
expect 2 "other.csv: no column" other.csv a.csv
expect 2 "empty.csv: no steps" a.csv empty.csv
expect 2 "absent.csv: No such file" a.csv absent.csv
expect 2 "usage" a.csv
echo ok
