#!/usr/bin/env python3
"""Logits of a model directory as timm or transformers computes them, for test_logits.sh.

    logits.py timm MODEL DATA FILE           compares FILE (raw float32, by train_vit --eval --logits) with timm's own model
    logits.py transformers MODEL DATA FILE   the same with ViTForImageClassification.from_pretrained(MODEL)
    logits.py export MODEL OUT               writes timm's MODEL as a Hugging Face directory, with transformers itself

Images: the test split of a CIFAR-10 directory, resized with PyTorch's antialiased interpolation to the model's size.
"""
import json
import os
import sys

import numpy as np
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from transformers import ViTConfig, ViTForImageClassification

TOLERANCE = 1e-4


def read_json(*path):
    with open(os.path.join(*path)) as f:
        return json.load(f)


def images(data, size, mode, mean, std):
    records = np.fromfile(os.path.join(data, "test_batch.bin"), np.uint8).reshape(-1, 3073)
    x = torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32)).float()
    x = F.interpolate(x, size=(size, size), mode=mode, antialias=True).clamp(0, 255) / 255
    return (x - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)


def timm_model(directory):
    config = read_json(directory, "config.json")
    model = timm.create_model(config["architecture"], pretrained=False, num_classes=config["num_classes"], **config.get("model_args", {}))
    model.load_state_dict(load_file(os.path.join(directory, "model.safetensors")))
    return model.eval(), config["pretrained_cfg"]


def hf_weights(tensors):
    """timm's names and fused q, k, v to those of ViTForImageClassification."""
    outside = {"cls_token": "vit.embeddings.cls_token", "pos_embed": "vit.embeddings.position_embeddings",
               "patch_embed.proj": "vit.embeddings.patch_embeddings.projection", "norm": "vit.layernorm", "head": "classifier"}
    inside = {"norm1": "layernorm_before", "attn.proj": "attention.output.dense", "norm2": "layernorm_after",
              "mlp.fc1": "intermediate.dense", "mlp.fc2": "output.dense"}
    out = {}
    for name, tensor in tensors.items():
        stem, _, kind = name.rpartition(".")
        if name in outside:
            out[outside[name]] = tensor
        elif stem in outside:
            out[f"{outside[stem]}.{kind}"] = tensor
        else:
            _, layer, part = stem.split(".", 2)
            place = f"vit.encoder.layer.{layer}"
            if part == "attn.qkv":
                for third, rows in zip(("query", "key", "value"), tensor.chunk(3)):
                    out[f"{place}.attention.attention.{third}.{kind}"] = rows.contiguous()
            else:
                out[f"{place}.{inside[part]}.{kind}"] = tensor
    return out


def export(directory, to):
    model, cfg = timm_model(directory)
    block = model.blocks[0]
    config = ViTConfig(hidden_size=model.embed_dim, num_hidden_layers=len(model.blocks), num_attention_heads=block.attn.num_heads,
                       intermediate_size=block.mlp.fc1.out_features, patch_size=model.patch_embed.patch_size[0], image_size=cfg["input_size"][1],
                       layer_norm_eps=model.norm.eps, num_labels=model.num_classes)
    # state_dict wants the names of this transformers; from_pretrained takes those of the hub, whatever its version.
    hub = hf_weights(load_file(os.path.join(directory, "model.safetensors")))
    exported, report = ViTForImageClassification.from_pretrained(None, config=config, state_dict=hub, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"], report
    exported.save_pretrained(to)
    with open(os.path.join(to, "preprocessor_config.json"), "w") as f:
        json.dump({"image_processor_type": "ViTImageProcessor", "size": {"height": config.image_size, "width": config.image_size},
                   "resample": 3 if cfg["interpolation"] == "bicubic" else 2, "image_mean": cfg["mean"], "image_std": cfg["std"]}, f)


@torch.no_grad()
def compare(kind, directory, data, file):
    if kind == "timm":
        model, cfg = timm_model(directory)
        size, mode, mean, std = cfg["input_size"][1], cfg["interpolation"], cfg["mean"], cfg["std"]
    else:
        model, report = ViTForImageClassification.from_pretrained(directory, output_loading_info=True)
        assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"], report
        cfg = read_json(directory, "preprocessor_config.json")
        size, mode, mean, std = model.config.image_size, {2: "bilinear", 3: "bicubic"}[cfg["resample"]], cfg["image_mean"], cfg["image_std"]
        model.eval()
    x = images(data, size, mode, mean, std)
    theirs = torch.cat([model(part) if kind == "timm" else model(part).logits for part in x.split(16)]).numpy()
    ours = np.fromfile(file, np.float32)
    assert ours.size == theirs.size, f"{ours.size} logits, {theirs.size} expected"
    ours = ours.reshape(theirs.shape)
    worst = np.abs(ours - theirs).max()
    print(f"{len(ours)} images, {ours.shape[1]} classes, logits from {theirs.min():.2f} to {theirs.max():.2f}: max difference from {kind} {worst:.2g}")
    return worst <= TOLERANCE and len(ours) >= 64 and theirs.std() > 0.01


if __name__ == "__main__":
    if sys.argv[1] == "export":
        export(*sys.argv[2:])
    elif not compare(*sys.argv[1:]):
        sys.exit(1)
