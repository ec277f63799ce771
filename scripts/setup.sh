#!/bin/bash
# Installs what is missing to build and test, from the packages of Debian or Ubuntu, and says what it does.
#
#   scripts/setup.sh             compiler, make, ctest, oneDNN, cJSON, stb, zlib
#   scripts/setup.sh --demo      also the data of `make demo` (Fashion-MNIST)
#   scripts/setup.sh --python    also .venv with what the Python scripts use (scripts/requirements.txt)
#
# What is there already, from whatever source, is left alone.
set -eu
cd "$(dirname "$0")/.."

demo=0 python=0
for argument; do
    case $argument in
        --demo) demo=1 ;;
        --python) python=1 ;;
        -h|--help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
        *) echo "setup.sh: $argument: unknown; there are --demo and --python" >&2; exit 2 ;;
    esac
done

missing=()
program() { command -v "$1" >/dev/null || missing+=("$2"); }
header() { echo "#include <$1>" | "${CC:-gcc}" -E - >/dev/null 2>&1 || missing+=("$2"); }

program gcc gcc
program g++ g++
program make make
program ctest cmake
header dnnl.h libdnnl-dev
header cjson/cJSON.h libcjson-dev
header stb/stb_image.h libstb-dev
header zlib.h zlib1g-dev
if [ $demo = 1 ] && [ ! -e /usr/share/datasets/fashion-mnist ]; then missing+=(dataset-fashion-mnist); fi
if [ $python = 1 ] && ! python3 -c 'import ensurepip, venv' 2>/dev/null; then missing+=(python3-venv); fi

if [ ${#missing[@]} -gt 0 ]; then
    echo "setup: missing: ${missing[*]}"
    if ! command -v apt-get >/dev/null; then
        echo "setup.sh: there is no apt-get here: install what Debian calls ${missing[*]} with this system's own tools" >&2
        exit 1
    fi
    as_root=()
    if [ "$(id -u)" != 0 ]; then
        if ! command -v sudo >/dev/null; then
            echo "setup.sh: neither root nor sudo: ask for  apt-get install ${missing[*]}" >&2
            exit 1
        fi
        as_root=(sudo env DEBIAN_FRONTEND=noninteractive)
    fi
    echo "setup: ${as_root[*]:+sudo }apt-get update && apt-get install ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    "${as_root[@]}" apt-get update -qq
    "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}"
    echo "setup: installed ${missing[*]}"
fi

if [ $python = 1 ]; then
    if .venv/bin/python -c 'import matplotlib, numpy, safetensors, timm, tokenizers, torch, transformers' 2>/dev/null; then
        echo "setup: .venv has what the scripts use"
    else
        echo "setup: python3 -m venv .venv && .venv/bin/pip install -r scripts/requirements.txt"
        python3 -m venv .venv
        .venv/bin/pip install --quiet -r scripts/requirements.txt
    fi
fi
if [ ${#missing[@]} = 0 ]; then echo "setup: all packages are there"; fi
