#!/usr/bin/env bash
# scripts/gpu_check.sh, with the CPU's programs in the place of the GPU's: every stage that needs no card, the table and its CSV.
. "$(dirname "$0")/common.sh"
need_python struct
[ "$bin" = . ] || skip "the script takes the programs at the top"
GPU_CHECK_TINY=1 quietly scripts/gpu_check.sh "$tmp/check" || finish
for line in "parity: ok" "bench: ok" "PyTorch: skipped" "| ViT 32 px" "| BERT 16"; do
    grep -qF -- "$line" "$tmp/out" || { cat "$tmp/out"; fail "no \"$line\""; }
done
[ "$(grep -c '^== ' "$tmp/check/parity.log")" = 12 ] || fail "not 12 comparisons: $(cat "$tmp/check/parity.log")"
head -1 "$tmp/check/speed_gpu.csv" | grep -q '^model,batch,program,method,samples_per_s,x_torch_compile,mfu,memory,gemm_ms,attention_ms' || fail "$(head -1 "$tmp/check/speed_gpu.csv")"
[ "$(wc -l <"$tmp/check/speed_gpu.csv")" = 13 ] || fail "not 12 rows: $(cat "$tmp/check/speed_gpu.csv")"
awk -F, 'NR > 1 && !($5 > 0)' "$tmp/check/speed_gpu.csv" | grep . && fail "rows without a rate"
finish
