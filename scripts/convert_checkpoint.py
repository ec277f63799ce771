#!/usr/bin/env python3
"""Makes a model directory (config.json + model.safetensors) of a ViT or BERT checkpoint in another form.

    convert_checkpoint.py ViT-B_16.npz vit-base/             Google's: vit_jax, AugReg, big_vision
    convert_checkpoint.py pytorch_model.bin vit-base/        PyTorch's: Hugging Face or timm names
    convert_checkpoint.py pytorch_model.bin bert-base/       a BERT, with its config.json (and vocabulary) beside it

A .safetensors model needs no conversion. What a file does not hold (heads, norm epsilon, pixel statistics) is taken from the
config.json beside it, or is its family's own, or is given here. Numbers go over as they are, bit for bit (to float32).
"""
import argparse
import math
import os
import re
import shutil
import zipfile

import numpy as np
import torch
from safetensors.torch import save_file

import vit_checkpoint
from vit_checkpoint import trouble

# A block's module by what it is called in vit_jax (numbered over the block) and in big_vision (numbered by kind).
GOOGLE_BLOCK = {"LayerNorm_0": "norm1", "LayerNorm_1": "norm2", "LayerNorm_2": "norm2", "MlpBlock_0/Dense_0": "mlp.fc1",
                "MlpBlock_0/Dense_1": "mlp.fc2", "MlpBlock_3/Dense_0": "mlp.fc1", "MlpBlock_3/Dense_1": "mlp.fc2"}
GOOGLE_OUTSIDE = {"embedding": "patch_embed.proj", "Transformer/encoder_norm": "norm", "head": "head", "pre_logits": "pre_logits"}
KIND = {"kernel": "weight", "scale": "weight", "bias": "bias"}


def read_npz(path):
    """Tensors of the parameters by their names without a prefix; an optimizer's state is left out."""
    try:
        file = np.load(path)
        names = [name for name in file.files if not re.match(r"opt/(?!target/)", name)]
        read = lambda name: torch.from_numpy(np.array(file[name], dtype=np.float32))
        return {re.sub(r"^(opt/target/|params/)", "", name): read(name) for name in names}
    except (OSError, ValueError, zipfile.BadZipFile, AttributeError) as error:
        trouble(f"{path}: {error}")


def google_attention(part, kind, tensor, out):
    """query, key, value: kernel [c, heads, d], bias [heads, d]; out: kernel [heads, d, c]."""
    if part == "out":
        out["attn.proj." + KIND[kind]] = tensor.flatten(0, 1).t() if kind == "kernel" else tensor
    else:
        out.setdefault("attn.qkv." + KIND[kind], {})[part] = tensor.flatten(1).t() if kind == "kernel" else tensor.flatten()


def from_google(tensors, path):
    """(config.json's content, tensors in timm's names) of a Google checkpoint."""
    ours, blocks, heads = {}, {}, 0
    for name, tensor in tensors.items():
        module, _, kind = name.rpartition("/")
        block = re.fullmatch(r"Transformer/encoderblock_(\d+)/(.*)", module)
        attention = block and re.fullmatch(r"MultiHeadDotProductAttention_[01]/(query|key|value|out)", block[2])
        if attention:
            google_attention(attention[1], kind, tensor, blocks.setdefault(block[1], {}))
            heads = tensor.shape[1] if (attention[1], kind) == ("query", "kernel") else heads
        elif block and block[2] in GOOGLE_BLOCK:
            ours[f"blocks.{block[1]}.{GOOGLE_BLOCK[block[2]]}.{KIND[kind]}"] = tensor.t() if kind == "kernel" else tensor
        elif module == "embedding" and kind == "kernel":
            ours["patch_embed.proj.weight"] = tensor.permute(3, 2, 0, 1)                  # HWIO -> OIHW
        elif module in GOOGLE_OUTSIDE and kind in KIND:
            ours[f"{GOOGLE_OUTSIDE[module]}.{KIND[kind]}"] = tensor.t() if kind == "kernel" else tensor
        elif name == "cls":
            ours["cls_token"] = tensor
        elif name in ("Transformer/posembed_input/pos_embedding", "pos_embedding"):
            ours["pos_embed"] = tensor
        else:
            trouble(f"{path}: parameter {name} belongs to no ViT that is known here")
    for number, block in blocks.items():
        for name, part in block.items():
            if isinstance(part, dict):
                if len(part) != 3:
                    trouble(f"{path}: block {number} has only {', '.join(part)} of query, key and value")
                part = torch.cat([part["query"], part["key"], part["value"]])
            ours[f"blocks.{number}.{name}"] = part
    if "cls_token" in ours and "pos_embed" in ours and math.isqrt(ours["pos_embed"].shape[1]) ** 2 == ours["pos_embed"].shape[1]:
        ours["pos_embed"] = torch.nn.functional.pad(ours["pos_embed"], (0, 0, 1, 0))      # big_vision's class token has no place
    raw = {"model_args": {"num_heads": heads}, "pretrained_cfg": {"interpolation": "bilinear"}}
    return raw, ours


def read_torch(path):
    """Tensors of a PyTorch file, out of the usual wrappings."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:                              # pickle's and torch's own kinds
        trouble(f"{path}: {str(error).splitlines()[0]}")
    for key in ("state_dict", "model", "module"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    tensors = {name: t for name, t in content.items() if isinstance(t, torch.Tensor)} if isinstance(content, dict) else {}
    if not tensors:
        trouble(f"{path}: no dict of tensors in it")
    while all(name.startswith("module.") for name in tensors):
        tensors = {name.removeprefix("module."): t for name, t in tensors.items()}
    return tensors


def drop_pre_logits(tensors, path):
    """A tanh layer between the encoder and its head, from pre-training: no model here has one, and its head means nothing without it."""
    if any(name.startswith("pre_logits.") for name in tensors):
        print(f"{path}: has a pre_logits layer: it and the head behind it are left out")
        tensors = {name: t for name, t in tensors.items() if not name.startswith(("pre_logits.", "head."))}
    return tensors


def save_bert(tensors, beside, directory):
    """train_bert reads every usual naming, so names stay; config and vocabulary come along."""
    os.makedirs(directory, exist_ok=True)
    save_file({name: t.float().contiguous().clone() for name, t in tensors.items() if t.is_floating_point()}, os.path.join(directory, "model.safetensors"),
              metadata={"format": "pt"})
    for name in ("config.json", "vocab.txt", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        if os.path.exists(os.path.join(beside, name)):
            shutil.copyfile(os.path.join(beside, name), os.path.join(directory, name))
    print(f"{directory}: a BERT of {sum(t.numel() for t in tensors.values()):,} numbers")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("checkpoint", help=".npz, .bin, .pth or .pt")
    p.add_argument("directory", help="the model directory to write")
    p.add_argument("--heads", type=int, help="attention heads")
    p.add_argument("--norm-eps", type=float)
    p.add_argument("--mean", type=float, nargs=3, help="of pixels in [0, 1]; e.g. 0.485 0.456 0.406 for DeiT and MAE")
    p.add_argument("--std", type=float, nargs=3)
    p.add_argument("--interpolation", choices=["bilinear", "bicubic"])
    p.add_argument("--pool", choices=["token", "avg"], help="what the head reads: the class token or the mean of the patches")
    o = p.parse_args()
    beside = os.path.dirname(os.path.abspath(o.checkpoint))
    if o.checkpoint.endswith(".npz"):
        raw, tensors = from_google(read_npz(o.checkpoint), o.checkpoint)
    else:
        config = os.path.join(beside, "config.json")
        raw, tensors = vit_checkpoint.read_json(config) if os.path.exists(config) else {}, read_torch(o.checkpoint)
    if raw.get("model_type") == "bert":
        return save_bert(tensors, beside, o.directory)
    tensors = drop_pre_logits(tensors, o.checkpoint)
    c, tensors = vit_checkpoint.understand(raw, tensors, beside, o.checkpoint)
    c.heads, c.norm_eps = o.heads or c.heads, o.norm_eps or c.norm_eps
    c.mean, c.std, c.interpolation = o.mean or c.mean, o.std or c.std, o.interpolation or c.interpolation
    c.mean_pool = o.pool == "avg" if o.pool else c.mean_pool
    if c.heads < 1 or c.width % c.heads:
        trouble(f"{o.checkpoint}: {c.heads} heads do not divide the width {c.width}: give --heads")
    vit_checkpoint.save(o.directory, c, tensors)
    print(f"{o.directory}: {c.layers} layers of width {c.width}, {c.heads} heads, patches of {c.patch} px in {c.image_size} px, "
          f"{c.classes or 'no'} classes")


if __name__ == "__main__":
    main()
