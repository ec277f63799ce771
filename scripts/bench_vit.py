#!/usr/bin/env python3
"""How fast train_vit is beside plain PyTorch (scripts/reference_vit.py): the table of docs/speed_vit.md. Standard library only.

ViT-Ti/16 (a checkpoint) and ViT-B/16 (random weights), 224 px, same batch, threads and data. The programs take turns, several rounds; what counts is
the median over rounds of the median step, the first steps left out. Then the GEMM rate: build/test/bench_gemm, ours and oneDNN alone in turns.

    scripts/bench_vit.py -m vit_tiny_patch16_224 -d cifar-10-batches-bin [--python .venv/bin/python]
"""
import argparse
import csv
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

METHODS = {
    "full": ["--method", "full"],
    "backrazor": ["--method", "backrazor"],
    "prebr++ 0.5": ["--method", "prebr++", "--keep", "0.5"],
    "prebr++ 0.2": ["--method", "prebr++", "--keep", "0.2"],
}
IN_PYTORCH = ("full", "backrazor")
VIT_BASE = {"architectures": ["ViTForImageClassification"], "model_type": "vit", "hidden_size": 768, "num_hidden_layers": 12,
            "num_attention_heads": 12, "intermediate_size": 3072, "patch_size": 16, "image_size": 224, "num_channels": 3, "qkv_bias": True,
            "hidden_act": "gelu", "layer_norm_eps": 1e-12}
FIRST_STEPS = 2


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout


def step_ms(out):
    with open(os.path.join(out, "log.csv"), newline="") as f:
        return statistics.median(float(row["ms"]) for row in list(csv.DictReader(f))[FIRST_STEPS:])


def measure(o, program, model, batch, method, out):
    """(milliseconds a step, {part: share of it}) of one run."""
    text = run([*program, "-m", model, "-d", o.data, "-o", out, "--image-size", "224", "-b", str(batch), "--threads", str(o.threads),
                "--steps", str(o.steps + FIRST_STEPS), "--eval-every", "-1", *METHODS[method]])
    line = re.search(r"time of steps(.*)", text)
    return step_ms(out), dict(re.findall(r"(\w+) ([\d.]+) %", line.group(1))) if line else {}


def bench(o, name, model, batch, tmp):
    programs = {"train_vit": ([o.trainer], tuple(METHODS))}
    if o.python:
        programs["PyTorch"] = ([o.python, "scripts/reference_vit.py"], IN_PYTORCH)
    ms, parts = {}, {}
    for round_number in range(o.rounds):
        for method in METHODS:
            for who, (program, methods) in programs.items():
                if method in methods:
                    key = who, method
                    took, parts[key] = measure(o, program, model, batch, method, os.path.join(tmp, f"{name} {who} {method} {round_number}"))
                    ms.setdefault(key, []).append(took)
                    print(f"{name}, {who}, {method}: {took:.0f} ms a step", file=sys.stderr, flush=True)
    base = statistics.median(ms.get(("PyTorch", "full"), ms["train_vit", "full"]))
    return [{"model": name, "batch": batch, "threads": o.threads, "program": who, "method": method, "ms": f"{statistics.median(v):.0f}",
             "images_per_s": f"{batch * 1e3 / statistics.median(v):.2f}", "speedup": f"{base / statistics.median(v):.2f}",
             "gemm": parts[who, method].get("gemm", ""), "attention": parts[who, method].get("attention", ""),
             "norm": parts[who, method].get("norm", ""), "rest": rest(parts[who, method])} for (who, method), v in ms.items()]


def rest(parts):
    return f"{sum(float(v) for k, v in parts.items() if k not in ('gemm', 'attention', 'norm')):.1f}" if parts else ""


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-m", "--model", required=True, help="a ViT-Ti/16 checkpoint")
    p.add_argument("-d", "--data", required=True)
    p.add_argument("--python", help="an interpreter with torch; without it only train_vit is measured")
    p.add_argument("--trainer", default="./train_vit")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--steps", type=int, default=4, help="that count, in each round")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--tiny-batch", type=int, default=16)
    p.add_argument("--base-batch", type=int, default=4)
    p.add_argument("--csv", default="docs/speed_vit.csv")
    o = p.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        config, made = os.path.join(tmp, "config"), os.path.join(tmp, "base")
        os.mkdir(config)
        with open(os.path.join(config, "config.json"), "w") as f:
            json.dump(VIT_BASE, f)
        run([o.trainer, "-m", config, "--from-scratch", "-d", o.data, "-o", made, "-b", "1", "--steps", "1", "--eval-every", "-1"])
        rows = bench(o, "ViT-Ti/16", o.model, o.tiny_batch, tmp) + bench(o, "ViT-B/16", os.path.join(made, "model"), o.base_batch, tmp)
    with open(o.csv, "w", newline="") as f:
        writer = csv.DictWriter(f, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print("| model | batch | program | method | ms a step | images/s | against PyTorch full | gemm % | attention % | norm % | rest % |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for r in rows:
        print(f"| {r['model']} | {r['batch']} | {r['program']} | {r['method']} | {r['ms']} | {r['images_per_s']} | {r['speedup']} | {r['gemm']} | "
              f"{r['attention']} | {r['norm']} | {r['rest']} |")
    if os.path.exists("build/test/bench_gemm"):
        print()
        print(run(["build/test/bench_gemm", str(o.threads)]))


if __name__ == "__main__":
    main()
