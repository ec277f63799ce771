#!/usr/bin/env bash
# What learns under each preset, seen from outside: which tensors and columns of the model a run has changed, and how far. And where a
# sparse preset keeps everything, it is `full`.
. "$(dirname "$0")/common.sh"
need_python "json, struct, array"
export OMP_WAIT_POLICY=passive
tiny_model "$tmp/config"
tiny_data "$tmp/data"
common=(-d "$tmp/data" -b 8 --threads 1 --eval-every -1 --warmup 0 --schedule constant --gelu exact --head-lr-scale 1 --bias-lr-scale 1 --column-lr-scale 1)

# train NAME OPTIONS...: from $tmp/start to $tmp/NAME
train() { quietly $train_vit -m "$tmp/start" "${common[@]}" "${@:2}" -o "$tmp/$1" --overwrite; }
changed() { quietly "$python" test/method.py "$@"; }   # changed WHAT [NUMBER...] BEFORE AFTER
# A start whose classifier is not zero, so that every gradient is there from the first step.
quietly $train_vit -m "$tmp/config" --from-scratch "${common[@]}" --steps 8 --lr 1e-2 -o "$tmp/first"
mv "$tmp/first/model" "$tmp/start"

for rule in "--lr 1e-3" "--optimizer sgd --lr 0.1"; do
    for preset in "all full" "head head" "bitfit bitfit" "all backrazor"; do
        set -- $preset
        train run --method $2 $rule --steps 3 && changed $1 "$tmp/start" "$tmp/run/model"
    done
    for policy in bandit uniform norm; do
        train run --method prebr --policy $policy --keep 0.5 $rule --steps 3 && changed matrices 1 "$tmp/start" "$tmp/run/model"
        train run --method prebr++ --policy $policy --keep 0.25 --column-block 8 $rule --steps 3 && changed columns 8 0.25 "$tmp/start" "$tmp/run/model"
    done
    train run --method prebr++ --keep 0.1 --column-block 1 --attention materialized --gelu regelu2 $rule --steps 2 && changed columns 1 0.1 "$tmp/start" "$tmp/run/model"
    train run --method prebr++ --keep 0.25 --column-block 8 --resample 2 $rule --steps 8 && changed at-least 8 0.25 "$tmp/start" "$tmp/run/model"
done

# Which columns is the seed's choice, and no other option's.
drawn() {   # drawn NAME OPTIONS...: the sampled columns in $tmp/NAME
    train run --method prebr++ --keep 0.5 --column-block 8 --steps 2 "${@:2}" && changed columns 8 0.5 "$tmp/start" "$tmp/run/model" && cp "$tmp/out" "$tmp/$1"
}
drawn columns1 --seed 1 --lr 1e-3
drawn columns1again --seed 1 --lr 1e-2 --augment none
drawn columns2 --seed 2 --lr 1e-3
cmp -s "$tmp/columns1" "$tmp/columns1again" || fail "the same seed draws other columns"
cmp -s "$tmp/columns1" "$tmp/columns2" && fail "another seed draws the same columns"

# Rates of a kind and importance weights (1 / 0.5 where every arm is equally likely) are factors of one SGD step.
one_step="--optimizer sgd --lr 0.1 --momentum 0 --weight-decay 0 --clip 0 --steps 1 --keep 0.5"
for method in "prebr" "prebr++"; do
    train plain --method $method $one_step
    train scaled --method $method $one_step --head-lr-scale 2 --bias-lr-scale 3 --column-lr-scale 5
    changed scaled 2 3 5 "$tmp/start" "$tmp/plain/model" "$tmp/scaled/model"
    train weighted --method $method $one_step --importance-weight
    changed scaled 1 1 2 "$tmp/start" "$tmp/plain/model" "$tmp/weighted/model"
done
train run --method prebr --keep 0.5 --optimizer sgd --lr 0.1 --steps 3 --detach-frozen && changed detached "$tmp/start" "$tmp/run/model"
train run --method prebr --keep 0.5 --optimizer sgd --lr 0.1 --steps 3
"$python" test/method.py detached "$tmp/start" "$tmp/run/model" >/dev/null 2>&1 && fail "without --detach-frozen no gradient passes a frozen layer's attention"

# Keeping all of it is `full`: the same losses and gradient norms but for the order of additions.
for attention in flash materialized; do
    train full --method full --lr 1e-3 --steps 12 --attention $attention
    for method in "prebr++ --keep 1" "prebr++ --keep 1 --importance-weight --policy uniform" "prebr --keep 1 --prune 0" "backrazor --prune 0"; do
        train run --method $method --lr 1e-3 --steps 12 --resample 5 --attention $attention
        paste -d, <(cut -d, -f3,5 "$tmp/full/log.csv") <(cut -d, -f3,5 "$tmp/run/log.csv") | awk -F, 'NR > 1 {
            loss = ($1 - $3) / $1; norm = ($2 - $4) / $2
            if (loss * loss > 1e-10 || norm * norm > 1e-8) {print "step " NR - 1 ": " $0; bad = 1}
        } END {exit bad || NR != 13}' || fail "$method is not full, --attention $attention"
    done
    train run --method prebr++ --keep 0.9 --lr 1e-3 --steps 12 --attention $attention
    cmp -s <(cut -d, -f3 "$tmp/full/log.csv") <(cut -d, -f3 "$tmp/run/log.csv") && fail "prebr++ --keep 0.9 gives the losses of full"
done
finish
