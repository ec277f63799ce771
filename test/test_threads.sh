#!/usr/bin/env bash
# The bits of a run do not depend on the number of threads, nor on what is made again in backward; and gradients accumulated over two
# batches are those of one twice as large.
. "$(dirname "$0")/common.sh"
export OMP_WAIT_POLICY=passive   # idle threads give way: the test shares its cores with others

tiny_model "$tmp/model"
tiny_data "$tmp/data"
tiny=(-m "$tmp/model" -d "$tmp/data" --from-scratch -b 7 --steps 5)
real=()
if [ -e "${PREBR_TEST_DATA:-/nonexistent}/vit_tiny_patch16_224" ] && [ -e "$PREBR_TEST_DATA/cifar-10-batches-bin" ]; then
    real=(-m "$PREBR_TEST_DATA/vit_tiny_patch16_224" -d "$PREBR_TEST_DATA/cifar-10-batches-bin" --image-size 64 -b 5 --steps 3)
else
    echo "no real checkpoint in PREBR_TEST_DATA: only a small random model"
fi

# train NAME OPTIONS...: a run in $tmp/NAME
train() { quietly $train_vit "${@:2}" --resample 2 --eval-every -1 -o "$tmp/$1" --overwrite; }
untimed() { cut -d, -f1-6,9 "$tmp/$1/log.csv"; }   # nor the arena, in which each thread has scratch for attention
same() {   # same A B WHAT
    for file in model/model.safetensors state/state.safetensors; do
        cmp -s "$tmp/$1/$file" "$tmp/$2/$file" || fail "$3: $file differs"
    done
    [ "$(untimed "$1")" = "$(untimed "$2")" ] || fail "$3: log.csv differs"
}

same_for_threads() {
    train one "$@" --threads 1
    for threads in 2 3; do
        train more "$@" --threads $threads && same one more "$threads threads, ${*: -5}"
    done
}

for method in "full" "bitfit" "head --optimizer sgd --lr 0.01" "backrazor" "backrazor --attention materialized" "prebr --optimizer sgd --lr 0.01" \
              "prebr++ --policy bandit --importance-weight" "prebr++ --policy norm --gelu regelu2 --attention materialized"; do
    same_for_threads "${tiny[@]}" --method $method
done
if [ ${#real[@]} -gt 0 ]; then
    for method in "full" "backrazor" "prebr++ --policy norm --gelu regelu2"; do
        same_for_threads "${real[@]}" --method $method
    done
fi

# Recomputing makes the same numbers again: the models agree to the bit (log.csv does not: less is kept).
for method in "full" "backrazor" "prebr --keep 0.3" "prebr++ --gelu regelu2" "prebr++ --attention materialized"; do
    train none "${tiny[@]}" --threads 1 --method $method
    for recompute in attention block; do
        train again "${tiny[@]}" --threads 1 --method $method --recompute $recompute
        cmp -s "$tmp/none/model/model.safetensors" "$tmp/again/model/model.safetensors" || fail "$method, --recompute $recompute: the model differs"
        cmp -s "$tmp/none/state/state.safetensors" "$tmp/again/state/state.safetensors" || fail "$method, --recompute $recompute: the state differs"
    done
done

# Two batches of 4 are one of 8 but for the order of additions: losses of all steps within 1e-4.
for method in full prebr++; do
    train eight "${tiny[@]}" --threads 1 --method $method -b 8 --steps 8
    train twice "${tiny[@]}" --threads 1 --method $method -b 4 --accumulate 2 --steps 8
    paste -d, <(cut -d, -f3,5 "$tmp/eight/log.csv") <(cut -d, -f3,5 "$tmp/twice/log.csv") >"$tmp/pairs"
    awk -F, 'NR > 1 {
        loss = ($1 - $3) / $1; norm = ($2 - $4) / $2
        if (loss * loss > 1e-8 || norm * norm > 1e-6) {print "step " NR - 1 ": loss " $1 " and " $3 ", gradient norm " $2 " and " $4; bad = 1}
    } END {exit bad || NR != 9}' "$tmp/pairs" || fail "$method: --accumulate 2 of 4 images is not one batch of 8"
done
finish
