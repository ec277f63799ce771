#!/usr/bin/env bash
# A run that is stopped and resumed ends as the run that never stopped: model/ and state/ byte for byte, log.csv but for its times.
. "$(dirname "$0")/common.sh"
need_data vit_tiny_patch16_224 cifar-10-batches-bin

run=($train_vit -m "$PREBR_TEST_DATA/vit_tiny_patch16_224" -d "$PREBR_TEST_DATA/cifar-10-batches-bin" --classes 0-3 --image-size 48 -b 4
     --steps 9 --resample 2 --eval-every -1)
# stop_after STEP SIGNAL OPTIONS...: that run, into $tmp/halves, until the step is logged
stop_after() {
    local step=$1 signal=$2
    shift 2
    rm -rf "$tmp/halves"
    "${run[@]}" "$@" -o "$tmp/halves" >"$tmp/out" 2>&1 &
    until grep -q "^$step," "$tmp/halves/log.csv" 2>/dev/null || ! kill -0 $! 2>/dev/null; do sleep 0.01; done
    kill -$signal $!
    wait $! 2>/dev/null
}
untimed() { cut -d, -f1-6,9-10 "$1/log.csv"; }
same() {
    cmp -s "$1/model/model.safetensors" "$2/model/model.safetensors" || fail "$3: the models differ"
    cmp -s "$1/state/state.safetensors" "$2/state/state.safetensors" || fail "$3: the states differ"
    [ "$(untimed "$1")" = "$(untimed "$2")" ] || fail "$3: the logs differ"
}

for options in "--method prebr++ --policy bandit" "--method prebr++ --policy norm --accumulate 2" "--method prebr --policy bandit --optimizer sgd --lr 0.01" \
               "--method full --schedule linear --warmup 3" "--method backrazor"; do
    rm -rf "$tmp/whole"
    quietly "${run[@]}" $options -o "$tmp/whole" || continue
    # Killed without warning after step 4 or later, while later saves are under way: the state is that of some completed step.
    stop_after 4 KILL $options --save-every 1
    quietly $train_vit --resume "$tmp/halves" || continue
    same "$tmp/whole" "$tmp/halves" "$options, killed"

    stop_after 2 INT $options
    status=$?
    [ $status = 130 ] || fail "$options: exit status $status after SIGINT: $(cat "$tmp/out")"
    quietly $train_vit --resume "$tmp/halves" || continue
    same "$tmp/whole" "$tmp/halves" "$options, interrupted"
done

refuses 1 "lr" $train_vit --resume "$tmp/halves" --lr 0.5
finish
