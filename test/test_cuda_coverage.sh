#!/usr/bin/env bash
# Every __global__ function of kernels/*.cu and *.cuh was executed by the tests cuda_* of this run, which ctest runs before; and how often.
. "$(dirname "$0")/common.sh"
cuda=${BUILD:-build}/cuda_on_cpu
ls "$cuda"*/test/*.launches >/dev/null 2>&1 || skip "no lists of launches in $cuda"

grep -hoE '__global__ .*' kernels/*.cu* | sed -E 's/__launch_bounds__\([^)]*\) //; s/__global__ void ([a-z0-9_]+)\(.*/\1/' | sort -u >"$tmp/kernels"
sed -E 's/^([0-9]+) \(*([a-z0-9_]+).*/\1 \2/' "$cuda"*/test/*.launches | awk '{ n[$2] += $1 } END { for (k in n) print k, n[k] }' | sort >"$tmp/all"
while read -r kernel; do
    grep "^$kernel " "$tmp/all" >>"$tmp/launched" || fail "$kernel is never launched"
done <"$tmp/kernels"
[ -s "$tmp/kernels" ] || fail "no kernels found"
echo "$(wc -l <"$tmp/kernels") kernels, $(awk '{ s += $2 } END { print s }' "$tmp/launched") launches"
finish
