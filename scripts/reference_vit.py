#!/usr/bin/env python3
"""train_vit in plain PyTorch: same options, same batches, crops, masks and updates, same log.csv.

It is what train_vit is held against, step by step, and what its speed is compared with. Nothing is shared but files.

    reference_vit.py -m vit_tiny/ -d cifar-10-batches-bin/ --method prebr++ --keep 0.5 --steps 50 -o runs/reference
    scripts/compare_logs.py runs/native/log.csv runs/reference/log.csv
"""
import argparse
import math
import os
import resource
import time

import numpy as np
import torch
import torch.nn.functional as F

import vit_checkpoint
from arms import ArmGroup
from labelled_images import open_images, prepare
from philox import centre_crops, random_crops, shuffle_order
from sheared import KeptBytes, PrunedAttention, ReGelu2, Shear, ShearedLinear
from updates import Updater, fill_method_defaults, schedule
from vit_checkpoint import trouble

MATRICES = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
LOG_COLUMNS = "step,epoch,loss,lr,grad_norm,accuracy,ms,samples_per_s,kept_bytes,peak_bytes"


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    g = p.add_argument_group("files")
    g.add_argument("-m", "--model", required=True, help="directory with config.json and model.safetensors (Hugging Face or timm ViT)")
    g.add_argument("-d", "--data", required=True, help="CIFAR-10/100 or IDX directory, or an image pack")
    g.add_argument("-o", "--out", help="run directory: log.csv, and model/ with --save")
    g.add_argument("--classes", help='only these classes, e.g. "0-4,7"')
    g.add_argument("--save", action="store_true", help="write OUT/model at the end")
    g = p.add_argument_group("run")
    g.add_argument("-b", "--batch", type=int, default=32)
    g.add_argument("--accumulate", type=int, default=1, help="batches a step")
    g.add_argument("--epochs", type=int, default=3)
    g.add_argument("--steps", type=int, default=0, help="0: epochs decide")
    g.add_argument("--seed", type=int, default=1)
    g.add_argument("--threads", type=int, default=0)
    g.add_argument("--eval-every", type=int, default=0, help="steps; 0: at the end of each epoch, -1: never")
    g.add_argument("--eval", action="store_true", help="no training: accuracy of the test split with the checkpoint's own head")
    g.add_argument("--logits", help="with --eval: the logits as FILE.npy, or FILE.bin (float32)")
    g.add_argument("--limit", type=int, default=0, help="with --eval: only the first so many images")
    g.add_argument("--double", action="store_true", help="compute in float64")
    g = p.add_argument_group("images")
    g.add_argument("--image-size", type=int, default=0, help="0: the checkpoint's")
    g.add_argument("--augment", choices=["none", "flip", "crop"], default="crop")
    g.add_argument("--crop-scale", type=float, default=0.5)
    g = p.add_argument_group("optimizer")
    g.add_argument("--optimizer", choices=["adamw", "sgd"], default="adamw")
    g.add_argument("--lr", type=float, default=0.0, help="0: the method's own, likewise the three scales")
    g.add_argument("--head-lr-scale", type=float, default=0.0)
    g.add_argument("--bias-lr-scale", type=float, default=0.0)
    g.add_argument("--column-lr-scale", type=float, default=0.0)
    g.add_argument("--schedule", choices=["cosine", "linear", "constant"], default="cosine")
    g.add_argument("--warmup", type=int, default=20, help="steps")
    g.add_argument("--weight-decay", type=float, default=0.01)
    g.add_argument("--momentum", type=float, default=0.9, help="of sgd")
    g.add_argument("--clip", type=float, default=1.0, help="global norm; 0: off")
    g = p.add_argument_group("method")
    g.add_argument("--method", choices=["full", "head", "bitfit", "backrazor", "prebr", "prebr++"], default="full")
    g.add_argument("--policy", choices=["bandit", "uniform", "norm"], default="bandit")
    g.add_argument("--keep", type=float, default=0.5)
    g.add_argument("--prune", type=float, default=0.8)
    g.add_argument("--column-block", type=int, default=16)
    g.add_argument("--resample", type=int, default=20, help="steps between samplings")
    g.add_argument("--importance-weight", action="store_true")
    g.add_argument("--alpha", type=float, default=1e-3)
    g.add_argument("--p-min", type=float, default=1e-3)
    g.add_argument("--detach-frozen", action="store_true")
    g.add_argument("--gelu", choices=["exact", "regelu2", "auto"], default="auto")
    g.add_argument("--attention", choices=["flash", "materialized"], default="flash")
    o = p.parse_args()
    if o.batch < 1 or o.accumulate < 1 or o.resample < 1 or not 0 < o.keep <= 1 or not 0 <= o.prune <= 1:
        p.error("batch, accumulate and resample are at least 1, keep is in (0, 1], prune in [0, 1]")
    if o.optimizer == "sgd" and not o.lr:
        p.error("--optimizer sgd: give it a rate with --lr; the methods' own are AdamW's")
    fill_method_defaults(o)
    return o


class Vit:
    """The model as functions over one dict of parameters (timm's names). `shears` says which linear layers keep less than PyTorch."""

    def __init__(self, config, tensors, o, dtype):
        self.c, self.o = config, o
        self.parameters = {name: t.detach().to(dtype, copy=True).requires_grad_(self.learns(name)) for name, t in tensors.items()}
        self.shears = {}
        self.detached = set()          # layers whose attention passes no gradient in this step
        if o.method in ("backrazor", "prebr", "prebr++"):
            for i in range(config.layers):
                for kind in MATRICES:
                    self.shears[f"blocks.{i}.{kind}"] = self.shear_of(f"blocks.{i}.{kind}")

    def learns(self, name):
        """Whether autograd has a gradient for it (those of sampled columns are compact and are kept beside it)."""
        if name.startswith("head."):
            return True
        if self.o.method == "prebr++":
            return not (name.startswith("blocks.") and name.endswith(tuple(kind + ".weight" for kind in MATRICES)))
        return {"head": False, "bitfit": name.endswith(".bias")}.get(self.o.method, True)

    def shear_of(self, name):
        if self.o.method != "prebr++":
            return Shear("pruned", prune=self.o.prune)
        columns = self.parameters[name + ".weight"].shape[1]
        if columns % self.o.column_block:
            trouble(f"--column-block {self.o.column_block} does not divide the {columns} input columns of {name}")
        return Shear("columns", width=self.o.column_block, columns=columns)

    def linear(self, name, x):
        w, b = self.parameters[name + ".weight"], self.parameters.get(name + ".bias")
        if name in self.shears and torch.is_grad_enabled():
            return ShearedLinear.apply(x, w, b, self.shears[name])
        return F.linear(x, w, b)

    def norm(self, name, x):
        return F.layer_norm(x, (self.c.width,), self.parameters[name + ".weight"], self.parameters[name + ".bias"], self.c.norm_eps)

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


class Arms:
    """Which matrices (prebr) or column blocks of them (prebr++) learn, over the whole model."""

    def __init__(self, model, o):
        self.model, self.o, self.groups = model, o, []
        if o.method not in ("prebr", "prebr++"):
            return
        for number, kind in enumerate(MATRICES):
            names = [f"blocks.{i}.{kind}" for i in range(model.c.layers)]
            group = ArmGroup(number, sum(model.shears[name].arms for name in names), o.keep)
            ends = np.cumsum([model.shears[name].arms for name in names]).tolist()
            self.groups.append((group, [(name, model.shears[name], slice(end - model.shears[name].arms, end))
                                        for name, end in zip(names, ends)]))

    def members(self):
        """(group, name, shear, places of its arms in the group) of every linear layer."""
        return [(group, *member) for group, names in self.groups for member in names]

    def resample(self, step):
        if not self.groups or step % self.o.resample:
            return
        for group, _ in self.groups:
            group.resample(self.o.policy, step // self.o.resample, self.o.seed, self.o.alpha, self.o.p_min)
        self.model.detached = set()
        for group, name, shear, places in self.members():
            sampled = group.sampled[places]
            if self.o.method == "prebr++":
                shear.blocks = torch.from_numpy(np.flatnonzero(sampled))
            else:
                shear.kind = "pruned" if sampled[0] else "frozen"
                self.model.parameters[name + ".weight"].requires_grad_(bool(sampled[0]))
            if self.o.detach_frozen and name.endswith("qkv") and not sampled.any():
                self.model.detached.add(int(name.split(".")[1]))

    def watch(self, step):
        """Before the last step of a sampling, policy `norm` asks for the inputs' squares."""
        last = (step + 1) % self.o.resample == 0
        for _, _, shear, _ in self.members():
            shear.input_squares = torch.zeros(shear.arms, dtype=torch.float64) if last and self.o.policy == "norm" else None

    def gradient(self, name, shear):
        return self.model.parameters[name + ".weight"].grad if self.o.method == "prebr" else shear.dw

    def measure_and_weigh(self, step):
        """After backward: what the next resampling needs to know, then --importance-weight."""
        last = (step + 1) % self.o.resample == 0
        for group, name, shear, places in self.members():
            if last and self.o.policy == "norm":
                group.squares[places] = shear.input_squares.numpy()
            gradient, sampled = self.gradient(name, shear), group.sampled[places]
            if gradient is None:
                continue
            by_arm = gradient.view(len(gradient), int(sampled.sum()), -1)
            if last and self.o.policy == "bandit":
                group.squares[places][sampled] = by_arm.double().square().sum((0, 2)).numpy()
            if self.o.importance_weight:
                by_arm.mul_(torch.from_numpy(np.float32(1 / group.p[places][sampled])).to(by_arm.dtype)[:, None])


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


def fill_missing_gradients(model):
    """Zeros where a detached attention leaves none: such parameters are still updated (their moments fade)."""
    for i in model.detached:
        for name in ("norm1.weight", "norm1.bias", "attn.qkv.bias"):
            p = model.parameters.get(f"blocks.{i}.{name}")
            if p is not None and p.grad is None:
                p.grad = torch.zeros_like(p)


def train(model, data, o, dtype, log):
    batches, arms = Batches(data, model.c, o, dtype), Arms(model, o)
    updater = Updater(model.parameters, model.shears, o)
    total = o.steps or o.epochs * batches.per_epoch // o.accumulate
    eval_every = o.eval_every or max(1, batches.per_epoch // o.accumulate)
    kept = 0
    for step in range(total):
        start = time.perf_counter()
        arms.resample(step)
        arms.watch(step)
        updater.zero()
        loss_sum = 0.0
        for j in range(o.accumulate):
            images, labels = batches.get(step * o.accumulate + j)
            meter = KeptBytes(model.parameters.values()) if step % o.resample == 0 and j == 0 else None
            if meter:
                with meter:
                    loss = F.cross_entropy(model.logits(images), labels, reduction="sum") / (o.batch * o.accumulate)
                kept = meter.bytes
            else:
                loss = F.cross_entropy(model.logits(images), labels, reduction="sum") / (o.batch * o.accumulate)
            loss.backward()
            loss_sum += loss.item()
        if not math.isfinite(loss_sum):
            trouble(f"step {step + 1}: the loss is {loss_sum}")
        fill_missing_gradients(model)
        arms.measure_and_weigh(step)
        lr = o.lr * schedule(o.schedule, step, o.warmup, total)
        grad_norm = updater.step(lr)
        seconds = time.perf_counter() - start

        due = step + 1 == total or (step + 1) % eval_every == 0
        wanted = due and o.eval_every >= 0 and len(data.test[1])
        score = accuracy(evaluate(model, data.test, o, dtype), data.test[1]) if wanted else None
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        epoch, rate = (step + 1) * o.accumulate / batches.per_epoch, o.batch * o.accumulate / seconds
        log(step + 1, epoch, loss_sum, lr, grad_norm, score, seconds * 1e3, rate, kept, peak)


def open_log(directory):
    """A function that writes one line to DIR/log.csv (if there is a directory) and one to the console."""
    f = None
    if directory:
        os.makedirs(directory, exist_ok=True)
        f = open(os.path.join(directory, "log.csv"), "w")
        f.write(LOG_COLUMNS + "\n")

    def log(step, epoch, loss, lr, grad_norm, score, ms, rate, kept, peak):
        if f:
            values = ["%.9g" % v for v in (epoch, loss, lr, grad_norm)] + ["" if score is None else "%.9g" % score]
            f.write(",".join([str(step), *values, "%.9g" % ms, "%.9g" % rate, str(kept), str(peak)]) + "\n")
            f.flush()
        print(f"step {step}  epoch {epoch:.2f}  loss {loss:.4f}  lr {lr:.2e}  norm {grad_norm:.3f}  {rate:.1f} images/s"
              + ("" if score is None else f"  accuracy {score:.4f}"), flush=True)

    return log


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
    train(model, data, o, dtype, open_log(o.out))
    if o.out and o.save:
        trained = {name: p.float() for name, p in model.parameters.items()}
        vit_checkpoint.save(os.path.join(o.out, "model"), config, trained)


if __name__ == "__main__":
    main()
