#!/usr/bin/env bash
# A few steps of a small ViT and a small BERT with the CUDA kernels, executed on the host: losses and gradient norms of the CPU build. Device memory
# is hidden from the host meanwhile, so that host code which reads it directly would end the program.
. "$(dirname "$0")/common.sh"
cuda=${BUILD:-build}/cuda_on_cpu
[ -x "$cuda/train_vit" ] && [ -x "$cuda/train_bert" ] || skip "$cuda/train_vit and train_bert are not built"
need_python struct
cpu=$(dirname "$train_vit")
export CUDA_ON_CPU_HIDE=1

# same PROGRAM STEPS OPTION...: both builds, then the logs side by side, which may differ by `far` (relative to 1 + value) in loss and gradient norm. One rate for all and the exact GELU, unless said otherwise: at the methods'
# own rates such small models diverge, and 2-bit codes that flip by rounding then show in the gradient norm.
far=1e-4 cuda_build=cuda
same() {
    local program=$1 steps=$2
    shift 2
    for build in cpu $cuda_build; do
        rm -rf "$tmp/run-$build"
        quietly "${!build}/$program" --steps "$steps" --lr 1e-3 --warmup 0 --eval-every -1 --threads 1 \
            --head-lr-scale 1 --bias-lr-scale 1 --column-lr-scale 1 --gelu exact -o "$tmp/run-$build" "$@" || return
    done
    awk -F, -v name="$program $*" -v far=$far 'function differ(a, b) { return (a > b ? a - b : b - a) > far * (1 + (b > 0 ? b : -b)) }
        NR == FNR { loss[$1] = $3; norm[$1] = $5; next }
        FNR > 1 && (!($1 in loss) || differ($3, loss[$1]) || differ($5, norm[$1])) { print name ": step " $1 ": loss " $3 " norm " $5 ", CPU " loss[$1] " " norm[$1]; bad = 1 }
        END { exit bad || FNR < 2 }' "$tmp/run-cpu/log.csv" "$tmp/run-$cuda_build/log.csv" || fail "the logs of $program $*"
}

tiny_model "$tmp/vit"
tiny_data "$tmp/images"
for options in "--method full --eval-every 1" "--method head" "--method bitfit" "--method backrazor --attention materialized" "--method prebr --resample 2" \
    "--method prebr++ --resample 2 --gelu regelu2" "--method prebr++ --resample 2 --policy norm --accumulate 2 --importance-weight --column-block 8" \
    "--method prebr++ --keep 0.3 --column-block 1 --optimizer sgd" "--method full --recompute block" "--method prebr++ --recompute attention --clip 0.5"; do
    same train_vit 4 -m "$tmp/vit" --from-scratch -d "$tmp/images" -b 4 $options
done

# Token files need no tokenizer: 24 random sequences of 3 to 14 tokens.
mkdir "$tmp/bert"
echo '{"model_type": "bert", "architectures": ["BertForSequenceClassification"], "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
       "intermediate_size": 64, "vocab_size": 50, "max_position_embeddings": 16, "type_vocab_size": 2, "pad_token_id": 0}' >"$tmp/bert/config.json"
"$python" - "$tmp/small.tok" <<'P'
import random, struct, sys
random.seed(1)
lengths = [random.randint(3, 14) for _ in range(24)]
text = b"rte\naccuracy\nno\nyes\n"
text += b"\0" * (-len(text) % 8)
pad = lambda b: b + b"\0" * (-len(b) % 8)
offsets = [sum(lengths[:i]) for i in range(25)]
n = offsets[-1]
with open(sys.argv[1], "wb") as f:
    f.write(struct.pack("<8sIIQIIIIIIQII", b"prebrtok", 1, 50, 0, 2, len(text), 24, 0, 0, 1, n, 0, 0) + text)
    f.write(struct.pack("<25Q", *offsets) + pad(struct.pack("<24i", *[random.randint(0, 1) for _ in lengths])))
    f.write(pad(struct.pack(f"<{n}I", *[random.randint(1, 49) for _ in range(n)])))
    f.write(pad(bytes(int(j > l // 2) for l in lengths for j in range(l))))
P
for options in "--method full" "--method bitfit --dropout 0" "--method prebr++ --resample 2 --column-block 8" "--method backrazor" "--method prebr --optimizer sgd"; do
    same train_bert 4 -m "$tmp/bert" --from-scratch -d "$tmp/small.tok" -b 4 $options
done

# A real model, where it is at hand.
if [ -e "${PREBR_TEST_DATA:-/nonexistent}/vit_tiny_patch16_224" ]; then
    same train_vit 3 -m "$PREBR_TEST_DATA/vit_tiny_patch16_224" -d "$PREBR_TEST_DATA/cifar-10-batches-bin" --classes 0-3 --image-size 32 -b 4 --method prebr++
fi

# In bf16, whose unit is 2^-8 of a value: every activation is off by up to half of one, and losses and gradient norms, which average over thousands of
# them, by a few at most.
cuda_bf16=${cuda}_bf16 cuda_build=cuda_bf16 far=2e-2
for options in "--method full" "--method prebr++ --resample 2 --column-block 8 --gelu regelu2" "--method backrazor" "--method full --recompute block"; do
    same train_vit 4 -m "$tmp/vit" --from-scratch -d "$tmp/images" -b 4 $options
done
same train_bert 4 -m "$tmp/bert" --from-scratch -d "$tmp/small.tok" -b 4 --method full
same train_bert 4 -m "$tmp/bert" --from-scratch -d "$tmp/small.tok" -b 4 --method prebr++ --resample 2 --column-block 8

# A run allocates device memory once, the arena; and a step between two samplings makes the host wait four times: for the loss, for the gradient norm, and
# at its beginning and end, for the clock.
for steps in 3 8; do
    CUDA_ON_CPU_COUNTS="$tmp/counts-$steps" quietly "$cuda_bf16/train_vit" -m "$tmp/vit" --from-scratch -d "$tmp/images" -b 4 --method prebr++ --column-block 8 \
        --steps $steps --eval-every -1
done
read -r allocations waits <"$tmp/counts-3"
read -r _ later <"$tmp/counts-8"
[ "$allocations" = 1 ] || fail "$allocations allocations of device memory instead of one"
[ $((later - waits)) = $((4 * 5)) ] || fail "five steps wait $((later - waits)) times"

# A bf16 run that was stopped goes on bit for bit: the copies of the weights are made again from the weights.
bf16_run=("$cuda_bf16/train_vit" -m "$tmp/vit" --from-scratch -d "$tmp/images" -b 4 --method prebr++ --column-block 8 --resample 2 --steps 7 --eval-every -1)
quietly "${bf16_run[@]}" -o "$tmp/whole"
"${bf16_run[@]}" -o "$tmp/halves" >/dev/null 2>&1 &
until grep -q "^2," "$tmp/halves/log.csv" 2>/dev/null || ! kill -0 $! 2>/dev/null; do sleep 0.01; done
kill -INT $!
wait $! 2>/dev/null
[ "$(wc -l <"$tmp/halves/log.csv")" -lt 8 ] || fail "the bf16 run was over before it could be stopped"
quietly "$cuda_bf16/train_vit" --resume "$tmp/halves"
cmp -s "$tmp/whole/state/state.safetensors" "$tmp/halves/state/state.safetensors" || fail "a bf16 run that was stopped ends otherwise"
finish
