"""The step after backward: rates and decay of each parameter, schedule, clipping, AdamW and SGD on tensors and on column blocks."""
import math

import torch


# What each method starts from where the rate or a scale is 0 or --gelu is auto: rate, scales of head, biases and norms, columns; GELU's
# backward. The same table as in prebr.h.
METHOD_DEFAULTS = {
    "full": (3e-4, 10, 1, 1, "exact"),
    "head": (3e-4, 10, 1, 1, "exact"),
    "bitfit": (1e-3, 10, 10, 1, "regelu2"),
    "backrazor": (3e-4, 10, 10, 1, "regelu2"),
    "prebr": (1e-4, 100, 100, 3, "regelu2"),
    "prebr++": (1e-4, 100, 100, 3, "regelu2"),
}


def fill_method_defaults(o):
    lr, head, bias, column, gelu = METHOD_DEFAULTS[o.method]
    o.lr, o.head_lr_scale = o.lr or lr, o.head_lr_scale or head
    o.bias_lr_scale, o.column_lr_scale = o.bias_lr_scale or bias, o.column_lr_scale or column
    o.gelu = gelu if o.gelu == "auto" else o.gelu


def schedule(kind, step, warmup, total):
    """Share of the peak rate at a 0-based step."""
    if step < warmup:
        return (step + 1) / warmup
    t = (step - warmup) / max(1, total - warmup)
    return {"cosine": 0.5 * (1 + math.cos(math.pi * t)), "linear": 1 - t, "constant": 1.0}[kind]


class ColumnUpdater:
    """AdamW or SGD on the sampled column blocks of one weight [cout, cin]; all other columns stay as they are, to the bit. Each block
    counts its own updates."""

    def __init__(self, weight, shear, scale, o):
        self.weight, self.shear, self.scale, self.o = weight, shear, scale, o
        self.view = lambda tensor: tensor.view(len(weight), shear.arms, shear.width)
        self.m, self.v = torch.zeros_like(weight), torch.zeros_like(weight) if o.optimizer == "adamw" else None
        self.t = torch.zeros(shear.arms, dtype=torch.float64)

    @torch.no_grad()
    def step(self, lr):
        o, blocks, lr = self.o, self.shear.blocks, lr * self.scale
        if not len(blocks):
            return
        self.t[blocks] += 1
        t = self.t[blocks][:, None]
        g = self.shear.dw.view(len(self.weight), len(blocks), -1)
        take = lambda tensor: self.view(tensor).index_select(1, blocks)
        w, m = take(self.weight), take(self.m)
        if o.optimizer == "adamw":
            v = take(self.v)
            w.mul_(1 - lr * o.weight_decay)
            m.lerp_(g, 1 - 0.9)
            v.mul_(0.999).addcmul_(g, g, value=1 - 0.999)
            rate, root = (lr / (1 - 0.9 ** t)).to(w.dtype), (1 - 0.999 ** t).sqrt().to(w.dtype)
            w.sub_(rate * m / (v.sqrt() / root + 1e-8))
            self.view(self.v).index_copy_(1, blocks, v)
        else:
            m.mul_((t > 1) * o.momentum).add_(g).add_(w, alpha=o.weight_decay)
            w.sub_(m, alpha=lr)
        self.view(self.m).index_copy_(1, blocks, m)
        self.view(self.weight).index_copy_(1, blocks, w)


def rate_and_decay(name, o):
    """(multiple of the schedule's rate, weight decay) of a parameter by its name."""
    decay = o.weight_decay if name.endswith(("qkv.weight", "attn.proj.weight", "fc1.weight", "fc2.weight", "patch_embed.proj.weight",
                                             "pooler.weight", "head.weight")) else 0.0
    if name.startswith("head."):
        return o.head_lr_scale, decay
    if name.startswith("blocks.") and decay_matrix(name):
        return (o.column_lr_scale if o.method.startswith("prebr") else 1.0), decay
    if name.endswith(".bias") or "norm" in name:
        return o.bias_lr_scale, decay
    return 1.0, decay


def decay_matrix(name):
    return name.endswith(("qkv.weight", "proj.weight", "fc1.weight", "fc2.weight"))


class Updater:
    """PyTorch's own AdamW or SGD for whole tensors, ColumnUpdater for the layers whose columns are sampled."""

    def __init__(self, parameters, shears, o):
        groups = {}
        for name, p in parameters.items():
            if p.requires_grad:
                groups.setdefault(rate_and_decay(name, o), []).append(p)
        groups = [{"params": p, "scale": scale, "weight_decay": decay} for (scale, decay), p in groups.items()]
        if o.optimizer == "adamw":
            self.dense = torch.optim.AdamW(groups, lr=o.lr, betas=(0.9, 0.999), eps=1e-8, fused=True)
        else:
            self.dense = torch.optim.SGD(groups, lr=o.lr, momentum=o.momentum, foreach=True)
        self.parameters = [p for p in parameters.values() if p.requires_grad]
        self.columns = [ColumnUpdater(parameters[name + ".weight"], shear, rate_and_decay(name + ".weight", o)[0], o)
                        for name, shear in shears.items() if shear.kind == "columns"]
        self.clip = o.clip

    def zero(self):
        self.dense.zero_grad(set_to_none=True)
        for c in self.columns:
            c.shear.dw = None

    def step(self, lr):
        """Clips, updates, and returns the norm of all gradients before clipping."""
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        gradients += [c.shear.dw for c in self.columns if c.shear.dw is not None]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients))).item()
        if 0 < self.clip < norm:
            torch._foreach_mul_(gradients, self.clip / (norm + 1e-6))
        for group in self.dense.param_groups:
            group["lr"] = lr * group["scale"]
        self.dense.step()
        for c in self.columns:
            c.step(lr)
        return norm
