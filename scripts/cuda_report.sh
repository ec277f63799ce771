#!/usr/bin/env bash
# cuda_report.sh [FILE]: compiles every CUDA kernel, the trainers' host code and the programs that test them on a card, in bf16 for compute capability 7.5, 8.0, 8.6, 8.9 and 9.0, in fp32 for 8.0
# and 9.0, and writes what each kernel needs (registers, static shared memory, bytes spilled) to FILE (build/cuda_report.txt). Fails where a kernel spills,
# but for those of heads wider than 128. Needs nvcc, no GPU; without nvcc it says so and is content.
set -eu
cd "$(dirname "$0")/.."
report=${1:-build/cuda_report.txt}
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null || true)
[ -n "$nvcc" ] || { echo "skipped: no nvcc"; exit 0; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# One front end for several back ends.
bf16="-DPREBR_BF16 -gencode arch=compute_80,code=[sm_80,sm_86,sm_89,sm_90] -gencode arch=compute_75,code=sm_75"
fp32="-gencode arch=compute_80,code=[sm_80,sm_90]"
compile() {   # PRECISION SOURCE
    local to="$work/$1-$(basename "$2")"
    "$nvcc" -O3 -std=c++17 -I. ${!1} -Xptxas -v -Xcompiler -fopenmp -c "$2" -o "$to.o" >"$to.log" 2>&1 || { cat "$to.log"; return 1; }
}
export -f compile
export nvcc work bf16 fp32
for precision in bf16 fp32; do printf "$precision %s\n" kernels/*.cu train_*.cu test/cuda_on_cpu/test_ops.cu test/bench_copy.cu; done | xargs -P "${JOBS:-2}" -L1 bash -c 'compile "$@"' compile

mkdir -p "$(dirname "$report")"
for log in "$work"/*.log; do
    precision=$(basename "$log" | cut -d- -f1)
    c++filt <"$log" | awk -v precision="$precision" '
    /Compiling entry function/ { match($0, /\047[^\047]*\047 for/); name = substr($0, RSTART + 1, RLENGTH - 6); match($0, /sm_[0-9]+/); sm = substr($0, RSTART, RLENGTH) }
    /bytes spill stores/ { split($0, a, ","); spill = a[2] + 0 }
    /Used [0-9]+ registers/ {
        match($0, /Used [0-9]+/); registers = substr($0, RSTART + 5, RLENGTH - 5)
        shared = 0; if (match($0, /[0-9]+ bytes smem/)) shared = substr($0, RSTART, RLENGTH) + 0
        sub(/^void /, "", name); sub(/\(.*/, "", name)
        printf "%-60s %s %s %4d registers %6d bytes shared %5d bytes spilled\n", name, precision, sm, registers, shared, spill
    }'
done | sort -u >"$report"
echo "$(wc -l <"$report") kernels and generations in $report"
[ -s "$report" ] || exit 1
if grep -v '256' "$report" | grep -v ' 0 bytes spilled'; then
    echo "these spill"
    exit 1
fi
