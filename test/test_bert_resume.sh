#!/usr/bin/env bash
# A run of train_bert that is stopped and resumed ends as the run that never stopped: model/ and state/ byte for byte, log.csv but for its
# times. The model is a small one from scratch, with dropout; recomputing and keeping give the same bits.
. "$(dirname "$0")/common.sh"
need_python tokenizers
tiny_bert "$tmp/bert"
tiny_text "$tmp"
quietly "$python" scripts/tokenize_glue.py --train "$tmp/train.tsv" --dev "$tmp/dev.tsv" --text-a a --text-b b --label label -m "$tmp/bert" -o "$tmp/own.tok" || finish

base=($train_bert -m "$tmp/bert" -d "$tmp/own.tok" --from-scratch -b 4 --steps 200 --resample 3 --eval-every 5 --threads 1)
run() { "${base[@]}" "$@"; }   # in the background "${base[@]}" itself, whose number is then the program's
untimed() { cut -d, -f1-6,9-10 "$1/log.csv"; }
same() {
    cmp -s "$1/model/model.safetensors" "$2/model/model.safetensors" || fail "$3: the models differ"
    cmp -s "$1/state/state.safetensors" "$2/state/state.safetensors" || fail "$3: the states differ"
    [ "$(untimed "$1")" = "$(untimed "$2")" ] || fail "$3: the logs differ"
}

for options in "--method prebr++ --policy bandit --group-by-length" "--method prebr --policy norm --accumulate 2 --optimizer sgd" "--method full --dropout 0.3"; do
    rm -rf "$tmp/whole" "$tmp/halves"
    quietly run $options -o "$tmp/whole" || continue
    "${base[@]}" $options -o "$tmp/halves" >/dev/null 2>&1 &
    pid=$!
    until grep -q '^3,' "$tmp/halves/log.csv" 2>/dev/null || ! kill -0 $pid 2>/dev/null; do sleep 0.01; done
    kill -INT $pid 2>/dev/null
    wait $pid
    status=$?
    [ $status = 130 ] || fail "$options: exit status $status after SIGINT"
    quietly $train_bert --resume "$tmp/halves" || continue
    same "$tmp/whole" "$tmp/halves" "$options"
done

# A step of very many batches is left where a signal comes; nobody else may train in the same place meanwhile, but read its model.
"${base[@]}" --accumulate 60000 --steps 2 -o "$tmp/slow" >"$tmp/out" 2>"$tmp/err" &
pid=$!
until grep -q "^arena" "$tmp/out" 2>/dev/null || ! kill -0 $pid 2>/dev/null; do sleep 0.01; done
sleep 0.3
refuses 1 "slow: another process is training in it" run --steps 2 -o "$tmp/slow" --overwrite
kill -TERM $pid
wait $pid
[ $? = 143 ] || fail "SIGTERM amid a step: status $?"
[ "$(wc -l <"$tmp/slow/log.csv")" = 1 ] && [ -e "$tmp/slow/state/state.safetensors" ] || fail "SIGTERM amid the first step: $(cat "$tmp/slow/log.csv")"

# Reading a model, even all the time, never touches it or what lies beside it.
mkdir "$tmp/bert.old"
echo precious >"$tmp/bert.old/notes"
"${base[@]}" --steps 60 --save-every 1 --eval-every -1 -o "$tmp/read" >/dev/null 2>"$tmp/err" &
pid=$!
while kill -0 $pid 2>/dev/null; do [ -e "$tmp/read/model" ] && $train_bert -m "$tmp/read/model" --plan >/dev/null 2>&1; done
wait $pid || fail "a run whose model was read: $(cat "$tmp/err")"
$train_bert -m "$tmp/bert" --plan >/dev/null
[ -e "$tmp/bert.old/notes" ] || fail "a directory beside the model was removed"

# Another run in the same place leaves nothing of the first; one that would replace the model it starts from is refused.
quietly run --steps 2 -o "$tmp/read" --overwrite --eval-every -1
[ ! -e "$tmp/read/model-best" ] || fail "--overwrite left model-best"
refuses 1 "model: the run starts from this model and would replace it" $train_bert -m "$tmp/read/model" -d "$tmp/own.tok" -o "$tmp/read" --overwrite
refuses 2 "out has no meaning with --eval" $train_bert -m "$tmp/read/model" -d "$tmp/own.tok" --eval -o "$tmp/read"

# Other data under the same name is noticed.
quietly "$python" scripts/tokenize_glue.py --train "$tmp/train.tsv" --dev "$tmp/dev.tsv" --text-a a --text-b b --label label -m "$tmp/bert" --max-length 8 -o "$tmp/other.tok"
cp "$tmp/own.tok" "$tmp/kept.tok"
mv "$tmp/other.tok" "$tmp/own.tok"
refuses 1 "the run learned from other data" $train_bert --resume "$tmp/read"
mv "$tmp/kept.tok" "$tmp/own.tok"

# A run that was started with relative paths goes on from anywhere.
program=$(realpath "$train_bert")
(cd "$tmp" && quietly "$program" -m bert -d own.tok --from-scratch -b 4 --steps 3 -o near) && (cd / && quietly "$program" --resume "$tmp/near") || fail "a resume from elsewhere"

quietly run -o "$tmp/kept" --method backrazor
for recompute in attention block; do
    quietly run -o "$tmp/$recompute" --method backrazor --recompute $recompute
    cmp -s "$tmp/kept/model/model.safetensors" "$tmp/$recompute/model/model.safetensors" || fail "--recompute $recompute changes the model"
done
[ -e "$tmp/kept/model/vocab.txt" ] || fail "the vocabulary was not saved with the model"
tail -1 "$tmp/kept/log.csv" | cut -d, -f6 | grep -q . || fail "no score in the last line of the log"
refuses 1 "lr" $train_bert --resume "$tmp/halves" --lr 0.5
finish
