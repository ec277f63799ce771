"""A ViT on disk: model directories (config.json + model.safetensors) with Hugging Face's or timm's tensor names.

Inside the scripts a ViT is a dict of tensors under timm's names (q, k and v fused) with position embedding [prefix + n, c], class
token [c] and patch weight [c, 3, patch, patch], and a `Config`.
"""
import json
import math
import os
import re
import sys
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

HF_OUTSIDE = {"embeddings.cls_token": "cls_token", "embeddings.position_embeddings": "pos_embed",
              "embeddings.patch_embeddings.projection": "patch_embed.proj", "layernorm": "norm", "classifier": "head"}
HF_LAYER = {"layernorm_before": "norm1", "attention.output.dense": "attn.proj", "layernorm_after": "norm2",
            "intermediate.dense": "mlp.fc1", "output.dense": "mlp.fc2"}
TIMM_HEADS = {"tiny": 3, "small": 6, "base": 12, "large": 16, "huge": 16, "giant": 16, "gigantic": 16, "so400m": 16}
WIDE_HEADS = {1152: 16, 1280: 16, 1408: 16, 1664: 16}      # the widths whose heads are not 64 wide


def trouble(message):
    print(f"{os.path.basename(sys.argv[0])}: {message}", file=sys.stderr)
    sys.exit(1)


@dataclass
class Config:
    layers: int
    width: int
    heads: int
    mlp: int
    patch: int
    image_size: int
    classes: int
    class_token: bool = True
    mean_pool: bool = False             # the head reads the mean of the patch tokens, not the class token
    norm_before_pool: bool = True       # False: timm's fc_norm
    norm_eps: float = 1e-6
    mean: list = field(default_factory=lambda: [0.5, 0.5, 0.5])
    std: list = field(default_factory=lambda: [0.5, 0.5, 0.5])
    interpolation: str = "bicubic"
    class_names: list = None

    @property
    def tokens(self):
        return self.class_token + (self.image_size // self.patch) ** 2

    @property
    def final_norm(self):
        return "norm" if self.norm_before_pool else "fc_norm"


def names_from_hf(tensors):
    """Hugging Face's names to ours; q, k and v are put together."""
    ours, parts = {}, {}
    for name, tensor in tensors.items():
        name = name.removeprefix("vit.")
        stem, kind = name.rsplit(".", 1) if name.rsplit(".", 1)[-1] in ("weight", "bias") else (name, "")
        layer = re.fullmatch(r"encoder\.layer\.(\d+)\.(.*)", stem)
        if layer and (part := re.fullmatch(r"attention\.attention\.(query|key|value)", layer[2])):
            parts.setdefault(f"blocks.{layer[1]}.attn.qkv.{kind}", {})[part[1]] = tensor
        elif layer and layer[2] in HF_LAYER:
            ours[f"blocks.{layer[1]}.{HF_LAYER[layer[2]]}.{kind}"] = tensor
        elif stem in HF_OUTSIDE:
            ours[".".join(filter(None, [HF_OUTSIDE[stem], kind]))] = tensor
        elif not stem.startswith("pooler."):
            ours[name] = tensor                             # unknown: told of by the caller
    for name, part in parts.items():
        if len(part) != 3:
            trouble(f"{name}: only {', '.join(part)} in the checkpoint")
        ours[name] = torch.cat([part["query"], part["key"], part["value"]])
    return ours


def names_to_hf(tensors):
    """Our names to those of ViTForImageClassification."""
    outside = {ours: hf if hf == "classifier" else "vit." + hf for hf, ours in HF_OUTSIDE.items()}
    inside = {ours: hf for hf, ours in HF_LAYER.items()}
    theirs = {}
    for name, tensor in tensors.items():
        layer = re.fullmatch(r"blocks\.(\d+)\.(.*)\.(weight|bias)", name)
        if layer and layer[2] == "attn.qkv":
            for part, rows in zip(("query", "key", "value"), tensor.chunk(3)):
                theirs[f"vit.encoder.layer.{layer[1]}.attention.attention.{part}.{layer[3]}"] = rows.contiguous()
        elif layer:
            theirs[f"vit.encoder.layer.{layer[1]}.{inside[layer[2]]}.{layer[3]}"] = tensor
        elif name in outside:
            theirs[outside[name]] = tensor
        else:
            stem, kind = name.rsplit(".", 1)
            theirs[f"{outside[stem]}.{kind}"] = tensor
    return theirs


def read_json(path):
    try:
        with open(path) as f:
            return json.load(f)
    except OSError as error:
        trouble(f"{path}: {error.strerror}")
    except ValueError as error:
        trouble(f"{path}: not JSON: {error}")


def timm_heads(config, width):
    architecture = config.get("architecture", "")
    size = re.match(r"vit_([a-z0-9]+)", architecture)
    return config.get("model_args", {}).get("num_heads") or TIMM_HEADS.get(size and size[1]) or WIDE_HEADS.get(width, width // 64)


def load(directory):
    """(Config, tensors in float32) of a model directory."""
    path = os.path.join(directory, "model.safetensors")
    raw = read_json(os.path.join(directory, "config.json"))
    try:
        tensors = load_file(path)
    except Exception as error:                              # the library raises several unrelated kinds
        trouble(f"{path}: {error}")
    return understand(raw, tensors, directory, path)


def understand(raw, tensors, directory, path):
    """(Config, tensors) from config.json's content and tensors as a file names them; path is what complaints name."""
    hf = "hidden_size" in raw or any(name.removeprefix("vit.").startswith("encoder.layer.") for name in tensors)
    tensors = {name: t.float() for name, t in (names_from_hf(tensors) if hf else tensors).items()}
    tensors = shaped(tensors, path)
    return config_of(raw, tensors, directory if hf else None), tensors


def shaped(tensors, path):
    for name in ("patch_embed.proj.weight", "pos_embed", "blocks.0.attn.qkv.weight", "blocks.0.mlp.fc1.weight"):
        if name not in tensors:
            trouble(f"{path}: no tensor {name} (or its Hugging Face name): not a ViT")
    known = re.compile(r"(patch_embed\.proj|(fc_)?norm|head|blocks\.\d+\.(norm[12]|attn\.(qkv|proj)|mlp\.fc[12]))\.(weight|bias)"
                       r"|cls_token|pos_embed")
    for name in tensors:
        if not known.fullmatch(name):
            trouble(f"{path}: tensor {name} belongs to no ViT that is known here")
    for name, t in tensors.items():
        if not t.isfinite().all():
            trouble(f"{path}: tensor {name} holds a value that is not finite")
    if "cls_token" in tensors:
        tensors["cls_token"] = tensors["cls_token"].flatten()
    tensors["pos_embed"] = tensors["pos_embed"].flatten(0, -2)
    return tensors


def config_of(raw, tensors, hf_directory):
    """Sizes from the tensors; what they leave open (heads, epsilon, pixels) from config.json and preprocessor_config.json."""
    weight = tensors["patch_embed.proj.weight"]
    width, patch = weight.shape[0], weight.shape[3]
    class_token = "cls_token" in tensors
    grid = math.isqrt(tensors["pos_embed"].shape[-2] - class_token)
    if grid * grid != tensors["pos_embed"].shape[-2] - class_token:
        trouble(f"pos_embed has {tensors['pos_embed'].shape[-2]} places: not a square grid and {int(class_token)} class token")
    c = Config(layers=sum(name.endswith("attn.qkv.weight") for name in tensors), width=width, heads=0,
               mlp=tensors["blocks.0.mlp.fc1.weight"].shape[0], patch=patch, image_size=grid * patch,
               classes=tensors["head.weight"].shape[0] if "head.weight" in tensors else 0, class_token=class_token,
               norm_before_pool="norm.weight" in tensors)
    if hf_directory:
        if raw.get("hidden_act", "gelu") != "gelu":
            trouble(f"config.json: hidden_act {raw['hidden_act']}: only gelu is known")
        pixels = os.path.join(hf_directory, "preprocessor_config.json")
        pixels = read_json(pixels) if os.path.exists(pixels) else {}
        names = raw.get("id2label")
        c.heads, c.norm_eps = raw.get("num_attention_heads", width // 64), raw.get("layer_norm_eps", 1e-12)
        c.image_size = raw.get("image_size", c.image_size)
        c.mean, c.std = pixels.get("image_mean", c.mean), pixels.get("image_std", c.std)
        c.interpolation = "bicubic" if pixels.get("resample", 2) == 3 else "bilinear"
        c.class_names = [names[str(i)] for i in range(c.classes)] if names and len(names) == c.classes else None
    else:
        pixels = raw.get("pretrained_cfg", raw)
        c.heads = timm_heads(raw, width)
        c.mean_pool = raw.get("global_pool", "token" if class_token else "avg") == "avg"
        c.mean, c.std = pixels.get("mean", c.mean), pixels.get("std", c.std)
        c.interpolation = pixels.get("interpolation", c.interpolation)
    return c


def resample_position(position, class_token, size):
    """Position embedding [prefix + n, c] on a grid of size x size: bicubic, antialiased."""
    prefix, grid = position[:class_token], position[class_token:]
    old = math.isqrt(len(grid))
    grid = grid.t().reshape(1, -1, old, old)
    grid = F.interpolate(grid, size=(size, size), mode="bicubic", antialias=True)
    return torch.cat([prefix, grid.flatten(2)[0].t()])


def save(directory, c, tensors):
    """Writes a Hugging Face ViTForImageClassification directory; timm's where Hugging Face's ViT cannot express the model."""
    os.makedirs(directory, exist_ok=True)
    tensors = {name: t.detach().contiguous() for name, t in tensors.items()}
    tensors["pos_embed"] = tensors["pos_embed"].view(1, -1, c.width)
    if c.class_token:
        tensors["cls_token"] = tensors["cls_token"].view(1, 1, c.width)
    files = {}
    if c.class_token and not c.mean_pool and c.norm_before_pool:
        files["config.json"] = {
            "architectures": ["ViTForImageClassification" if c.classes else "ViTModel"], "model_type": "vit", "hidden_act": "gelu",
            "hidden_size": c.width, "num_hidden_layers": c.layers, "num_attention_heads": c.heads, "intermediate_size": c.mlp,
            "image_size": c.image_size, "patch_size": c.patch, "num_channels": 3, "layer_norm_eps": c.norm_eps,
            "qkv_bias": "blocks.0.attn.qkv.bias" in tensors, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        if c.classes:                                       # an empty id2label would mean a model without classifier to transformers
            names = c.class_names or [str(i) for i in range(c.classes)]
            files["config.json"] |= {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
        size = {"height": c.image_size, "width": c.image_size}
        files["preprocessor_config.json"] = {
            "image_processor_type": "ViTImageProcessor", "do_resize": True, "size": size,
            "resample": 3 if c.interpolation == "bicubic" else 2, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True,
            "image_mean": list(c.mean), "image_std": list(c.std)}
        tensors = names_to_hf(tensors)
    else:
        files["config.json"] = {
            "architecture": "vit", "num_classes": c.classes, "num_features": c.width,
            "global_pool": "avg" if c.mean_pool else "token",
            "model_args": {"img_size": c.image_size, "patch_size": c.patch, "embed_dim": c.width, "depth": c.layers,
                           "num_heads": c.heads, "mlp_ratio": c.mlp / c.width, "class_token": c.class_token},
            "pretrained_cfg": {"input_size": [3, c.image_size, c.image_size], "mean": list(c.mean), "std": list(c.std),
                               "interpolation": c.interpolation, "num_classes": c.classes}}
    for name, content in files.items():
        with open(os.path.join(directory, name), "w") as f:
            json.dump(content, f, indent=2)
            f.write("\n")
    save_file(tensors, os.path.join(directory, "model.safetensors"), metadata={"format": "pt"})
