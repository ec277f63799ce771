"""A BERT on disk, Hugging Face's names and the old gamma / beta, as a dict of tensors under the twins' names (twin.py) and a `Config`."""
import json
import os
import re
from dataclasses import dataclass

import torch
from safetensors.torch import load_file

from philox import initial_values

OUTSIDE = {"embeddings.word_embeddings": "embed.word", "embeddings.position_embeddings": "embed.position",
           "embeddings.token_type_embeddings": "embed.segment", "embeddings.LayerNorm": "embed.norm", "pooler.dense": "pooler", "classifier": "head"}
LAYER = {"attention.output.dense": "attn.proj", "attention.output.LayerNorm": "norm1", "intermediate.dense": "mlp.fc1", "output.dense": "mlp.fc2",
         "output.LayerNorm": "norm2"}


@dataclass
class Config:
    layers: int
    width: int
    heads: int
    norm_eps: float
    dropout: float
    attention_dropout: float
    head_dropout: float
    outputs: int


def load(directory, seed):
    with open(os.path.join(directory, "config.json"), encoding="utf-8") as f:
        c = json.load(f)
    found, parts = {}, {}
    for name, tensor in load_file(os.path.join(directory, "model.safetensors")).items():
        stem, _, kind = name.removeprefix("bert.").rpartition(".")
        kind = {"gamma": "weight", "beta": "bias"}.get(kind, kind)
        layer = re.fullmatch(r"encoder\.layer\.(\d+)\.(.*)", stem)
        if layer and (part := re.fullmatch(r"attention\.self\.(query|key|value)", layer[2])):
            parts.setdefault(f"blocks.{layer[1]}.attn.qkv.{kind}", {})[part[1]] = tensor.float()
        elif layer:
            found[f"blocks.{layer[1]}.{LAYER[layer[2]]}.{kind}"] = tensor.float()
        elif stem in OUTSIDE:
            found[f"{OUTSIDE[stem]}.{kind}"] = tensor.float()
    found |= {name: torch.cat([p["query"], p["key"], p["value"]]) for name, p in parts.items()}
    layers, width, dropout = c["num_hidden_layers"], c["hidden_size"], c.get("hidden_dropout_prob", 0.1)
    if "pooler.weight" not in found:
        found["pooler.weight"] = torch.from_numpy(initial_values(seed, 5 + 12 * layers, width * width)).view(width, width)
        found["pooler.bias"] = torch.zeros(width)
    head = found.get("head.weight")
    config = Config(layers, width, c["num_attention_heads"], c.get("layer_norm_eps", 1e-12), dropout, c.get("attention_probs_dropout_prob", 0.1),
                    dropout if c.get("classifier_dropout") is None else c["classifier_dropout"], 0 if head is None else len(head))
    return config, found
