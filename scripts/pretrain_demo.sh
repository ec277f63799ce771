#!/usr/bin/env bash
# Makes scripts/demo_vit, the checkpoint that the demo starts from: a small ViT (patch 4, 6 layers, 96 wide) trained by train_vit itself, from
# random weights, on the five classes of Fashion-MNIST that the demo does not use (5-9: sandal, shirt, sneaker, bag, ankle boot).
# About ten minutes on two cores.   scripts/pretrain_demo.sh [DATA [RUN]]
set -eu
cd "$(dirname "$0")/.."
data=${1:-/usr/share/datasets/fashion-mnist}
run=${2:-runs/pretrain_demo}
mkdir -p "$run/config"
cat >"$run/config/config.json" <<'EOF'
{"architectures": ["ViTForImageClassification"], "model_type": "vit", "hidden_size": 96, "num_hidden_layers": 6,
 "num_attention_heads": 3, "intermediate_size": 384, "patch_size": 4, "image_size": 28, "num_channels": 3, "qkv_bias": true,
 "hidden_act": "gelu", "layer_norm_eps": 1e-6}
EOF
./train_vit -m "$run/config" --from-scratch -d "$data" --classes 5-9 -o "$run" --overwrite -b 64 --epochs 2 --lr 1e-3 --warmup 100 \
    --weight-decay 0.05 --log-every 50 ${PRETRAIN_OPTIONS:-}
rm -rf scripts/demo_vit
cp -r "$run/model" scripts/demo_vit
