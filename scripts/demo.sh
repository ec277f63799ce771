#!/usr/bin/env bash
# The whole thing in about two minutes on two cores: installs what is missing, builds, and fine-tunes scripts/demo_vit, a small ViT that has
# seen shoes and bags, on five kinds of clothes of Fashion-MNIST, with four ways of choosing what learns.  scripts/demo.sh [RUN]
set -eu
cd "$(dirname "$0")/.."
run=${1:-runs/demo}
scripts/setup.sh --demo
make -s -j2
data=/usr/share/datasets/fashion-mnist
if [ ! -d $data ]; then
    scripts/fetch_data.sh fashion-mnist
    data=data-sets/fashion-mnist
fi

names=() rows=()
try() {   # try NAME OPTIONS...: one run, and its line of the table
    local name=$1
    shift
    echo
    echo "== $name: ./train_vit -m scripts/demo_vit -d $data --classes 0-4 --augment flip $*"
    local start=$SECONDS
    ./train_vit -m scripts/demo_vit -d "$data" --classes 0-4 -b 64 --steps 120 --warmup 10 --augment flip --eval-every 1000 --log-every 40 -o "$run/$name" --overwrite "$@"
    names+=("$name")
    rows+=("$(tail -1 "$run/$name/log.csv" | awk -F, -v name="$name" -v seconds=$((SECONDS - start)) \
        '{ printf "%-12s %9.2f %% %8d s %12.1f MiB %12.1f MiB", name, 100 * $6, seconds, $9 / 1048576, $10 / 1048576 }')")
}
try full         --method full
try backrazor    --method backrazor
try prebr++_0.5  --method prebr++ --keep 0.5
try prebr++_0.2  --method prebr++ --keep 0.2

echo
printf '%-12s %11s %10s %16s %16s\n' method accuracy time "kept activations" "whole arena"
printf '%s\n' "${rows[@]}"
echo
echo "The runs are in $run: log.csv, model/ (loads in transformers), state/ (for --resume)."
