#!/usr/bin/env python3
"""The benchmark table of scripts/gpu_check.sh: ViT-B/16 at 224 px and BERT-base at 128 and 512 tokens, every method, beside PyTorch.

    scripts/bench_gpu.py --programs build/check/bf16 --csv build/check/speed_gpu.csv --card "NVIDIA H100" --bandwidth 2900
    scripts/bench_gpu.py --programs . --tiny --csv /tmp/speed.csv        the same on any machine with toy models, to try the script

Random weights, random data, AdamW. samples/s: the median step after warm-up. MFU: the operations of full fine-tuning (6 for each token and matrix weight, 12
for each pair of tokens, column and layer) at that rate, over the card's peak; for the sheared methods it says what full fine-tuning would need to be as
fast. ms of a part over its floor: the bytes that `full` must move in bf16 (norms: 6 activations, GELU: 5, AdamW: 30 a weight) at the measured bandwidth of a
copy. Standard library only.
"""
import argparse
import csv
import json
import os
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import bench_vit

# name: (program, layers, width, heads, tokens, batch)
CASES = {"ViT-B/16 224 px": ("train_vit", 12, 768, 12, 197, 128),
         "BERT-base 128": ("train_bert", 12, 768, 12, 128, 32),
         "BERT-base 512": ("train_bert", 12, 768, 12, 512, 8)}
TINY = {"ViT 32 px": ("train_vit", 2, 32, 2, 5, 4), "BERT 16": ("train_bert", 2, 32, 2, 16, 4)}
METHODS = {"full": ["--method", "full"], "backrazor": ["--method", "backrazor"],
           **{f"{m} {k}": ["--method", m, "--keep", k] for m in ("prebr", "prebr++") for k in ("0.5", "0.2")}}
PEAKS = {"H200": 989, "H100 NVL": 835, "H100 PCIe": 756, "H100": 989, "A100": 312, "L40S": 362, "RTX 4090": 165, "RTX 3090": 71}   # dense bf16 TFLOP/s, float sums
VOCABULARY = 30522
PARTS = ("gemm", "attention", "norm", "activation", "shear", "optimizer", "data", "other")


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--programs", required=True, help="the directory with train_vit and train_bert")
    p.add_argument("--csv", required=True)
    p.add_argument("--card", default="", help="its name, for the peak")
    p.add_argument("--bandwidth", type=float, default=0, help="GB/s of a copy, read and write together; 0: unknown")
    p.add_argument("--python", default="", help="an interpreter with torch that sees the card; without it PyTorch is left out")
    p.add_argument("--steps", type=int, default=12)
    p.add_argument("--warm-up", type=int, default=4, help="steps that do not count")
    p.add_argument("--seconds", type=float, default=90, help="limit of one run")
    p.add_argument("--limit", type=float, default=0, help="seconds after which no further run begins (0: none)")
    p.add_argument("--tiny", action="store_true")
    return p.parse_args()


def write_tokens(path, tokens, count=64):
    """A token file (data/tokens.h) of sequences all of one length."""
    vocabulary, n = 50 if tokens < 32 else VOCABULARY, count * tokens
    padded = lambda b: b + b"\0" * (-len(b) % 8)
    text = padded(b"rte\naccuracy\nno\nyes\n")
    ids = [1 + (i * 7919) % (vocabulary - 1) for i in range(n)]
    with open(path, "wb") as f:
        f.write(struct.pack("<8sIIQIIIIIIQII", b"prebrtok", 1, vocabulary, 0, 2, len(text), count, 0, 0, 1, n, 0, 0) + text)
        f.write(struct.pack(f"<{count + 1}Q", *range(0, n + 1, tokens)) + padded(struct.pack(f"<{count}i", *(i % 2 for i in range(count)))))
        f.write(padded(struct.pack(f"<{n}I", *ids)) + padded(bytes(n)))


def write_config(directory, program, layers, width, heads, tokens):
    config = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": 4 * width}
    if program == "train_vit":
        size, patch = (224, 16) if tokens == 197 else (32, 16)
        config |= {"model_type": "vit", "architectures": ["ViTForImageClassification"], "patch_size": patch, "image_size": size, "num_labels": 10}
    else:
        config |= {"model_type": "bert", "architectures": ["BertForSequenceClassification"], "vocab_size": 50 if tokens < 32 else VOCABULARY,
                   "max_position_embeddings": 512, "type_vocab_size": 2, "pad_token_id": 0}
    os.mkdir(directory)
    with open(os.path.join(directory, "config.json"), "w") as f:
        json.dump(config, f)


def operations(layers, width, tokens):
    """Of one sample: forward and backward of full fine-tuning."""
    return 6 * 12 * width**2 * layers * tokens + 12 * layers * tokens**2 * width


def floors(layers, width, tokens, batch, bandwidth):
    """ms of the parts whose traffic is known, for `full` in bf16."""
    activation = 2 * batch * tokens * width
    traffic = {"norm": layers * 2 * 6 * activation, "activation": layers * 5 * 4 * activation, "optimizer": 30 * 12 * layers * width**2}
    return {part: n / bandwidth / 1e6 for part, n in traffic.items()}


def measure(o, case, method, work):
    """One row, or None where the run failed, which is reported."""
    program, layers, width, heads, tokens, batch = case
    model, data = os.path.join(work, f"{program}-{tokens}"), os.path.join(work, "noise" if program == "train_vit" else f"{tokens}.tok")
    if not os.path.exists(model):
        write_config(model, program, layers, width, heads, tokens)
    if not os.path.exists(data):
        bench_vit.make_noise(data) if program == "train_vit" else write_tokens(data, tokens)
    command = [os.path.join(o.programs, program), "-m", model, "-d", data, "--from-scratch", "-b", str(batch), "--steps", str(o.steps), "--eval-every", "-1",
               "--log-every", "1", *METHODS[method]]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=o.seconds)
    except subprocess.TimeoutExpired:
        return print(f"{' '.join(command)}: more than {o.seconds} s", file=sys.stderr)
    rates = [float(r) for r in re.findall(r"^step \d+/\d+ .*?([\d.e+]+)/s", done.stdout, re.M)]
    if done.returncode or len(rates) != o.steps:
        return print(f"{' '.join(command)}: status {done.returncode}\n{done.stdout[-500:]}{done.stderr}", file=sys.stderr)
    rate = statistics.median(rates[o.warm_up:])
    shares = {k: float(v) / 100 for k, v in re.findall(r" (\w+) ([\d.]+) %", re.search(r"^  time of steps(.*)$", done.stdout, re.M)[1])}
    row = {"samples_per_s": f"{rate:.1f}", "memory": re.search(r"arena = planned peak (.*?);", done.stdout)[1]}
    for part in PARTS:
        row[part + "_ms"] = f"{1e3 * batch / rate * shares.get(part, 0):.2f}"
    if method == "full" and o.bandwidth:
        for part, floor in floors(layers, width, tokens, batch, o.bandwidth).items():
            row[part + "_x_floor"] = f"{float(row[part + '_ms']) / floor:.2f}"
    return row


def measure_torch(o, case, mode):
    program, _, _, _, tokens, batch = case
    command = [o.python, os.path.join(os.path.dirname(os.path.abspath(__file__)), "bench_gpu_torch.py"), program, str(tokens), str(batch), mode]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=o.seconds)
        rate, peak = done.stdout.split()[-2:]
    except (subprocess.TimeoutExpired, ValueError):
        return print(f"{' '.join(command)}: failed or too slow", file=sys.stderr)
    return {"samples_per_s": rate, "memory": f"{int(peak) / 2**30:.2f} GiB"}


def main():
    o = options()
    peak = next((p for name, p in PEAKS.items() if all(word in o.card for word in name.split())), 0)
    columns = ["model", "batch", "program", "method", "samples_per_s", "x_torch_compile", "mfu", "memory", *(p + "_ms" for p in PARTS),
               "norm_x_floor", "activation_x_floor", "optimizer_x_floor"]
    cases, found, rows, start = TINY if o.tiny else CASES, {}, [], time.time()
    wanted = [(name, "prebr", method) for name in cases for method in METHODS]
    wanted += [(name, "PyTorch", mode) for name in cases for mode in ("compile", "eager") if o.python]
    with tempfile.TemporaryDirectory() as work:
        for name, program, method in wanted:
            if o.limit and time.time() - start > o.limit:
                print(f"{name}, {program} {method}: left out, the time is up", file=sys.stderr)
                continue
            found[name, program, method] = measure_torch(o, cases[name], method) if program == "PyTorch" else measure(o, cases[name], method, work)
    for (name, program, method), row in sorted(found.items(), key=lambda item: list(cases).index(item[0][0])):
        if row:
            _, layers, width, _, tokens, batch = cases[name]
            rate, compiled = float(row["samples_per_s"]), found.get((name, "PyTorch", "compile"))
            rows.append({"model": name, "batch": batch, "program": program, "method": method, **row,
                         "x_torch_compile": f"{rate / float(compiled['samples_per_s']):.2f}" if compiled else "",
                         "mfu": f"{rate * operations(layers, width, tokens) / peak / 1e12:.3f}" if peak else "-"})
    rows = [{c: r.get(c, "") for c in columns} for r in rows]
    bench_vit.show(rows, o.csv)
    sys.exit(not rows)


if __name__ == "__main__":
    main()
