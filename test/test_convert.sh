#!/bin/bash
# scripts/convert_checkpoint.py: a model written in each foreign form comes back with the same bits, and what is no checkpoint is
# told from one. A small random model always, the real one where $PREBR_TEST_DATA has it.
set -eu
python=${PYTHON:-python3}
here=$(cd "$(dirname "$0")" && pwd)
if ! "$python" -c 'import numpy, torch, safetensors' 2>/dev/null; then
    echo "skipped: $python has not numpy, torch and safetensors (scripts/setup.sh --python, then PYTHON=.venv/bin/python)"
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

convert() { "$python" "$here/../scripts/convert_checkpoint.py" "$@"; }
forms() { "$python" "$here/checkpoint_forms.py" "$@"; }

# round MODEL FORM FILE WHAT [OPTION...]: out of the model directory in that form and back again
round() {
    local model=$1 form=$2 file=$work/$2-$(basename "$1")/$3 what=$4
    mkdir -p "$(dirname "$file")"
    forms export "$model" "$form" "$file"
    convert "$file" "$work/back-$form-$(basename "$model")" "${@:5}"
    forms check "$model" "$work/back-$form-$(basename "$model")" "$what"
}

forms make "$work/small"
models=("$work/small")
real=${PREBR_TEST_DATA:-}/vit_tiny_patch16_224
[ -e "$real/model.safetensors" ] && models+=("$real")
for model in "${models[@]}"; do
    round "$model" vit_jax ViT.npz whole
    round "$model" pre_logits ViT.npz headless
    round "$model" big_vision ViT.npz placeless
    round "$model" timm vit.pth whole
    round "$model" hf pytorch_model.bin whole
done

# A BERT's tensors keep their names and bits; tied ones are written twice, and config and vocabulary come along.
mkdir "$work/bert"
echo '{"model_type": "bert", "hidden_size": 4}' >"$work/bert/config.json"
printf '[PAD]\n[UNK]\n' >"$work/bert/vocab.txt"
"$python" - "$work/bert/pytorch_model.bin" <<'P'
import sys, torch
word = torch.randn(2, 4)
torch.save({"bert.embeddings.word_embeddings.weight": word, "cls.predictions.decoder.weight": word, "bert.embeddings.position_ids": torch.arange(3)}, sys.argv[1])
P
convert "$work/bert/pytorch_model.bin" "$work/bert-back"
"$python" - "$work" <<'P'
import sys, torch
from safetensors.torch import load_file
work = sys.argv[1]
was = torch.load(work + "/bert/pytorch_model.bin", weights_only=True)
got = load_file(work + "/bert-back/model.safetensors")
assert set(got) == {name for name in was if "position_ids" not in name}, set(got)
assert all(torch.equal(got[name], was[name]) for name in got)
assert all(open(f"{work}/bert/{f}").read() == open(f"{work}/bert-back/{f}").read() for f in ("config.json", "vocab.txt"))
P

# Bad files: one line that names the file, status 1.
refused() {
    local status=0
    convert "$1" "$work/refused" >"$work/said" 2>&1 || status=$?
    if [ $status != 1 ] || [ "$(wc -l <"$work/said")" != 1 ] || ! grep -qF "$1" "$work/said"; then
        echo "expected one line about $1 and status 1, got status $status and:"
        cat "$work/said"
        exit 1
    fi
}
echo "no archive" >"$work/text.npz"
echo "no pickle" >"$work/text.pth"
head -c 2000 "$work/vit_jax-small/ViT.npz" >"$work/cut.npz"
head -c 2000 "$work/timm-small/vit.pth" >"$work/cut.pth"
"$python" -c "import numpy, sys; numpy.savez(sys.argv[1], **{'other/kernel': numpy.zeros(3)})" "$work/other.npz"
"$python" -c "import torch, sys; torch.save({'model': {'fc.weight': torch.zeros(3)}}, sys.argv[1])" "$work/other.pth"
for file in text.npz text.pth cut.npz cut.pth other.npz other.pth missing.npz missing.pth; do refused "$work/$file"; done
echo ok
