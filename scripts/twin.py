"""What the PyTorch twins of train_vit and train_bert share: options, linear layers that keep less, arms, the training loop, the log.

A model has parameters under the names blocks.{i}.attn.qkv.weight and so on (MATRICES below), head.weight and head.bias; it is a `Model` with
`logits` and `loss` of its own.
"""
import math
import os
import resource
import time

import numpy as np
import torch
import torch.nn.functional as F

from arms import ArmGroup
from sheared import KeptBytes, Shear, ShearedLinear
from updates import Updater, fill_method_defaults, schedule
from vit_checkpoint import trouble

MATRICES = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
LOG_COLUMNS = "step,epoch,loss,lr,grad_norm,accuracy,ms,samples_per_s,kept_bytes,peak_bytes"


def add_run_options(p, batch):
    g = p.add_argument_group("run")
    g.add_argument("-b", "--batch", type=int, default=batch)
    g.add_argument("--accumulate", type=int, default=1, help="batches a step")
    g.add_argument("--epochs", type=int, default=3)
    g.add_argument("--steps", type=int, default=0, help="0: epochs decide")
    g.add_argument("--seed", type=int, default=1)
    g.add_argument("--threads", type=int, default=0)
    g.add_argument("--eval-every", type=int, default=0, help="steps; 0: at the end of each epoch, -1: never")
    g.add_argument("--double", action="store_true", help="compute in float64")
    return g


def add_method_options(p, lr=0.0, scale=0.0, warmup=20, gelu="auto"):
    """The defaults may be left to the method (updates.py): rate and scales 0, GELU auto."""
    g = p.add_argument_group("optimizer")
    g.add_argument("--optimizer", choices=["adamw", "sgd"], default="adamw")
    g.add_argument("--lr", type=float, default=lr, help="0: the method's own, likewise the three scales")
    g.add_argument("--head-lr-scale", type=float, default=scale)
    g.add_argument("--bias-lr-scale", type=float, default=scale)
    g.add_argument("--column-lr-scale", type=float, default=scale)
    g.add_argument("--schedule", choices=["cosine", "linear", "constant"], default="cosine")
    g.add_argument("--warmup", type=int, default=warmup, help="steps")
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
    g.add_argument("--gelu", choices=["exact", "regelu2", "auto"], default=gelu)
    g.add_argument("--attention", choices=["flash", "materialized"], default="flash")


def parse(p):
    o = p.parse_args()
    if o.batch < 1 or o.accumulate < 1 or o.resample < 1 or not 0 < o.keep <= 1 or not 0 <= o.prune <= 1:
        p.error("batch, accumulate and resample are at least 1, keep is in (0, 1], prune in [0, 1]")
    if o.optimizer == "sgd" and not o.lr:
        p.error("--optimizer sgd: give it a rate with --lr; the methods' own are AdamW's")
    fill_method_defaults(o)
    return o


class Model:
    """Parameters as one dict. `shears` says which linear layers keep less than PyTorch."""

    idle_when_detached = ()            # parameters of a layer that get no gradient where its attention passes none

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


def fill_missing_gradients(model):
    """Zeros where a detached attention leaves none: such parameters are still updated (their moments fade)."""
    for i in model.detached:
        for name in model.idle_when_detached:
            p = model.parameters.get(f"blocks.{i}.{name}")
            if p is not None and p.grad is None:
                p.grad = torch.zeros_like(p)


def train(model, batches, score, o, log):
    """batches: per_epoch and get(number); model.loss of one: the sum over its samples. score: None, or a function without arguments."""
    arms = Arms(model, o)
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
            model.number = step * o.accumulate + j
            batch = batches.get(model.number)
            meter = KeptBytes(model.parameters.values()) if step % o.resample == 0 and j == 0 else None
            if meter:
                with meter:
                    loss = model.loss(batch) / (o.batch * o.accumulate)
                kept = meter.bytes
            else:
                loss = model.loss(batch) / (o.batch * o.accumulate)
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
        value = score() if due and o.eval_every >= 0 and score else None
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        epoch, rate = (step + 1) * o.accumulate / batches.per_epoch, o.batch * o.accumulate / seconds
        log(step + 1, epoch, loss_sum, lr, grad_norm, value, seconds * 1e3, rate, kept, peak)


def open_log(directory, samples):
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
        print(f"step {step}  epoch {epoch:.2f}  loss {loss:.4f}  lr {lr:.2e}  norm {grad_norm:.3f}  {rate:.1f} {samples}/s"
              + ("" if score is None else f"  accuracy {score:.4f}"), flush=True)

    return log
