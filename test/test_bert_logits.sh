#!/usr/bin/env bash
# A real BERT with a head of its own on 100 RTE pairs, padded batches included, against transformers: logits to 1e-4. What train_bert saves
# is loaded by from_pretrained (nothing missing, nothing left over) and gives the same logits as train_bert --eval; GLUE's metrics from them.
. "$(dirname "$0")/common.sh"
need_bert
need_data rte
need_python transformers
tokenize="$python scripts/tokenize_glue.py -m $bert --max-length 128"
mkdir "$tmp/rte"
head -101 "$PREBR_TEST_DATA/rte/dev.tsv" > "$tmp/rte/dev.tsv"
head -17 "$PREBR_TEST_DATA/rte/train.tsv" > "$tmp/rte/train.tsv"
quietly $tokenize --task rte -d "$tmp/rte" -o "$tmp/rte.tok" || finish
quietly "$python" - "$bert" "$tmp/model" <<'P' || finish
import shutil, sys, torch
from transformers import BertForSequenceClassification
torch.manual_seed(3)
model = BertForSequenceClassification.from_pretrained(sys.argv[1], num_labels=2)
model.classifier.weight.data.normal_(std=0.5)
model.save_pretrained(sys.argv[2])
shutil.copy(sys.argv[1] + "/vocab.txt", sys.argv[2])
P
quietly $train_bert -m "$tmp/model" -d "$tmp/rte.tok" -b 8 --steps 4 --lr 1e-4 --eval-every -1 -o "$tmp/run" --method prebr++ || finish
for model in "$tmp/model" "$tmp/run/model"; do
    quietly $train_bert -m "$model" -d "$tmp/rte.tok" --eval -b 7 --logits "$tmp/logits.bin" --predictions "$tmp/predictions.tsv" || continue
    cp "$tmp/out" "$tmp/said"
    quietly "$python" - "$model" "$tmp" <<'P' && grep differ "$tmp/out"
import csv, re, sys
import numpy as np, torch
from transformers import AutoTokenizer, BertForSequenceClassification
model, info = BertForSequenceClassification.from_pretrained(sys.argv[1], output_loading_info=True)
assert not info["missing_keys"] and not info["unexpected_keys"], info
model.eval()
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
rows = list(csv.DictReader(open(sys.argv[2] + "/rte/dev.tsv"), delimiter="\t", quoting=csv.QUOTE_NONE))
out = []
with torch.no_grad():
    for i in range(0, 100, 25):
        part = rows[i:i + 25]
        x = tokenizer([r["sentence1"] for r in part], [r["sentence2"] for r in part], truncation=True, max_length=128, padding=True, return_tensors="pt")
        out.append(model(**x).logits)
expected = torch.cat(out).numpy()
got = np.fromfile(sys.argv[2] + "/logits.bin", dtype=np.float32).reshape(expected.shape)
difference = abs(got - expected).max()
print(f"logits differ by {difference:.2e} at most")
assert difference <= 1e-4, difference
names = ["entailment", "not_entailment"]
said = [r.split("\t")[1] for r in open(sys.argv[2] + "/predictions.tsv").read().splitlines()[1:]]
assert said == [names[k] for k in expected.argmax(1)]
right = np.mean([a == r["label"] for a, r in zip(said, rows)])
assert f"accuracy {100 * right:.2f} %" in open(sys.argv[2] + "/said").read(), right
P
done
finish
