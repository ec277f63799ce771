#!/usr/bin/env bash
# What is wrong with text, a token file or a model that does not fit it is one line, with the way out; so are options that contradict.
. "$(dirname "$0")/common.sh"
need_python tokenizers
tiny_bert "$tmp/bert"
tiny_text "$tmp"
tokenize="$python scripts/tokenize_glue.py --text-a a --text-b b"
quietly $tokenize --label label --train "$tmp/train.tsv" --dev "$tmp/dev.tsv" -m "$tmp/bert" -o "$tmp/own.tok" || finish
quietly $tokenize --train "$tmp/train.tsv" -m "$tmp/bert" -o "$tmp/unlabelled.tok"
run="$train_bert -m $tmp/bert --threads 1 --from-scratch --steps 2"

refuses 1 "its training split has no labels" $run -d "$tmp/unlabelled.tok"
head -c 300 "$tmp/own.tok" > "$tmp/cut.tok"
refuses 1 "cut off or damaged" $run -d "$tmp/cut.tok"
refuses 1 "is not a token file" $run -d "$tmp/train.tsv"
refuses 1 "No such file" $run -d "$tmp/missing.tok"
refuses 1 "--batch 100 is larger than the 24 training sequences" $run -d "$tmp/own.tok" -b 100
refuses 2 "--max-length 100 is more than the 40 positions" $run -d "$tmp/own.tok" --max-length 100
refuses 1 "more than --max-length 5; make it again" $run -d "$tmp/own.tok" --max-length 5
refuses 2 "--dropout -0.5" $run -d "$tmp/own.tok" --dropout -0.5
refuses 2 "--column-block 5 does not divide" $run -d "$tmp/own.tok" --method prebr++ --column-block 5
refuses 2 "--predictions is written by --eval" $run -d "$tmp/own.tok" --predictions "$tmp/p.tsv"
refuses 1 "made with a vocabulary of 15 tokens" sh -c "sed 's/\"vocab_size\": 15/\"vocab_size\": 9/' $tmp/bert/config.json > $tmp/small.json; mkdir -p $tmp/small;
    mv $tmp/small.json $tmp/small/config.json; exec $train_bert -m $tmp/small --from-scratch -d $tmp/own.tok"
mkdir "$tmp/other"
cp "$tmp/bert/config.json" "$tmp/other"
sed 's/^b$/B/' "$tmp/bert/vocab.txt" > "$tmp/other/vocab.txt"
refuses 1 "made with another vocabulary" $train_bert -m "$tmp/other" --from-scratch -d "$tmp/own.tok"
mkdir "$tmp/short"
sed 's/"max_position_embeddings": 40/"max_position_embeddings": 6/' "$tmp/bert/config.json" > "$tmp/short/config.json"
refuses 1 "knows 6 positions; make it again with --max-length 6" $train_bert -m "$tmp/short" --from-scratch -d "$tmp/own.tok"
mkdir "$tmp/single"
sed 's/"type_vocab_size": 2/"type_vocab_size": 1/' "$tmp/bert/config.json" > "$tmp/single/config.json"
refuses 1 "2 kinds of segments" $train_bert -m "$tmp/single" --from-scratch -d "$tmp/own.tok"
refuses 1 "model.safetensors is missing" $train_bert -m "$tmp/bert" -d "$tmp/own.tok"

quietly $run -d "$tmp/own.tok" -o "$tmp/run" || finish
quietly $tokenize --label label --labels no,yes,maybe --dev "$tmp/dev.tsv" -m "$tmp/bert" -o "$tmp/three.tok"
refuses 1 "the model has 2 outputs but" $train_bert -m "$tmp/run/model" --eval -d "$tmp/three.tok"
quietly $tokenize --label label --labels yes,no --dev "$tmp/dev.tsv" -m "$tmp/bert" -o "$tmp/turned.tok"
refuses 1 "class 0 is 'no' in the model and 'yes' in" $train_bert -m "$tmp/run/model" --eval -d "$tmp/turned.tok"
refuses 1 "has no test split" $train_bert -m "$tmp/run/model" --eval --split test -d "$tmp/own.tok"
refuses 1 "already" $run -d "$tmp/own.tok" -o "$tmp/run"
quietly $train_bert -m "$tmp/run/model" --eval --split train -d "$tmp/unlabelled.tok" --predictions "$tmp/p.tsv"
grep -q "predictions only" "$tmp/out" || fail "predictions of an unlabelled split"
[ "$(wc -l < "$tmp/p.tsv")" = 25 ] && grep -q $'^0\t\(yes\|no\)$' "$tmp/p.tsv" || fail "what the predictions file holds"
refuses 1 "not finite" $train_bert -m "$tmp/run/model" -d "$tmp/own.tok" --lr 1e3 --steps 200 --clip 0 --optimizer sgd -b 2

# Scores instead of classes.
quietly $tokenize --label score --regression --train "$tmp/train.tsv" --dev "$tmp/dev.tsv" -m "$tmp/bert" -o "$tmp/scores.tok"
quietly $run -d "$tmp/scores.tok" -o "$tmp/regression" --steps 20 --lr 1e-3
quietly $train_bert -m "$tmp/regression/model" --eval -d "$tmp/scores.tok" --predictions "$tmp/p.tsv"
grep -q "pearson .*spearman .*loss" "$tmp/out" || fail "metrics of a regression: $(cat "$tmp/out")"
finish
