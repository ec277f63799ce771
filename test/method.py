#!/usr/bin/env python3
"""What a run has changed in a model, for test_method.sh: two model directories of transformers' ViT names side by side.

    method.py all BEFORE AFTER                   everything has changed
    method.py head BEFORE AFTER                  the classifier alone
    method.py bitfit BEFORE AFTER                biases and the classifier
    method.py matrices BUDGET BEFORE AFTER       of each kind of matrix those of BUDGET layers, and all that is no matrix
    method.py columns WIDTH KEEP BEFORE AFTER    of each kind KEEP of all column blocks, whole ones, the same in q, k and v; and all that is no matrix
    method.py at-least WIDTH KEEP BEFORE AFTER   more blocks than that
    method.py scaled HEAD BIAS COLUMN BEFORE AFTER OTHER    from BEFORE to OTHER each kind has gone that many times as far as to AFTER
    method.py detached BEFORE AFTER              where q, k and v stand still, so does the norm before them, and such a layer is there
"""
import json
import math
import os
import re
import struct
import sys
from array import array

KINDS = {"qkv": ("attention.attention.query", "attention.attention.key", "attention.attention.value"), "proj": ("attention.output.dense",),
         "fc1": ("intermediate.dense",), "fc2": ("output.dense",)}


def load(directory):
    """{name: (shape, floats)}"""
    with open(os.path.join(directory, "model.safetensors"), "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            tensors[name] = (entry["shape"], array("f", data[begin:end]))
    return tensors


def matrices(tensors):
    """{(kind, layer): names}"""
    layers = 1 + max(int(m[1]) for m in (re.match(r"vit\.encoder\.layer\.(\d+)\.", name) for name in tensors) if m)
    return {(kind, i): [f"vit.encoder.layer.{i}.{part}.weight" for part in parts] for kind, parts in KINDS.items() for i in range(layers)}


def changed_columns(shape, a, b):
    rows, columns = shape
    return {j for j in range(columns) if any(a[i * columns + j] != b[i * columns + j] for i in range(rows))}


def check(condition, message):
    if not condition:
        sys.exit(message)


def check_changed(before, after, expected):
    """Whether a tensor has changed is what expected(name) says (None: either)."""
    for name, (_, x) in before.items():
        changed, wanted = x != after[name][1], expected(name)
        check(wanted is None or changed == wanted, f"{name} has {'' if changed else 'not '}changed")


def head(name):
    return name.startswith("classifier.")


def bias(name):
    if name.endswith("key.bias"):      # attention does not depend on it: its gradient is rounding
        return None
    return head(name) or name.endswith(".bias")


def check_matrices(before, after, budget):
    groups = matrices(before)
    inside = {name for names in groups.values() for name in names}
    check_changed(before, after, lambda name: None if name in inside or name.endswith("key.bias") else True)
    for kind in KINDS:
        learned = [i for (k, i), names in groups.items() if k == kind and all(before[n][1] != after[n][1] for n in names)]
        touched = [i for (k, i), names in groups.items() if k == kind and any(before[n][1] != after[n][1] for n in names)]
        check(learned == touched and len(learned) == budget, f"{kind}: layers {touched} have changed, {budget} should have")


def learned_blocks(before, after, width):
    """{kind: [(layer, block)]}, where a block either stands still or has changed in all its columns, likewise in q, k and v."""
    blocks = {kind: [] for kind in KINDS}
    for (kind, layer), names in matrices(before).items():
        columns = [changed_columns(before[n][0], before[n][1], after[n][1]) for n in names]
        check(all(c == columns[0] for c in columns), f"layer {layer}: q, k and v have not changed in the same columns")
        blocks[kind] += [(layer, block) for block in sorted({j // width for j in columns[0]})]
        check(len(columns[0]) == width * len({j // width for j in columns[0]}), f"layer {layer}, {kind}: blocks have changed in part")
    return blocks


def check_columns(before, after, width, keep, exact):
    groups = matrices(before)
    inside = {name for names in groups.values() for name in names}
    check_changed(before, after, lambda name: None if name in inside or name.endswith("key.bias") else True)
    for kind, blocks in learned_blocks(before, after, width).items():
        arms = sum(before[names[0]][0][1] // width for (k, _), names in groups.items() if k == kind)
        budget = math.floor(keep * arms + 0.5)
        check(len(blocks) == budget if exact else len(blocks) > budget, f"{kind}: {len(blocks)} of {arms} blocks have changed, the budget is {budget}")
    print(learned_blocks(before, after, width))


def check_scaled(before, after, other, head_scale, bias_scale, column_scale):
    inside = {name for names in matrices(before).values() for name in names}
    for name, (_, x) in before.items():
        way = [sum(abs(a - b) for a, b in zip(x, model[name][1])) for model in (after, other)]
        if name.endswith("key.bias") or not any(way):
            continue
        norm = "layernorm" in name
        scale = head_scale if head(name) else column_scale if name in inside else bias_scale if norm or name.endswith(".bias") else 1
        check(abs(way[1] / way[0] / scale - 1) < 2e-3, f"{name} went {way[1] / way[0]:.4f} times as far, not {scale}")


def check_detached(before, after):
    still = 0
    for (kind, layer), names in matrices(before).items():
        if kind != "qkv" or any(before[n][1] != after[n][1] for n in names):
            continue
        still += 1
        for part in ("weight", "bias"):
            name = f"vit.encoder.layer.{layer}.layernorm_before.{part}"
            check(before[name][1] == after[name][1], f"{name} has changed, though q, k and v of its layer are frozen and detached")
    check(still, "q, k and v of every layer have changed")


def main():
    what, *numbers = sys.argv[1:]
    models = []
    while numbers and os.path.isdir(numbers[-1]):
        models.insert(0, load(numbers.pop()))
    numbers = [float(n) for n in numbers]
    if what == "all":
        check_changed(*models, lambda name: None if name.endswith("key.bias") else True)
    elif what in ("head", "bitfit"):
        check_changed(*models, {"head": head, "bitfit": bias}[what])
    elif what == "matrices":
        check_matrices(*models, int(numbers[0]))
    elif what in ("columns", "at-least"):
        check_columns(*models, int(numbers[0]), numbers[1], what == "columns")
    elif what == "scaled":
        check_scaled(*models, *numbers)
    elif what == "detached":
        check_detached(*models)
    else:
        sys.exit(f"unknown check {what}")


if __name__ == "__main__":
    main()
