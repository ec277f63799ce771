#!/usr/bin/env python3
"""train_vit in plain PyTorch: same options, same batches, crops, masks and updates, same log.csv.

It is what train_vit is held against, step by step, and what its speed is compared with. Nothing is shared but files.

    reference_vit.py -m vit_tiny/ -d cifar-10-batches-bin/ --method prebr++ --keep 0.5 --steps 50 -o runs/reference
    scripts/compare_logs.py runs/native/log.csv runs/reference/log.csv
"""
import argparse
import math
import os

import numpy as np
import torch
import torch.nn.functional as F

import vit_checkpoint
from labelled_images import open_images, prepare
from philox import centre_crops, random_crops, shuffle_order
from sheared import PrunedAttention, ReGelu2
from twin import Model, add_method_options, add_run_options, open_log, parse, train
from vit_checkpoint import trouble


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    g = p.add_argument_group("files")
    g.add_argument("-m", "--model", required=True, help="directory with config.json and model.safetensors (Hugging Face or timm ViT)")
    g.add_argument("-d", "--data", required=True, help="CIFAR-10/100 or IDX directory, or an image pack")
    g.add_argument("-o", "--out", help="run directory: log.csv, and model/ with --save")
    g.add_argument("--classes", help='only these classes, e.g. "0-4,7"')
    g.add_argument("--save", action="store_true", help="write OUT/model at the end")
    g = add_run_options(p, 32)
    g.add_argument("--eval", action="store_true", help="no training: accuracy of the test split with the checkpoint's own head")
    g.add_argument("--logits", help="with --eval: the logits as FILE.npy, or FILE.bin (float32)")
    g.add_argument("--limit", type=int, default=0, help="with --eval: only the first so many images")
    g = p.add_argument_group("images")
    g.add_argument("--image-size", type=int, default=0, help="0: the checkpoint's")
    g.add_argument("--augment", choices=["none", "flip", "crop"], default="crop")
    g.add_argument("--crop-scale", type=float, default=0.5)
    add_method_options(p)
    return parse(p)


class Vit(Model):
    """The model as functions over one dict of parameters (timm's names)."""

    idle_when_detached = ("norm1.weight", "norm1.bias", "attn.qkv.bias")

    def attention(self, qkv):
        """[b, t, c] from [b, t, 3c]."""
        b, t, width = qkv.shape
        q, k, v = qkv.view(b, t, 3, self.c.heads, -1).unbind(2)             # [b, t, h, d]
        if self.o.attention == "flash":
            out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)).transpose(1, 2)
        elif self.o.method == "backrazor" and torch.is_grad_enabled():
            out = PrunedAttention.apply(q, k, v, self.o.prune)
        else:
            q, k, v = (a.transpose(1, 2) for a in (q, k, v))
            out = ((q @ k.transpose(2, 3) / math.sqrt(q.shape[3])).softmax(3) @ v).transpose(1, 2)
        return out.reshape(b, t, width // 3)

    def block(self, i, x):
        name = f"blocks.{i}."
        qkv = self.linear(name + "attn.qkv", self.norm(name + "norm1", x))
        if i in self.detached:
            qkv = qkv.detach()
        x = x + self.linear(name + "attn.proj", self.attention(qkv))
        h = self.linear(name + "mlp.fc1", self.norm(name + "norm2", x))
        h = ReGelu2.apply(h) if self.o.gelu == "regelu2" else F.gelu(h)
        return x + self.linear(name + "mlp.fc2", h)

    def logits(self, images):
        c, p = self.c, self.parameters
        b, grid, patch = len(images), c.image_size // c.patch, c.patch
        patches = images[:, :, :grid * patch, :grid * patch].reshape(b, 3, grid, patch, grid, patch)
        patches = patches.permute(0, 2, 4, 1, 3, 5).reshape(b, grid * grid, -1)             # columns: channel, y, x
        x = F.linear(patches, p["patch_embed.proj.weight"].flatten(1), p["patch_embed.proj.bias"])
        if c.class_token:
            x = torch.cat([p["cls_token"].expand(b, 1, -1), x], 1)
        x = x + p["pos_embed"]
        for i in range(c.layers):
            x = self.block(i, x)
        pool = lambda x: x[:, int(c.class_token):].mean(1) if c.mean_pool else x[:, 0]
        # A norm of single tokens may follow the choice of the class token: same numbers, fewer rows.
        x = pool(self.norm("norm", x)) if c.mean_pool and c.norm_before_pool else self.norm(c.final_norm, pool(x))
        return F.linear(x, p["head.weight"], p["head.bias"])

    def loss(self, batch):
        images, labels = batch
        return F.cross_entropy(self.logits(images), labels, reduction="sum")


class Batches:
    """Training batches by number over the whole run."""

    def __init__(self, data, config, o, dtype):
        self.images, self.labels = data.train
        self.c, self.o, self.dtype = config, o, dtype
        self.per_epoch = len(self.labels) // o.batch
        if not self.per_epoch:
            trouble(f"{o.data}: --batch {o.batch} is more than its {len(self.labels)} training images")
        self.epoch, self.order = -1, None

    def get(self, number):
        epoch, place = divmod(number, self.per_epoch)
        if epoch != self.epoch:
            self.epoch, self.order = epoch, shuffle_order(len(self.labels), self.o.seed, epoch)
        index = self.order[place * self.o.batch:(place + 1) * self.o.batch]
        height, width = self.images.shape[2:]
        if self.o.augment == "crop":
            boxes = random_crops(index, height, width, self.o.crop_scale, self.o.seed, epoch)
        else:
            boxes = centre_crops(index, height, width, self.o.seed if self.o.augment == "flip" else None, epoch)
        return prepare(self.images[index], boxes, self.c, self.dtype), torch.from_numpy(self.labels[index])


@torch.no_grad()
def evaluate(model, split, o, dtype):
    """Logits [n, classes] of a split, in the order of the file."""
    images, labels = split
    out = []
    for start in range(0, len(labels), o.batch):
        index = np.arange(start, min(start + o.batch, len(labels)))
        out.append(model.logits(prepare(images[index], centre_crops(index, *images.shape[2:]), model.c, dtype)))
    return torch.cat(out)


def accuracy(logits, labels):
    return int((logits.numpy().argmax(1) == labels).sum()) / len(labels)     # NumPy's argmax takes the first of equals


def main():
    o = options()
    if o.threads:
        torch.set_num_threads(o.threads)
    dtype = torch.float64 if o.double else torch.float32
    config, tensors = vit_checkpoint.load(o.model)
    data = open_images(o.data)
    if o.classes:
        data.keep_classes(o.classes)
    if o.image_size and o.image_size != config.image_size:
        grid = o.image_size // config.patch
        tensors["pos_embed"] = vit_checkpoint.resample_position(tensors["pos_embed"], int(config.class_token), grid)
        config.image_size = o.image_size
    if config.classes != data.classes and not (o.eval and config.classes):
        print(f"head: {config.classes} classes in the checkpoint, {data.classes} in the data: starts from zero")
        config.classes = data.classes
        tensors["head.weight"], tensors["head.bias"] = torch.zeros(data.classes, config.width), torch.zeros(data.classes)
    if config.classes == data.classes:
        config.class_names = data.names
    model = Vit(config, tensors, o, dtype)
    if o.eval:
        images, labels = (a[:o.limit or None] for a in data.test)
        logits = evaluate(model, (images, labels), o, dtype)
        print(f"accuracy {accuracy(logits, labels):.6f} ({len(labels)} images)")
        if o.logits:
            array = logits.float().numpy()
            np.save(o.logits, array) if o.logits.endswith(".npy") else array.tofile(o.logits)
        return
    score = (lambda: accuracy(evaluate(model, data.test, o, dtype), data.test[1])) if len(data.test[1]) else None
    train(model, Batches(data, config, o, dtype), score, o, open_log(o.out, "images"))
    if o.out and o.save:
        trained = {name: p.float() for name, p in model.parameters.items()}
        vit_checkpoint.save(os.path.join(o.out, "model"), config, trained)


if __name__ == "__main__":
    main()
