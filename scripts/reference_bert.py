#!/usr/bin/env python3
"""train_bert in plain PyTorch: same options, same batches, dropout, masks and updates, same log.csv.

It is what train_bert is held against, step by step, and what its speed is compared with. Nothing is shared but files.

    reference_bert.py -m bert/ -d rte.tok --method prebr++ --keep 0.5 --steps 50 -o runs/reference
    scripts/compare_logs.py runs/native/log.csv runs/reference/log.csv
"""
import argparse
import math

import numpy as np
import torch
import torch.nn.functional as F

import bert_checkpoint
from philox import dropout_factors
from sheared import PrunedAttention, ReGelu2
from token_file import epoch_order, metric, open_tokens
from twin import Model, add_method_options, add_run_options, open_log, parse, train
from vit_checkpoint import trouble

SITE_LAYERS, SITES = 1, 3       # 0 the embeddings; then attention weights, projection, MLP of each layer; then the head


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    g = p.add_argument_group("files")
    g.add_argument("-m", "--model", required=True, help="directory with config.json and model.safetensors of a Hugging Face BERT")
    g.add_argument("-d", "--data", required=True, help="token file (scripts/tokenize_glue.py)")
    g.add_argument("-o", "--out", help="run directory: log.csv")
    add_run_options(p, 8)
    g = p.add_argument_group("text")
    g.add_argument("--dropout", type=float, default=-1.0, help="everywhere; -1: the checkpoint's own")
    g.add_argument("--group-by-length", action="store_true")
    add_method_options(p, lr=5e-5, scale=1.0, warmup=0, gelu="exact")
    return parse(p)


class Bert(Model):
    """A norm belongs to the block that reads it, as in train_bert.cu: `embed.norm`, or norm2 of the block below."""

    idle_when_detached = ("attn.qkv.bias",)
    training = number = 0           # number: of the batch over the whole run

    def drop(self, x, p, site):
        if not self.training or p <= 0:
            return x
        factors = dropout_factors(p, self.o.seed, self.number, (site << 40) + np.arange(-(-x.numel() // 4)))
        return x * torch.from_numpy(factors.ravel()[:x.numel()]).view(x.shape).to(x.dtype)

    def attention_factors(self, b, t, site):
        p, h, groups = self.c.attention_dropout, self.c.heads, -(-t // 4)
        if not self.training or p <= 0:
            return None
        factors = dropout_factors(p, self.o.seed, self.number, (site << 40) + np.arange(b * h * t * groups))
        return torch.from_numpy(factors).view(b, h, t, 4 * groups)[..., :t].to(self.parameters["head.bias"].dtype)

    def attention(self, qkv, hidden, site):
        """[b, t, c] from [b, t, 3c]; hidden [b, 1, 1, t]: padding."""
        b, t, width = qkv.shape
        q, k, v = qkv.view(b, t, 3, self.c.heads, -1).unbind(2)             # [b, t, h, d]
        factor = self.attention_factors(b, t, site)
        if self.o.attention == "flash" and factor is None:
            out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=~hidden).transpose(1, 2)
        elif self.o.attention == "materialized" and self.o.method == "backrazor" and torch.is_grad_enabled():
            out = PrunedAttention.apply(q, k, v, self.o.prune, hidden, factor)
        else:
            q, k, v = (a.transpose(1, 2) for a in (q, k, v))
            probs = (q @ k.transpose(2, 3) / math.sqrt(q.shape[3])).masked_fill(hidden, -math.inf).softmax(3)
            out = ((probs if factor is None else probs * factor) @ v).transpose(1, 2)
        return out.reshape(b, t, width // 3)

    def block(self, i, x, hidden):
        name, site = f"blocks.{i}.", SITE_LAYERS + SITES * i
        n1 = self.norm(f"blocks.{i - 1}.norm2" if i else "embed.norm", x)
        if i == 0:
            n1 = self.drop(n1, self.c.dropout, 0)
        qkv = self.linear(name + "attn.qkv", n1)
        if i in self.detached:
            qkv = qkv.detach()
        y = self.linear(name + "attn.proj", self.attention(qkv, hidden, site))
        n2 = self.norm(name + "norm1", n1 + self.drop(y, self.c.dropout, site + 1))
        h = self.linear(name + "mlp.fc1", n2)
        h = ReGelu2.apply(h) if self.o.gelu == "regelu2" else F.gelu(h)
        return n2 + self.drop(self.linear(name + "mlp.fc2", h), self.c.dropout, site + 2)

    def logits(self, ids, segments, lengths):
        p, top = self.parameters, self.c.layers
        hidden = (torch.arange(ids.shape[1]) >= lengths[:, None])[:, None, None]
        x = F.embedding(ids, p["embed.word.weight"]) + p["embed.position.weight"][:ids.shape[1]] + F.embedding(segments, p["embed.segment.weight"])
        for i in range(top):
            x = self.block(i, x, hidden)
        x = self.norm(f"blocks.{top - 1}.norm2", x[:, 0])
        x = torch.tanh(F.linear(x, p["pooler.weight"], p["pooler.bias"]))
        return F.linear(self.drop(x, self.c.head_dropout, SITE_LAYERS + SITES * top), p["head.weight"], p["head.bias"])

    def loss(self, batch):
        *inputs, labels = batch
        self.training = 1
        out = self.logits(*inputs)
        self.training = 0
        if self.c.outputs == 1:
            return F.mse_loss(out[:, 0], labels.to(out.dtype), reduction="sum")
        return F.cross_entropy(out, labels.long(), reduction="sum")


class Batches:
    """Training batches by number over the whole run."""

    def __init__(self, data, o):
        self.data, self.split, self.o = data, data.splits["train"], o
        self.per_epoch = len(self.split) // o.batch
        if not self.per_epoch or self.split.labels is None:
            trouble(f"{o.data}: its {len(self.split)} training sequences are fewer than --batch {o.batch}, or have no labels")
        self.epoch, self.order = -1, None

    def get(self, number):
        epoch, place = divmod(number, self.per_epoch)
        if epoch != self.epoch:
            self.epoch, self.order = epoch, epoch_order(self.split, self.o.batch, self.o.group_by_length, self.o.seed, epoch)
        return [torch.from_numpy(a) for a in self.data.batch(self.split, self.order[place * self.o.batch:(place + 1) * self.o.batch])]


@torch.no_grad()
def evaluate(model, data, split, o):
    """The mean of the task's metrics on a split."""
    out = []
    for start in range(0, len(split), o.batch):
        index = np.arange(start, min(start + o.batch, len(split)))
        out.append(model.logits(*(torch.from_numpy(a) for a in data.batch(split, index)[:3])))
    out = torch.cat(out).numpy()
    predicted = out.argmax(1) if data.classes else out[:, 0]
    return sum(metric(name, predicted, split.labels) for name in data.metrics) / len(data.metrics)


def main():
    o = options()
    if o.threads:
        torch.set_num_threads(o.threads)
    dtype = torch.float64 if o.double else torch.float32
    config, tensors = bert_checkpoint.load(o.model, o.seed)
    data = open_tokens(o.data)
    outputs = len(data.classes) or 1
    if config.outputs != outputs:
        print(f"head: {config.outputs} outputs in the checkpoint, {outputs} for the data: starts from zero")
        config.outputs = outputs
        tensors["head.weight"], tensors["head.bias"] = torch.zeros(outputs, config.width), torch.zeros(outputs)
    if o.dropout >= 0:
        config.dropout = config.attention_dropout = config.head_dropout = o.dropout
    model = Bert(config, tensors, o, dtype)
    dev = data.splits["dev"]
    score = (lambda: evaluate(model, data, dev, o)) if len(dev) and dev.labels is not None else None
    train(model, Batches(data, o), score, o, open_log(o.out, "sequences"))


if __name__ == "__main__":
    main()
