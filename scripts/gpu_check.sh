#!/usr/bin/env bash
# gpu_check.sh [OUTDIR]: everything that only a machine with a GPU can tell, in one go and under ten minutes: builds, the ops' tests on the card,
# compute-sanitizer, 50 steps beside the CPU build, and the benchmark table. OUTDIR (build/check) gets a log for each stage and speed_gpu.csv; the
# table comes last. A stage that fails or takes too long is reported and the others go on; the exit status says whether tests and parity passed. The sanitizers
# and the table take what is left of ten minutes.
#
#   GPU_CHECK_TINY=1 scripts/gpu_check.sh   the same script without a GPU: CPU programs, toy models (test/test_gpu_check.sh)
#
# PyTorch comes into the table where $PYTHON (.venv/bin/python, python3) has torch with CUDA, and transformers.
set -u
cd "$(dirname "$0")/.."
out=${1:-build/check}
tiny=${GPU_CHECK_TINY:-}
mkdir -p "$out"
failed=""
export PATH=$PATH:/usr/local/cuda/bin CUDA_DEVICE_ORDER=PCI_BUS_ID   # the first card is then the same for nvidia-smi and CUDA

# stage NAME SECONDS COMMAND...: its output goes to OUTDIR/NAME.log.
stage() {
    local name=$1 seconds=$2 start=$SECONDS
    shift 2
    if timeout -k 10 "$seconds" "$@" >"$out/$name.log" 2>&1; then
        echo "$name: ok, $((SECONDS - start)) s"
    else
        echo "$name: FAILED with status $? after $((SECONDS - start)) s; the end of $out/$name.log:"
        tail -5 "$out/$name.log" | sed 's/^/    /'
        failed="$failed $name"
        return 1
    fi
}

# programs NAME MAKE-OPTIONS...: builds both trainers and keeps them in OUTDIR/NAME.
programs() {
    local name=$1
    shift
    make -j"$(nproc)" train_vit train_bert "$@" && mkdir -p "$out/$name" && cp train_vit train_bert "$out/$name/"
}

# parity: 50 steps of toy models with both builds, fp32, one rate for all and exact GELU: each step's loss within 1e-4.
parity() {
    local work status=0 build options
    work=$(mktemp -d)
    python3 - "$work" <<'P'
import sys
sys.path.insert(0, "scripts")
import bench_gpu, bench_vit
work = sys.argv[1]
bench_vit.make_noise(work + "/noise")
bench_gpu.write_tokens(work + "/16.tok", 16)
bench_gpu.write_config(work + "/vit", "train_vit", 2, 64, 2, 5)
bench_gpu.write_config(work + "/bert", "train_bert", 2, 64, 2, 16)
P
    for options in "--method full" "--method bitfit" "--method backrazor" "--method prebr --resample 10" "--method prebr++ --resample 10" "--method prebr++ --policy norm --resample 10"; do
        for kind in vit bert; do
            local data=$work/noise
            [ $kind = bert ] && data=$work/16.tok
            for build in cpu fp32; do
                "$out/$build/train_$kind" -m "$work/$kind" -d "$data" --from-scratch -b 4 --steps 50 --lr 1e-3 --warmup 0 --eval-every -1 --head-lr-scale 1 \
                    --bias-lr-scale 1 --column-lr-scale 1 --gelu exact -o "$work/$build" --overwrite $options >"$work/said" 2>&1 || { cat "$work/said"; status=1; }
            done
            echo "== $kind $options"
            python3 scripts/compare_logs.py "$work/cpu/log.csv" "$work/fp32/log.csv" --tolerance 1e-4 || status=1
        done
    done
    rm -rf "$work"
    return $status
}

# The ops' tests under compute-sanitizer, as far as they come in a minute.
sanitize() {
    local quiet=""
    [ "$1" = memcheck ] && quiet="--report-api-errors no"   # libraries try what a driver may not have; our own calls are checked
    timeout -k 5 60 compute-sanitizer --tool "$1" $quiet --error-exitcode 1 "$out/test_ops_bf16"
    local status=$?
    [ $status = 124 ] || return $status
    echo "stopped after a minute"
    ! grep -qE '^========= (Invalid|Error|Warning)' "$out/$1.log"
}

export -f programs parity sanitize
export out

if [ "$tiny" ]; then
    mkdir -p "$out/cpu" "$out/fp32" "$out/bf16"
    for build in cpu fp32 bf16; do ln -sf "$PWD/train_vit" "$PWD/train_bert" "$out/$build/"; done
    card="no card" bandwidth=100
else
    command -v nvcc >/dev/null || { echo "there is no nvcc: install the CUDA toolkit"; exit 1; }
    cards=$(nvidia-smi --query-gpu=name --format=csv,noheader) && [ "$cards" ] || { echo "there is no GPU with a driver"; exit 1; }
    card=${cards%%$'\n'*}
    { nvidia-smi; nvcc --version; date; } >"$out/machine.txt"
    if echo '#include <dnnl.h>' | c++ -E -x c++ - >/dev/null 2>&1; then
        stage build_cpu 120 bash -c "programs cpu BACKEND=cpu"
    else
        echo "parity: skipped, there is no oneDNN to build for the CPU with"
    fi
    stage build_fp32 240 bash -c "programs fp32 BACKEND=cuda PRECISION=fp32 && make -j$(nproc) BACKEND=cuda PRECISION=fp32 gpu_tests && cp build/cuda-fp32/test_ops $out/test_ops_fp32"
    stage build_bf16 240 bash -c "programs bf16 BACKEND=cuda PRECISION=bf16 && make -j$(nproc) BACKEND=cuda PRECISION=bf16 gpu_tests && cp build/cuda-bf16/test_ops build/cuda-bf16/bench_copy $out/ && mv $out/test_ops $out/test_ops_bf16"
    stage ops_fp32 60 "$out/test_ops_fp32"
    stage ops_bf16 60 "$out/test_ops_bf16"
    if command -v compute-sanitizer >/dev/null; then
        stage memcheck 90 bash -c "sanitize memcheck"
        stage racecheck 90 bash -c "sanitize racecheck"
    else
        echo "memcheck, racecheck: skipped, there is no compute-sanitizer"
    fi
    stage bandwidth 60 "$out/bench_copy"
    bandwidth=$(grep -oE '^[0-9.]+' "$out/bandwidth.log" | head -1)
fi
[ -x "$out/cpu/train_vit" ] && stage parity 120 bash -c parity

python=""
for p in "${PYTHON:-}" .venv/bin/python python3; do
    [ "$tiny" ] && break
    [ -n "$p" ] && command -v "$p" >/dev/null && "$p" -c 'import torch, transformers; assert torch.cuda.is_available()' 2>/dev/null && { python=$p; break; }
done
[ "$python" ] || echo "PyTorch: skipped, no interpreter has torch with CUDA and transformers"
left=$((560 - SECONDS))
[ $left -gt 60 ] || left=60
stage bench $((left + 100)) python3 scripts/bench_gpu.py --limit $left --programs "$out/bf16" --csv "$out/speed_gpu.csv" --card "$card" --bandwidth "${bandwidth:-0}" --python "$python" \
    ${tiny:+--tiny --steps 3 --warm-up 1}
echo
echo "$card, copies at ${bandwidth:-unknown} GB/s, $(date +%F)"
grep '^|' "$out/bench.log"
[ -z "$failed" ] || echo "FAILED:$failed"
[ -z "$failed" ]
