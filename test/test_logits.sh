#!/usr/bin/env bash
# Logits of a real checkpoint beside those of timm and transformers, on 64 real images: equal within 1e-4. As timm has it, as
# transformers writes it, and as train_vit writes what it has fine-tuned.
. "$(dirname "$0")/common.sh"
need_data vit_tiny_patch16_224 cifar-10-batches-bin
need_python "torch, timm, transformers, safetensors"
export HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error

real=$PREBR_TEST_DATA/vit_tiny_patch16_224 data=$tmp/data
mkdir "$data"
head -c $((64 * 3073)) "$PREBR_TEST_DATA/cifar-10-batches-bin/test_batch.bin" >"$data/test_batch.bin"
head -c $((40 * 3073)) "$PREBR_TEST_DATA/cifar-10-batches-bin/data_batch_1.bin" >"$data/data_batch_1.bin"

# same KIND MODEL: train_vit's logits of MODEL against those of timm or transformers
same() {
    quietly $train_vit -m "$2" -d "$data" --eval --logits "$tmp/logits" -b 16 || return
    quietly "$python" test/logits.py "$1" "$2" "$data" "$tmp/logits" && tail -1 "$tmp/out"
}
same timm "$real"
quietly "$python" test/logits.py export "$real" "$tmp/exported" && same transformers "$tmp/exported"
quietly $train_vit -m "$real" -d "$data" --image-size 112 -b 8 --steps 5 --method prebr++ --bias-lr-scale 10 --eval-every -1 -o "$tmp/run" &&
    same transformers "$tmp/run/model"
finish
