#!/usr/bin/env bash
# Fetches public data and models into a directory of yours, as their authors publish them; what is there already is left alone.
#
#   scripts/fetch_data.sh cifar-10 [DIR]          DIR/cifar-10-batches-bin    (DIR: data-sets, if not given)
#   scripts/fetch_data.sh cifar-100 [DIR]         DIR/cifar-100-binary
#   scripts/fetch_data.sh fashion-mnist [DIR]     DIR/fashion-mnist
#   scripts/fetch_data.sh vit-tiny|vit-base [DIR] DIR/vit_tiny_patch16_224 or DIR/vit-base-patch16-224-in21k
#   scripts/fetch_data.sh bert-base [DIR]         DIR/bert-base-uncased
#   scripts/fetch_data.sh rte [DIR]               DIR/RTE
set -eu
what=${1:-}
dir=${2:-data-sets}
need() { command -v "$1" >/dev/null || { echo "fetch_data.sh: needs $1: apt-get install $1" >&2; exit 1; }; }
fetch() { mkdir -p "$(dirname "$2")"; [ -e "$2" ] || { echo "fetching $1"; curl -fL --retry 3 -o "$2.part" "$1" && mv "$2.part" "$2"; }; }
hub() { for f in config.json model.safetensors; do fetch "https://huggingface.co/$1/resolve/main/$f" "$2/$f"; done; }
[ -z "$what" ] || need curl
case $what in
    cifar-10) fetch https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz "$dir/cifar-10-binary.tar.gz" && tar -xzf "$dir/cifar-10-binary.tar.gz" -C "$dir" ;;
    cifar-100) fetch https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz "$dir/cifar-100-binary.tar.gz" && tar -xzf "$dir/cifar-100-binary.tar.gz" -C "$dir" ;;
    fashion-mnist)
        for f in train-images-idx3 train-labels-idx1 t10k-images-idx3 t10k-labels-idx1; do
            fetch "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/$f-ubyte.gz" "$dir/fashion-mnist/$f-ubyte.gz"
        done ;;
    vit-tiny) hub timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k "$dir/vit_tiny_patch16_224" ;;
    vit-base) hub google/vit-base-patch16-224-in21k "$dir/vit-base-patch16-224-in21k" ;;
    bert-base)
        hub google-bert/bert-base-uncased "$dir/bert-base-uncased"
        for f in vocab.txt tokenizer_config.json; do
            fetch "https://huggingface.co/google-bert/bert-base-uncased/resolve/main/$f" "$dir/bert-base-uncased/$f"
        done ;;
    rte) need unzip && fetch https://dl.fbaipublicfiles.com/glue/data/RTE.zip "$dir/RTE.zip" && unzip -qo "$dir/RTE.zip" -d "$dir" ;;
    *) sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
