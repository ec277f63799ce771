#!/usr/bin/env bash
# A few steps of a small ViT with the CUDA kernels, executed on the host: the losses, gradient norms and accuracies of the CPU build. Device memory
# is hidden from the host meanwhile, so that host code which reads it directly would end the program.
. "$(dirname "$0")/common.sh"
cuda=${BUILD:-build}/cuda_on_cpu/train_vit
[ -x "$cuda" ] || skip "$cuda is not built"
need_data vit_tiny_patch16_224 cifar-10-batches-bin
export CUDA_ON_CPU_HIDE=1

mkdir "$tmp/small"
cat >"$tmp/small/config.json" <<'CONFIG'
{"model_type": "vit", "architectures": ["ViTForImageClassification"], "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 3,
 "intermediate_size": 96, "hidden_act": "gelu", "image_size": 32, "patch_size": 8, "num_channels": 3, "layer_norm_eps": 1e-12, "qkv_bias": true}
CONFIG

# same STEPS OPTION...: both builds, then the logs side by side. One rate for all and the exact GELU, unless said otherwise: at the methods' own
# rates this small model diverges, and 2-bit codes that flip by rounding then show in the gradient norm.
same() {
    local steps=$1
    shift
    for build in "$train_vit" "$cuda"; do
        out=$tmp/run-$([ "$build" = "$cuda" ] && echo cuda || echo cpu)
        rm -rf "$out"
        quietly "$build" -d "$PREBR_TEST_DATA/cifar-10-batches-bin" --classes 0-3 -b 4 --steps "$steps" --lr 1e-3 --warmup 0 --eval-every -1 --threads 1 \
            --head-lr-scale 1 --bias-lr-scale 1 --column-lr-scale 1 --gelu exact --log-every 1 -o "$out" "$@" || return
    done
    awk -F, -v name="$*" 'function far(a, b) { return (a > b ? a - b : b - a) > 1e-4 * (1 + (b > 0 ? b : -b)) }
        NR == FNR { if (FNR > 1) { loss[$1] = $3; norm[$1] = $5 } next }
        FNR > 1 { lines++; if (!($1 in loss) || far($3, loss[$1]) || far($5, norm[$1])) { print name ": step " $1 ": loss " $3 " norm " $5 ", CPU " loss[$1] " " norm[$1]; bad = 1 } }
        END { exit bad || lines < 1 }' "$tmp/run-cpu/log.csv" "$tmp/run-cuda/log.csv" || fail "the losses of $*"
}

small="-m $tmp/small --from-scratch"
for options in "--method full" "--method head" "--method bitfit" "--method backrazor --attention materialized" "--method prebr --resample 2" \
    "--method prebr++ --resample 2 --gelu regelu2" "--method prebr++ --resample 2 --policy norm --accumulate 2 --importance-weight" \
    "--method prebr++ --keep 0.3 --column-block 1 --optimizer sgd" "--method full --recompute block" "--method prebr++ --recompute attention --clip 0.5"; do
    same 4 $small $options
done
same 3 -m "$PREBR_TEST_DATA/vit_tiny_patch16_224" --image-size 32 --method prebr++
finish
