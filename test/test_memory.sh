#!/usr/bin/env bash
# Memory is what the plan says: to the byte in the arena, within 5 % for the whole process. (That no tensor leaves its place in the
# arena, and none is overwritten while it is needed, is test_arena's part; that the mix of layers changes at constant size, test_prebr's.)
. "$(dirname "$0")/common.sh"
export OMP_WAIT_POLICY=passive
tiny_model "$tmp/model"
tiny_data "$tmp/data"

config() {   # config DIR WIDTH LAYERS HEADS SIZE CLASSES
    mkdir -p "$1"
    echo "{\"model_type\": \"vit\", \"architectures\": [\"ViTForImageClassification\"], \"hidden_size\": $2, \"num_hidden_layers\": $3,
           \"num_attention_heads\": $4, \"intermediate_size\": $((4 * $2)), \"patch_size\": 16, \"image_size\": $5, \"num_labels\": $6}" >"$1/config.json"
}
planned_bytes() { sed -n 's/^ *to the byte *\([0-9]*\) .*/\1/p' "$1"; }
column() { cut -d, -f"$1" "$2" | tail -n +2 | sort -u; }   # the different values of a column of a log

# ---- the plan of every preset, and the arena and kept bytes of its run ----
for method in "full" "head" "bitfit" "backrazor" "backrazor --attention materialized" "prebr --gelu regelu2" "prebr --policy norm --attention materialized" \
              "prebr++ --gelu regelu2" "prebr++ --attention materialized --policy uniform" "prebr++ --recompute block" "full --recompute attention"; do
    options="--method $method -b 8 --threads 1"
    quietly $train_vit -m "$tmp/model" -d "$tmp/data" --plan $options || continue
    mv "$tmp/out" "$tmp/plan"
    for region in parameters gradients "optimizer state" "kept activations" scratch "arena: the peak"; do
        grep -q "^ *$region" "$tmp/plan" || fail "$method: the plan has no line for $region"
    done
    quietly $train_vit -m "$tmp/model" -d "$tmp/data" --from-scratch $options --steps 9 --resample 2 -o "$tmp/run" --overwrite || continue
    [ "$(column 10 "$tmp/run/log.csv")" = "$(planned_bytes "$tmp/plan")" ] || fail "$method: $(column 10 "$tmp/run/log.csv") bytes used, $(planned_bytes "$tmp/plan") planned"
    [ "$(column 9 "$tmp/run/log.csv" | wc -l)" = 1 ] || fail "$method: kept bytes vary: $(column 9 "$tmp/run/log.csv" | tr '\n' ' ')"
    echo "$method: $(planned_bytes "$tmp/plan") bytes planned and used, $(column 9 "$tmp/run/log.csv") kept in every step"
done

# ---- --budget ----
budget_run() { $train_vit -m "$tmp/model" -d "$tmp/data" --from-scratch -b 8 --threads 1 --steps 1 --eval-every -1 -o "$tmp/run" --overwrite --budget "$@" >"$tmp/out" 2>"$tmp/err"; }
quietly $train_vit -m "$tmp/model" -d "$tmp/data" --plan -b 8 --threads 1
most=$(planned_bytes "$tmp/out")
budget_run 1000 && fail "a budget of 1000 bytes is accepted"
missing=$(sed -n 's/.* \([0-9]*\) bytes more than.*/\1/p' "$tmp/err")
least=$((1000 + ${missing:-0}))
[ "$least" -gt 1000 ] && [ "$least" -lt "$most" ] || fail "the smallest setting needs $least bytes, without a budget $most"
budget_run $((least - 1)) && fail "a budget of one byte less than the smallest setting is accepted"
grep -q " 1 bytes more than" "$tmp/err" || fail "one byte is missing, but: $(cat "$tmp/err")"
for budget in $least $(((3 * least + most) / 4)) $(((least + most) / 2)) $(((least + 3 * most) / 4)) $most; do
    budget_run $budget || { fail "budget $budget: $(cat "$tmp/err")"; continue; }
    used=$(column 10 "$tmp/run/log.csv")
    [ "$used" -le "$budget" ] || fail "budget $budget, used $used"
    echo "$(grep '^budget' "$tmp/out"), used $used of $budget bytes"
done
[ "$used" = "$most" ] && grep -q -- "--gelu exact --recompute none" "$tmp/out" || fail "where everything fits something was changed: $(grep '^budget' "$tmp/out")"

# ---- what DESIGN aims at: ViT-B/16, 224 px, batch 128, bf16 activations ----
config "$tmp/base" 768 12 12 224 1000
plan_base() {   # plan_base MOST OPTIONS...: MiB of the arena, at most MOST
    quietly $train_vit -m "$tmp/base" --plan --precision bf16 -b 128 --threads 1 "${@:2}"
    local mib=$((($(planned_bytes "$tmp/out") + 1048575) / 1048576))
    echo "ViT-B/16, batch 128, bf16, ${*:2}: $mib MiB"
    [ "$mib" -le "$1" ] || fail "more than $1 MiB"
}
plan_base 6500 --method full
plan_base 6500 --method prebr++ --keep 0.5 --gelu regelu2
plan_base 5200 --method prebr++ --keep 0.5 --gelu regelu2 --recompute attention
plan_base 3440 --method prebr++ --keep 0.5 --gelu exact --recompute block

# ---- the process: what it holds beside the arena is what a run of a tiny model holds, and little more ----
case $bin in *sanitize*) echo "sanitizers need memory of their own: the process is not measured"; finish ;; esac
# measure OPTIONS...: a run in $tmp/run until it has trained, been evaluated and saved twice; its figures in KiB
measure() {
    $train_vit "$@" --steps 1000000 --eval-every 1 --save-every 1 --threads 1 >"$tmp/out" 2>&1 &
    until grep -q '^3,' "$tmp/run/log.csv" 2>/dev/null || ! kill -0 $! 2>/dev/null; do sleep 0.05; done
    cp "/proc/$!/status" "$tmp/status" && cp "/proc/$!/smaps" "$tmp/smaps" || fail "$*: $(cat "$tmp/out")"
    kill -INT $!
    wait $!
    held=$(awk '/^VmHWM/ {print $2}' "$tmp/status")
    arena=$(($(column 10 "$tmp/run/log.csv") / 1024))
}
config "$tmp/tiny" 192 12 3 96 10
rm -rf "$tmp/run"
measure -m "$tmp/model" -d "$tmp/data" --from-scratch -b 1 -o "$tmp/run"
baseline=$((held - arena))
check_process() {   # check_process NAME
    local pages=$(((arena + 4) / 4 * 4))   # KiB of the mapping: whole pages
    awk -v held="$held" -v arena="$arena" -v base="$baseline" -v name="$1" 'BEGIN {
        printf "%s: arena %.1f MiB; the process held %.1f MiB at most, without the baseline of %.1f %+.2f %%\n", name, arena / 1024, held / 1024, base / 1024, 100 * ((held - base) / arena - 1)
        exit !(held >= arena && held - base <= 1.05 * arena)}' || fail "$1: not within 5 % of the plan"
    # Every page of the arena is there: the mapping of its size is resident as a whole.
    awk -v pages="$pages" '/^Size:/ {size = $2} /^Rss:/ && (size == pages || size == pages - 4) {found = 1; if ($2 != size) {print "only " $2 " of " size " KiB of the arena are in use"; exit 1}}
        END {if (!found) {print "no mapping of " pages " KiB"; exit 1}}' "$tmp/smaps" || fail "$1: the arena is not used up to its size"
}
for method in "full" "prebr++ --gelu regelu2" "prebr --policy norm --recompute block"; do
    rm -rf "$tmp/run"
    measure -m "$tmp/tiny" -d "$tmp/data" --from-scratch -b 64 --method $method -o "$tmp/run"
    check_process "$method"
done
mv "$tmp/run/model" "$tmp/checkpoint"
rm -rf "$tmp/run"
measure -m "$tmp/checkpoint" -d "$tmp/data" -b 32 --method full -o "$tmp/run"   # a mapped file while it is loaded
check_process "full, from a checkpoint"
finish
