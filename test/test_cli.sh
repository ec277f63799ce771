#!/usr/bin/env bash
# The command line and everything that can go wrong around it: each trouble is one line that names file, place, cause and way out,
# with exit status 2 for wrong usage and 1 for the rest, and nothing already saved is lost.
. "$(dirname "$0")/common.sh"
export OMP_WAIT_POLICY=passive

model=$tmp/model data=$tmp/data run=$tmp/run
tiny_model "$model"
tiny_data "$data"
scratch=(-m "$model" -d "$data" --from-scratch -b 8 --threads 1 --resample 2)

# ---- --help and --version ----
quietly $train_vit --version
grep -q '^train_vit [0-9]' "$tmp/out" || fail "--version says $(cat "$tmp/out")"
quietly $train_vit --help
[ "$(awk 'length > 100' "$tmp/out" | wc -l)" = 0 ] || fail "--help has lines of more than 100 characters"
tr -s ' \n' ' ' <"$tmp/out" >"$tmp/help"
# Every option is named; numbers and choices show the default that options.txt of a run without options holds, or, where the method
# fills it in, that this is left to the method.
quietly $train_vit -m "$model" -d "$data" --from-scratch -o "$tmp/defaults"
sed -n 's/^ *{OPTION_\([A-Z]*\), "\([a-z-]*\)".*/\1 \2/p' train_vit.cu prebr.h | grep -v GROUP >"$tmp/table"
[ "$(wc -l <"$tmp/table")" -gt 40 ] || fail "the tables of options were not found in train_vit.cu and prebr.h"
while read -r kind name; do
    default=$(sed -n "s/^$name = //p" "$tmp/defaults/options.txt")
    case $kind$name in
        TEXT* | PATH*) grep -qE -- " --$name [A-Z]+ " "$tmp/help" ;;
        FLAG*) grep -q -- " --$name " "$tmp/help" ;;
        *lr | *lr-scale | *gelu) grep -qE -- " --$name [A-Z]+ [^[]*the method's own[^[]*\[(0|auto)\]" "$tmp/help" ;;
        *) grep -qE -- " --$name [A-Z]+ [^[]+\[$default\]" "$tmp/help" ;;
    esac || fail "--help does not name --$name with its default $default"
done <"$tmp/table"

# ---- usage: status 2 ----
refuses 2 "--model is missing" $train_vit -d "$data"
refuses 2 "--data is missing" $train_vit -m "$model" --from-scratch
refuses 2 "no option --bach" $train_vit --bach 3
refuses 2 "no option -q" $train_vit -q
refuses 2 "'more' is no option" $train_vit "${scratch[@]}" more
refuses 2 "--batch needs a value" $train_vit --batch
refuses 2 "--batch takes a whole number from 1 to 65536, not '0'" $train_vit -b 0
refuses 2 "--keep takes a number from 1e-06 to 1, not '1.5'" $train_vit --keep 1.5
refuses 2 "--lr takes a number from 0 to 1000, not 'nan'" $train_vit --lr nan
refuses 2 "--method is one of full, head, bitfit, backrazor, prebr or prebr++, not 'prebr+'" $train_vit --method prebr+
refuses 2 "--column-block 7 does not divide the widths 32 and 64" $train_vit "${scratch[@]}" --method prebr++ --column-block 7
refuses 2 "with --plan" $train_vit "${scratch[@]}" --precision bf16
refuses 2 "--recompute none" $train_vit "${scratch[@]}" --method backrazor --attention materialized --recompute block
refuses 2 "--image-size 5 is less than one patch (8)" $train_vit "${scratch[@]}" --image-size 5
refuses 2 "\"much\" is not a size" $train_vit "${scratch[@]}" --budget much
refuses 2 "class list '0-11': 11 is outside" $train_vit "${scratch[@]}" --classes 0-11
refuses 2 "make no step" $train_vit "${scratch[@]}" --epochs 1 --accumulate 9
refuses 2 "--optimizer sgd: give it a rate with --lr" $train_vit "${scratch[@]}" --optimizer sgd
refuses 2 "--eval: add it" $train_vit "${scratch[@]}" --logits "$tmp/logits"

# ---- a run to be used and damaged ----
quietly $train_vit "${scratch[@]}" --steps 6 --method prebr++ --save-every 3 -o "$run"
whole=$run/model
[ -s "$whole/model.safetensors" ] && [ -s "$whole/config.json" ] && [ -s "$run/state/state.safetensors" ] || fail "the run has not left its files"

refuses 1 "log.csv: a run is already there; go on with it (--resume), replace it (--overwrite) or choose another directory" $train_vit "${scratch[@]}" -o "$run"
refuses 1 "$tmp/nothing/options.txt: No such file or directory; a run that can go on" $train_vit --resume "$tmp/nothing"
refuses 1 "--lr is 0.5 here, 0.0001 in that run; --keep is 0.25 here, 0.5 in that run" $train_vit --resume "$run" --keep 0.25 --lr 0.5
refuses 1 "--budget is 8M here, (not set) in that run" $train_vit --resume "$run" --budget 8M
refuses 2 "leave out --out" $train_vit --resume "$run" -o "$tmp/elsewhere"
refuses 2 "give --model $run/model instead" $train_vit --resume "$run" --eval
quietly $train_vit --resume "$run" && grep -q "nothing is left to do" "$tmp/out" || fail "a finished run resumed says: $(cat "$tmp/out")"
cp -r "$run" "$tmp/unsaved"
rm -r "$tmp/unsaved/state"
refuses 1 "$tmp/unsaved/state/state.safetensors: there is none: the run stopped before its first save" $train_vit --resume "$tmp/unsaved"
cp -r "$run" "$tmp/damaged-run"
head -c 5000 "$run/state/state.safetensors" >"$tmp/damaged-run/state/state.safetensors"
refuses 1 "$tmp/damaged-run/state/state.safetensors" $train_vit --resume "$tmp/damaged-run"
head -3 "$run/options.txt" >"$tmp/damaged-run/options.txt"
refuses 1 "$tmp/damaged-run/options.txt: no line for" $train_vit --resume "$tmp/damaged-run"

# ---- checkpoints ----
# damaged COMMAND: a copy of the model in $tmp/damaged after COMMAND has worked on it (with the copy as working directory)
damaged() {
    rm -rf "$tmp/damaged"
    cp -r "$whole" "$tmp/damaged"
    (cd "$tmp/damaged" && eval "$1")
}
header=$(od -An -tu8 -N8 "$whole/model.safetensors" | tr -d ' ')   # bytes of JSON; the tensors begin 8 bytes after them
refuses_model() { refuses 1 "$1" $train_vit -m "$tmp/damaged" -d "$data" -b 8 --threads 1 --steps 1; }
patch_bytes() { printf "$2" | dd of=model.safetensors bs=1 seek="$1" conv=notrunc 2>/dev/null; }

refuses 1 "$tmp/nothing/config.json: cannot be opened: No such file" $train_vit -m "$tmp/nothing" -d "$data"
refuses 1 "$model/model.safetensors is missing" $train_vit -m "$model" -d "$data"
damaged 'head -c 20000 ../run/model/model.safetensors >model.safetensors'
refuses_model "the file is truncated; download or save it again"
damaged 'head -c 5 ../run/model/model.safetensors >model.safetensors'
refuses_model "$tmp/damaged/model.safetensors: it has 5 bytes"
damaged 'patch_bytes 0 "\xff\xff\xff\xff\xff\xff\xff\xff"'
refuses_model "not a safetensors file"
damaged 'patch_bytes 9 "x"'
refuses_model "$tmp/damaged/model.safetensors: its header is not valid JSON at byte"
damaged 'LC_ALL=C sed -i "s/vit.layernorm.weight/vit.layernorn.weight/" model.safetensors'
refuses_model "$tmp/damaged/model.safetensors: tensor 'vit.layernorm.weight' is missing"
damaged 'LC_ALL=C sed -i "s/\"F32\"/\"X32\"/" model.safetensors'
refuses_model "unknown dtype 'X32'"
damaged 'patch_bytes $((8 + header + 40)) "\x00\x00\xc0\x7f"'
refuses_model "has NaN at element 10"
damaged 'patch_bytes $((8 + header + 40)) "\x00\x00\x80\x7f"'
refuses_model "has infinity at element 10"
damaged 'sed -i "s/\"intermediate_size\":[^,]*/\"intermediate_size\": 96/" config.json'
refuses_model "tensor 'vit.encoder.layer.0.intermediate.dense.weight'"
damaged 'sed -i "s/\"num_hidden_layers\":[^,]*/\"num_hidden_layers\": 3/" config.json'
refuses_model "tensor 'vit.encoder.layer.2.layernorm_before.weight' is missing"
damaged 'sed -i "s/\"num_attention_heads\":[^,]*/\"num_attention_heads\": 3/" config.json'
refuses_model "3 heads do not divide the width 32"
damaged 'head -c 40 ../run/model/config.json >config.json'
refuses_model "$tmp/damaged/config.json"
damaged 'rm model.safetensors; mkdir model.safetensors'
refuses_model "$tmp/damaged/model.safetensors: is not a file"

# ---- data ----
bad=$tmp/bad
mkdir "$bad"
refuses_data() { refuses 1 "$1" $train_vit -m "$model" -d "$bad" --from-scratch -b 8 --threads 1 --steps 1; }
refuses 1 "$tmp/nowhere: No such file" $train_vit -m "$model" -d "$tmp/nowhere" --from-scratch
refuses_data "$bad: holds none of data_batch_1.bin"
{ cifar_records 0 7; printf '\x0a'; head -c 3072 "$train_vit"; } >"$bad/data_batch_1.bin"
refuses_data "$bad/data_batch_1.bin: record 8 (from 0) has label 10, outside the 10 classes 0 .. 9"
cifar_records 0 9 | head -c 30000 >"$bad/data_batch_1.bin"
refuses_data "$bad/data_batch_1.bin: 30000 bytes are not whole records of 3073; the last whole one is record 8 (from 0): fetch the file again"
: >"$bad/data_batch_1.bin"
refuses_data "$bad/data_batch_1.bin: is empty"
cifar_records 0 4 >"$bad/data_batch_1.bin"
refuses_data "--batch 8 is larger than the 5 training images of $bad"
refuses 1 "has no test split to evaluate on" $train_vit -m "$whole" -d "$bad" --eval --threads 1
head -c 5000 "$train_vit" >"$bad/pack"
refuses 1 "$bad/pack" $train_vit -m "$model" -d "$bad/pack" --from-scratch

# IDX (as MNIST), 12 grey images of 28 x 28 in 12 classes: training starts a new head, --eval has only logits to give.
idx=$tmp/idx
mkdir "$idx"
{ printf '\0\0\x08\x03\0\0\0\x0c\0\0\0\x1c\0\0\0\x1c'; head -c $((12 * 784)) "$train_vit"; } >"$idx/train-images-idx3-ubyte"
{ printf '\0\0\x08\x01\0\0\0\x0c\0\1\2\3\4\5\6\7\x08\x09\x0a\x0b'; } >"$idx/train-labels-idx1-ubyte"
cp "$idx/train-images-idx3-ubyte" "$idx/t10k-images-idx3-ubyte"
cp "$idx/train-labels-idx1-ubyte" "$idx/t10k-labels-idx1-ubyte"
quietly $train_vit -m "$whole" -d "$idx" -b 4 --threads 1 --steps 2 && grep -q "its head of 10 classes is left out, the model has 12" "$tmp/out" || fail "no word about the new head"
refuses 1 "$whole: the model knows 10 classes but $idx has 12; fine-tune it first" $train_vit -m "$whole" -d "$idx" --eval --threads 1
quietly $train_vit -m "$whole" -d "$idx" --eval --logits "$tmp/logits" --threads 1
[ "$(wc -c <"$tmp/logits")" = $((12 * 10 * 4)) ] || fail "12 x 10 logits make $(wc -c <"$tmp/logits") bytes"
grep -q accuracy "$tmp/out" && fail "an accuracy over other classes: $(cat "$tmp/out")"
head -c 5000 "$train_vit" >"$idx/t10k-images-idx3-ubyte"
refuses 1 "$idx/t10k-images-idx3-ubyte: does not begin as an IDX file" $train_vit -m "$model" -d "$idx" --from-scratch

# ---- --eval and --predict of what a run made ----
quietly $train_vit -m "$whole" -d "$data" --eval --threads 1
accuracy=$(sed -n 's/.*accuracy \([0-9.]*\) %.*/\1/p' "$tmp/out")
logged=$(tail -1 "$run/log.csv" | cut -d, -f6)
awk "BEGIN {exit !($accuracy == 100 * $logged)}" || fail "--eval says $accuracy %, the run's log $logged"
quietly $train_vit -m "$whole" --predict test/fixtures/corners.jpg --threads 1
[ "$(grep -c '%  ' "$tmp/out")" = 5 ] || fail "--predict does not list five classes: $(cat "$tmp/out")"
refuses 1 "$whole/config.json: Image not of any known type, or corrupt; name a JPEG" $train_vit -m "$whole" --predict "$whole/config.json"
refuses 1 "$tmp/none.jpg: No such file" $train_vit -m "$whole" --predict "$tmp/none.jpg"
head -c 600 test/fixtures/corners.jpg >"$tmp/cut.jpg"
refuses 1 "$tmp/cut.jpg: the file is cut off" $train_vit -m "$whole" --predict "$tmp/cut.jpg"
damaged 'LC_ALL=C sed -i "s/\"classifier.weight\"/\"classified.weight\"/; s/\"classifier.bias\"/\"classified.bias\"/" model.safetensors; sed -i "s/ViTForImageClassification/ViTModel/; s/\"id2label\"/\"no2label\"/" config.json'
refuses 1 "the model has no classifier; fine-tune it first" $train_vit -m "$tmp/damaged" --predict test/fixtures/corners.jpg
refuses 1 "the model has no classifier; fine-tune it first" $train_vit -m "$tmp/damaged" -d "$data" --eval

# ---- places to write to ----
refuses 1 "$model/config.json: is a file, not a directory" $train_vit "${scratch[@]}" -o "$model/config.json"
refuses 1 "/proc/nothing: cannot make this directory" $train_vit "${scratch[@]}" -o /proc/nothing
refuses 1 "/proc/nothing.tmp" $train_vit -m "$whole" -d "$data" --eval --logits /proc/nothing --threads 1


# ---- signals, and a disk that is full ----
# until_step N: waits until the run in $long has logged step N
until_step() { until grep -q "^$1," "$long/log.csv" 2>/dev/null || ! kill -0 $! 2>/dev/null; do sleep 0.02; done; }
steps_saved() { LC_ALL=C od -An -td8 -j$((8 + $(od -An -tu8 -N8 "$1"))) -N8 "$1" | tr -d ' '; }   # the state's first tensor
long=$tmp/long state=$tmp/long/state/state.safetensors
$train_vit "${scratch[@]}" --method prebr++ --steps 1000000 --save-every 1000000 --eval-every -1 -o "$long" >"$tmp/out" 2>"$tmp/err" &
until_step 10
kill -INT $!
wait $!
[ $? = 130 ] && grep -q "signal 2: stopped after step [0-9]*; go on with --resume" "$tmp/out" && grep -q "^stopping as soon as" "$tmp/err" || fail "SIGINT: $(tail -n 3 "$tmp/out" "$tmp/err")"
first=$(steps_saved "$state")
[ "$first" -ge 10 ] || fail "after SIGINT the state has $first steps"
cp "$state" "$tmp/before"

# The state has 280 KB, the model and a log of a few hundred steps less than 200.
(ulimit -f 200; exec $train_vit --resume "$long" --save-every 20) >"$tmp/out" 2>"$tmp/err"
[ $? = 1 ] && [ "$(wc -l <"$tmp/err")" = 1 ] && grep -q "$state: cannot be written: File too large; what was there before is unchanged: make room" "$tmp/err" || fail "a full disk: $(cat "$tmp/err")"
cmp -s "$state" "$tmp/before" || fail "a full disk has changed the state"
quietly $train_vit -m "$long/model" -d "$data" --eval --threads 1

$train_vit --resume "$long" >"$tmp/out" 2>"$tmp/err" &
until_step $((first + 40))
kill -TERM $!
wait $!
[ $? = 143 ] && grep -q "resuming after step $first of" "$tmp/out" && grep -q "signal 15: stopped" "$tmp/out" || fail "SIGTERM: $(tail -n 3 "$tmp/out" "$tmp/err")"
[ "$(steps_saved "$state")" -ge $((first + 40)) ] || fail "after SIGTERM the state has $(steps_saved "$state") steps"
awk -F, 'NR > 1 && $1 != NR - 1 {exit 1}' "$long/log.csv" || fail "the log of a run resumed twice has gaps or repeats"
$train_vit "${scratch[@]}" --steps 1000000 --eval-every -1 >"$tmp/out" 2>&1 &
until grep -q "^step 10/" "$tmp/out" || ! kill -0 $! 2>/dev/null; do sleep 0.02; done
kill -INT $!
wait $!
grep -q "nothing was saved, for lack of --out" "$tmp/out" || fail "SIGINT without --out: $(tail -1 "$tmp/out")"

# ---- --overwrite does not leave the old state to a new run ----
quietly $train_vit "${scratch[@]}" --steps 3 -o "$tmp/twice"
$train_vit "${scratch[@]}" --steps 1000000 --save-every 1000000 --eval-every -1 -o "$tmp/twice" --overwrite >/dev/null 2>&1 &
long=$tmp/twice
until_step 5
kill -KILL $!
wait $! 2>/dev/null
refuses 1 "the run stopped before its first save" $train_vit --resume "$tmp/twice"

# ---- numbers that are not finite any more ----
# set_floats TENSOR COUNT BYTES: in model.safetensors here, its first COUNT floats become the one with those bytes
set_floats() {
    local entry begin
    entry=$(LC_ALL=C grep -ao "\"$1\":{[^}]*}" model.safetensors)
    begin=${entry##*\"data_offsets\":[}
    begin=${begin%%,*}
    patch_bytes $((8 + header + begin)) "$(printf "%0$2d" 0 | sed "s/0/$3/g; s/x/\\\\x/g")"
}
huge=xffxffx7fx7f
refuses_run() { refuses 1 "$1" $train_vit -m "$tmp/damaged" -d "$data" -b 8 --threads 1 --steps 9 "${@:2}"; }
for layer in 0 1; do
    damaged "set_floats vit.encoder.layer.$layer.intermediate.dense.weight 8 $huge"
    refuses_run "step 1: the loss is not finite, first in the output of layer $layer; nothing is saved, for lack of --out; try a smaller --lr"
done
refuses_run "step 1: the loss is not finite, first below the classifier" --method head
refuses_run "after step 0, is saved" -o "$tmp/diverged"
refuses 1 "step 1: the loss is not finite, first in the output of layer 1" $train_vit --resume "$tmp/diverged"
refuses 1 "a run is already there" $train_vit -m "$tmp/damaged" -d "$data" -b 8 -o "$tmp/diverged"
quietly $train_vit -m "$tmp/diverged/model" -d "$data" --eval --threads 1

# A final norm of zeros hides the classifier's huge weights from the logits; the norm's gradient is beyond floats where the label is class 0.
damaged "set_floats classifier.weight 32 $huge; set_floats vit.layernorm.weight 32 x00x00x00x00; set_floats vit.layernorm.bias 32 x00x00x00x00"
refuses_run "the gradient norm is not finite, first in the gradient of norm.weight; nothing is saved" -b 1 --steps 64 --optimizer sgd --momentum 0 --lr 1e-300

# A rate at which the weights run away: whatever breaks first, what is saved is finite and goes on as it is.
for options in "--optimizer sgd --lr 1000 --clip 0" "--optimizer sgd --lr 1000 --clip 0 --save-every 1 --eval-every 1"; do
    rm -rf "$tmp/away"
    refuses 1 "is not finite, first" $train_vit -m "$whole" -d "$data" -b 8 --threads 1 --steps 500 --schedule constant --augment none $options -o "$tmp/away"
    broke=$(sed -n 's/.*step \([0-9]*\):.*/\1/p' "$tmp/err") kept=$(sed -n 's/.*after step \([0-9]*\), is saved.*/\1/p' "$tmp/err")
    echo "$options: $(cat "$tmp/err")"
    [ -n "$kept" ] && [ "$(steps_saved "$tmp/away/state/state.safetensors")" = "$kept" ] || fail "the state is not of step '$kept'"
    refuses 1 "step $broke:" $train_vit --resume "$tmp/away"
    quietly $train_vit -m "$tmp/away/model" -d "$data" --eval --threads 1
done

# ---- --plan and --budget ----
quietly $train_vit -m "$model" --plan --precision bf16
refuses 1 "bytes more than --budget 100K; try a smaller --batch with --accumulate" $train_vit "${scratch[@]}" --budget 100K --steps 1
refuses 1 "bytes more than --budget 100K" $train_vit -m "$model" --plan --budget 100K
finish
