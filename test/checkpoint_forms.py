"""For test_convert.sh: writes a timm-named model in every form that is to be converted, and checks what came back.

    checkpoint_forms.py make DIR            a small random model directory
    checkpoint_forms.py export MODEL FORM FILE
    checkpoint_forms.py check MODEL CONVERTED whole|headless|placeless
"""
import json
import os
import sys

import numpy as np
import torch
from safetensors.torch import load_file, save_file


def make(directory):
    torch.manual_seed(7)
    c, mlp, layers, patch, grid = 128, 96, 3, 4, 3
    shapes = {"cls_token": (1, 1, c), "pos_embed": (1, grid * grid + 1, c), "patch_embed.proj.weight": (c, 3, patch, patch),
              "patch_embed.proj.bias": (c,), "norm.weight": (c,), "norm.bias": (c,), "head.weight": (5, c), "head.bias": (5,)}
    for i in range(layers):
        for name, shape in {"norm1": (c,), "attn.qkv": (3 * c, c), "attn.proj": (c, c), "norm2": (c,), "mlp.fc1": (mlp, c),
                            "mlp.fc2": (c, mlp)}.items():
            shapes |= {f"blocks.{i}.{name}.weight": shape, f"blocks.{i}.{name}.bias": shape[:1]}
    os.makedirs(directory)
    save_file({name: torch.randn(shape) for name, shape in shapes.items()}, f"{directory}/model.safetensors")
    with open(f"{directory}/config.json", "w") as f:
        json.dump({"architecture": "vit", "num_classes": 5, "model_args": {"num_heads": 2}}, f)


def heads_of(model):
    raw = json.load(open(f"{model}/config.json"))
    return raw.get("model_args", {}).get("num_heads", 3)       # the real checkpoint of the tests is a ViT-Tiny: 3


def google(tensors, heads, big_vision):
    """Flax arrays by name: kernels are [in, out], heads apart."""
    layers = sum(name.endswith("qkv.weight") for name in tensors)
    t = {name: a.numpy() for name, a in tensors.items()}
    c = t["norm.weight"].shape[0]
    out = {"cls": t["cls_token"], "embedding/kernel": t["patch_embed.proj.weight"].transpose(2, 3, 1, 0),
           "embedding/bias": t["patch_embed.proj.bias"], "Transformer/encoder_norm/scale": t["norm.weight"],
           "Transformer/encoder_norm/bias": t["norm.bias"], "head/kernel": t["head.weight"].T, "head/bias": t["head.bias"]}
    if big_vision:
        out["pos_embedding"] = t["pos_embed"][:, 1:]
        norm2, mlp, attention = "LayerNorm_1", "MlpBlock_0", "MultiHeadDotProductAttention_0"
    else:
        out["Transformer/posembed_input/pos_embedding"] = t["pos_embed"]
        norm2, mlp, attention = "LayerNorm_2", "MlpBlock_3", "MultiHeadDotProductAttention_1"
    for i in range(layers):
        block, ours = f"Transformer/encoderblock_{i}/", f"blocks.{i}."
        for theirs, name in {"LayerNorm_0": "norm1", norm2: "norm2"}.items():
            out[f"{block}{theirs}/scale"], out[f"{block}{theirs}/bias"] = t[f"{ours}{name}.weight"], t[f"{ours}{name}.bias"]
        for theirs, name in {"Dense_0": "mlp.fc1", "Dense_1": "mlp.fc2"}.items():
            out[f"{block}{mlp}/{theirs}/kernel"] = t[f"{ours}{name}.weight"].T
            out[f"{block}{mlp}/{theirs}/bias"] = t[f"{ours}{name}.bias"]
        for j, part in enumerate(("query", "key", "value")):
            rows = slice(j * c, (j + 1) * c)
            out[f"{block}{attention}/{part}/kernel"] = t[f"{ours}attn.qkv.weight"][rows].T.reshape(c, heads, -1)
            out[f"{block}{attention}/{part}/bias"] = t[f"{ours}attn.qkv.bias"][rows].reshape(heads, -1)
        out[f"{block}{attention}/out/kernel"] = t[f"{ours}attn.proj.weight"].T.reshape(heads, -1, c)
        out[f"{block}{attention}/out/bias"] = t[f"{ours}attn.proj.bias"]
    return out


def hugging_face(tensors):
    """The names that a ViTForImageClassification has for each tensor."""
    out = {}
    for name, t in tensors.items():
        parts = name.split(".")
        if parts[0] != "blocks":
            stem = {"cls_token": "vit.embeddings.cls_token", "pos_embed": "vit.embeddings.position_embeddings",
                    "patch_embed": "vit.embeddings.patch_embeddings.projection", "norm": "vit.layernorm", "head": "classifier"}[parts[0]]
            out[stem + ("." + parts[-1] if len(parts) > 1 else "")] = t
            continue
        stem = f"vit.encoder.layer.{parts[1]}."
        if parts[3] == "qkv":
            for j, part in enumerate(("query", "key", "value")):
                out[f"{stem}attention.attention.{part}.{parts[-1]}"] = t[j * len(t) // 3:(j + 1) * len(t) // 3].contiguous()
        else:
            inner = {"norm1": "layernorm_before", "norm2": "layernorm_after", "attn.proj": "attention.output.dense",
                     "mlp.fc1": "intermediate.dense", "mlp.fc2": "output.dense"}[".".join(parts[2:-1])]
            out[f"{stem}{inner}.{parts[-1]}"] = t
    return out


def export(model, form, file):
    tensors, heads = load_file(f"{model}/model.safetensors"), heads_of(model)
    if form == "vit_jax":
        arrays = {"opt/target/" + name: a for name, a in google(tensors, heads, False).items()}
        np.savez(file, **arrays, **{"opt/state/step": np.array(3)})
    elif form == "pre_logits":
        c = tensors["norm.weight"].shape[0]
        extra = {"pre_logits/kernel": np.ones((c, c), np.float32), "pre_logits/bias": np.ones(c, np.float32)}
        np.savez(file, **google(tensors, heads, False), **extra)
    elif form == "big_vision":
        np.savez(file, **{"params/" + name: a for name, a in google(tensors, heads, True).items()})
    elif form == "timm":
        torch.save({"epoch": 3, "state_dict": {"module." + name: t for name, t in tensors.items()}}, file)
    elif form == "hf":
        torch.save(hugging_face(tensors), file)
        with open(os.path.join(os.path.dirname(file), "config.json"), "w") as f:
            json.dump({"model_type": "vit", "hidden_size": tensors["norm.weight"].shape[0], "num_attention_heads": heads,
                       "layer_norm_eps": 1e-12}, f)


def check(model, converted, what):
    tensors, heads = load_file(f"{model}/model.safetensors"), heads_of(model)
    config = json.load(open(f"{converted}/config.json"))
    assert config["num_attention_heads"] == heads, config
    if what == "headless":
        tensors = {name: t for name, t in tensors.items() if not name.startswith("head.")}
    if what == "placeless":
        tensors["pos_embed"][:, 0] = 0                       # big_vision adds nothing to the class token
    want, got = hugging_face(tensors), load_file(f"{converted}/model.safetensors")
    assert want.keys() == got.keys(), want.keys() ^ got.keys()
    for name, t in want.items():
        assert t.shape == got[name].shape and t.numpy().tobytes() == got[name].numpy().tobytes(), name
    print(f"{converted}: {len(got)} tensors, the same bits")


if __name__ == "__main__":
    {"make": make, "export": export, "check": check}[sys.argv[1]](*sys.argv[2:])
