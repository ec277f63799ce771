#!/usr/bin/env bash
# scripts/tokenize_glue.py: every task's columns, quotes, BOM, CRLF, JSON lines, truncation and label kinds; what is wrong is one line.
. "$(dirname "$0")/common.sh"
need_python tokenizers
tokenize="$python scripts/tokenize_glue.py"
d=$tmp/data
mkdir -p "$d"
printf '%s\n' '[PAD]' '[UNK]' '[CLS]' '[SEP]' '[MASK]' a b c d '"' is not 0 1 > "$tmp/vocab.txt"

# show FILE: task, metrics, classes, then "split label: ids / segments" a line.
show() {
    "$python" - "$1" <<'P'
import struct, sys
data = open(sys.argv[1], "rb").read()
magic, version, vocabulary, h, classes, text, *counts, labelled, tokens, pad, _ = struct.unpack("<8sIIQIIIIIIQII", data[:64])
n, at = sum(counts), 64 + text
print("|".join(data[64:at].rstrip(b"\0").decode().splitlines()), pad)
offset = struct.unpack(f"<{n + 1}Q", data[at:at + 8 * (n + 1)]); at += 8 * (n + 1)
label = struct.unpack(f"<{n}{'i' if classes else 'f'}", data[at:at + 4 * n]); at += (4 * n + 7) // 8 * 8
ids = struct.unpack(f"<{tokens}I", data[at:at + 4 * tokens]); at += (4 * tokens + 7) // 8 * 8
segments = data[at:at + tokens]
split = [s for s, c in enumerate(counts) for _ in range(c)]
for i in range(n):
    r = slice(offset[i], offset[i + 1])
    print("train dev test".split()[split[i]], label[i] if labelled >> split[i] & 1 else "-", *ids[r], "/", "".join(map(str, segments[r])))
P
}
# makes TEXT OPTIONS...: the file that comes out must show exactly TEXT.
makes() {
    local expected=$1
    shift
    quietly $tokenize --vocab "$tmp/vocab.txt" -o "$tmp/out.tok" "$@" || return
    local got
    got=$(show "$tmp/out.tok")
    [ "$got" = "$expected" ] || fail "$*: $got"
}

printf '\xef\xbb\xbfindex\tsentence1\tsentence2\tlabel\r\n0\tA "b\tc d\tnot_entailment\r\n1\tc\td\tentailment\r\n' > "$d/train.tsv"
printf 'index\tsentence1\tsentence2\n0\tb\tzzz\n' > "$d/test.tsv"
makes 'rte|accuracy|entailment|not_entailment 0
train 1 2 5 9 6 3 7 8 3 / 00000111
train 0 2 7 3 8 3 / 00011
test - 2 6 3 1 3 / 00011' --task rte -d "$d"
makes 'rte|accuracy|entailment|not_entailment 0
train 1 2 5 9 3 7 3 / 000011
train 0 2 7 3 8 3 / 00011
test - 2 6 3 1 3 / 00011' --task rte -d "$d" --max-length 6
rm "$d"/*

printf 'Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\ta\tb\n' > "$d/train.tsv"
makes 'mrpc|accuracy f1|0|1 0
train 1 2 5 3 6 3 / 00011' --task mrpc -d "$d"
printf 'gj04\t1\t\ta is b\ngj04\t0\t*\tb a\n' > "$d/train.tsv"
printf 'index\tsentence\n0\tc\n' > "$d/test.tsv"
makes 'cola|matthews|0|1 0
train 1 2 5 10 6 3 / 00000
train 0 2 6 5 3 / 0000
test - 2 7 3 / 000' --task cola -d "$d"
rm "$d"/*
printf 'sentence\tlabel\na b\t1\n' > "$d/dev.tsv"
makes 'sst2|accuracy|0|1 0
dev 1 2 5 6 3 / 0000' --task sst2 -d "$d"
printf 'id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t1\t2\ta\tb\t0\n' > "$d/dev.tsv"
makes 'qqp|accuracy f1|0|1 0
dev 0 2 5 3 6 3 / 00011' --task qqp -d "$d"
printf 'index\tquestion\tsentence\tlabel\n1\ta\tb\tentailment\n' > "$d/dev.tsv"
makes 'qnli|accuracy|entailment|not_entailment 0
dev 0 2 5 3 6 3 / 00011' --task qnli -d "$d"
rm "$d"/*
printf 'index\tx\tsentence1\tsentence2\tlabel1\tgold_label\n1\t-\ta\tb\tneutral\tcontradiction\n' > "$d/dev_mismatched.tsv"
makes 'mnli|accuracy|entailment|neutral|contradiction 0
dev 2 2 5 3 6 3 / 00011' --task mnli -d "$d" --mismatched
rm "$d"/*
printf 'index\tgenre\tsentence1\tsentence2\tscore\n1\tx\ta\tb\t3.25\n' > "$d/train.tsv"
makes 'stsb|pearson spearman 0
train 3.25 2 5 3 6 3 / 00011' --task stsb -d "$d"

printf '{"q": "a b", "good": "no"}\n{"q": "c", "good": "certainly"}\n' > "$d/mine.jsonl"
makes 'own|f1|certainly|no 0
train 1 2 5 6 3 / 0000
train 0 2 7 3 / 000' --train "$d/mine.jsonl" --text-a q --label good --metric f1
makes 'own|accuracy|0|1 0
test - 2 5 6 3 / 0000
test - 2 7 3 / 000' --test "$d/mine.jsonl" --text-a q

run="$tokenize --vocab $tmp/vocab.txt -o $tmp/no.tok"
printf 'sentence\tlabel\na\t1\n \t0\nb\t2\nc\n' > "$d/train.tsv"
refuses 1 "train.tsv: line 3 has an empty sentence" $run --task sst2 -d "$d"
sed -i 3d "$d/train.tsv"
refuses 1 "train.tsv: line 4 has 1 columns, the header has 2" $run --task sst2 -d "$d"
sed -i 4d "$d/train.tsv"
refuses 1 "train.tsv: line 3: label '2' is none of 0, 1" $run --task sst2 -d "$d"
quietly $run --task sst2 -d "$d" --skip-bad && [ "$(show "$tmp/no.tok" | grep -c ^train)" = 1 ] || fail "--skip-bad"
rm "$tmp/no.tok"
refuses 1 "no column 'sentence1'" $run --task rte -d "$d"
printf 'sentence\tlabel\n' >"$d/train.tsv"
refuses 1 "train.tsv: has no sentences" $run --task sst2 -d "$d"
refuses 1 "holds no train.tsv" $run --task rte -d "$tmp"
refuses 1 "missing.tsv" $run --train "$tmp/missing.tsv" --text-a a
printf 'a\tb\n\xff\tx\n' > "$d/latin.tsv"
refuses 1 "byte 4 is not UTF-8" $run --train "$d/latin.tsv" --text-a a
printf 'index\tsentence1\tsentence2\tscore\n1\ta\tb\thigh\n' > "$d/train.tsv"
refuses 1 "'high' is not a number" $run --task stsb -d "$d"
refuses 1 "no such vocabulary" $tokenize --vocab "$tmp/none.txt" -o "$tmp/no.tok" --task stsb -d "$d"

# One's own files: nothing is guessed, nothing dropped without a word.
own="$run --text-a q --label good"
lines() { printf '%s\n' "$@" >"$d/own.jsonl"; }
lines '{"q": "a", "good": 1}' '{"q": "b", "good": 2}'
printf '%s\n' '{"q": "a", "good": 0}' >"$d/dev.jsonl"
refuses 1 "label '0' is none of 1, 2" $own --train "$d/own.jsonl" --dev "$d/dev.jsonl"
lines '{"q": null, "good": 1}'
refuses 1 "own.jsonl: line 1 has a sentence that is no text" $own --train "$d/own.jsonl"
lines '{"q": "\ud800", "good": 1}'
refuses 1 "line 1 has a sentence that is no text" $own --train "$d/own.jsonl"
lines '{"q": "a", "good": ["x"]}'
refuses 1 "line 1 has an empty label, or one that is no text" $own --train "$d/own.jsonl"
lines "$(head -c 100000 /dev/zero | tr '\0' '[')"
refuses 1 "own.jsonl: line 1: " $own --train "$d/own.jsonl"
lines '{"q": "a", "good": "x\ty"}' '{"q": "b", "good": "z"}'
refuses 1 "has a tab" $own --train "$d/own.jsonl"
printf 'q\tgood\na\tx\tmore\n' >"$d/own.tsv"
refuses 1 "line 2 has 3 columns, the header has 2" $own --train "$d/own.tsv"
printf 'q\tq\na\tx\n' >"$d/own.tsv"
refuses 1 "names a column twice" $own --train "$d/own.tsv"
printf 'q\tgod\na\tx\n' >"$d/own.tsv"
refuses 1 "no column 'good'; there are: q, god" $own --train "$d/own.tsv"
printf 'q,good\na,x\n' >"$d/own.tsv"
refuses 1 "is it a CSV" $own --train "$d/own.tsv"
printf 'q\na\n\nb\n' >"$d/own.tsv"
refuses 1 "line 3 has an empty sentence" $run --text-a q --test "$d/own.tsv"
printf 'q\tgood\na\t\302\262\nb\t--1\nc\t1e300\n' >"$d/own.tsv"
makes 'own|accuracy|--1|1e300|² 0
train 2 2 5 3 / 000
train 0 2 6 3 / 000
train 1 2 7 3 / 000' --train "$d/own.tsv" --text-a q --label good
refuses 1 "not a number that a float can hold" $own --train "$d/own.tsv" --regression
refuses 1 "--metric pearson is for scores" $own --train "$d/own.tsv" --metric pearson
refuses 1 "--metric f1 is for two classes, there are 3" $own --train "$d/own.tsv" --metric f1
refuses 1 "a name is empty or comes twice" $own --train "$d/own.tsv" --labels 0,1,1
printf '%s\n' '[PAD]' '[UNK]' '[CLS]' '[SEP]' a a >"$tmp/twice.txt"
refuses 1 "a token twice" $tokenize --vocab "$tmp/twice.txt" -o "$tmp/no.tok" --train "$d/own.tsv" --text-a q
printf 'a\n' >"$tmp/bare.txt"
refuses 1 "bare.txt: cannot be used" $tokenize --vocab "$tmp/bare.txt" -o "$tmp/no.tok" --train "$d/own.tsv" --text-a q
mkdir "$tmp/folder"
refuses 1 "folder: " $tokenize --vocab "$tmp/vocab.txt" -o "$tmp/folder" --train "$d/own.tsv" --text-a q
[ -e "$tmp/no.tok" ] || [ -e "$tmp/folder.tmp" ] && fail "a file was left behind"

if [ -d "${PREBR_TEST_DATA:-/nonexistent}/rte" ]; then
    quietly $tokenize --task rte -d "$PREBR_TEST_DATA/rte" --vocab "$PREBR_TEST_DATA/rte/vocab.txt" -o "$tmp/rte.tok"
    grep -q '2490 train, 277 dev, 3000 test (no labels' "$tmp/out" || { cat "$tmp/out"; fail "rte"; }
fi
finish
