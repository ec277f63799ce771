#!/usr/bin/env python3
"""Measures what each method is worth: the accuracy table of docs/accuracy_vit.md. Standard library only; it runs ./train_vit.

First every preset at every rate of one small grid with seed 1, then every preset and policy at its preset's best rate with three seeds.
Each finished run is a line of the CSV and is not run again, so that a stopped sweep goes on where it was.

    scripts/accuracy_vit.py -m vit_tiny_patch16_224 -d cifar-10-batches-bin --workers 2     # runs what is missing
    scripts/accuracy_vit.py ... --image-size 224 --csv docs/accuracy_vit_224.csv --only "full::3e-4" "prebr++ 0.5:uniform:3e-4"   # single rows
    scripts/accuracy_vit.py --table                                                       # prints the table from the CSV
"""
import argparse
import csv
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time

RATES = ("1e-4", "3e-4", "1e-3")
SEEDS = (1, 2, 3)
SPARSE = ["--gelu", "regelu2", "--bias-lr-scale", "10"]
PRESETS = {  # name: options beside the common ones; policies and keeps are added to the sampled ones
    "full": ["--method", "full"],
    "head": ["--method", "head"],
    "bitfit": ["--method", "bitfit", *SPARSE],
    "backrazor": ["--method", "backrazor", *SPARSE],
    **{f"{m} {k}": ["--method", m, "--keep", k, *SPARSE] for m in ("prebr", "prebr++") for k in ("0.5", "0.2", "0.1")},
}
EXTRAS = {  # single questions, answered at the best rate of the preset they vary
    "prebr++ 0.5": [["--bias-lr-scale", "1"], ["--gelu", "exact"], ["--column-lr-scale", "3"]],
    "prebr++ 0.2": [["--bias-lr-scale", "1"], ["--column-lr-scale", "3"], ["--alpha", "1e-4"], ["--alpha", "1e-2"], ["--resample", "5"]],
    "backrazor": [["--bias-lr-scale", "1"]],
}
FIELDS = ["preset", "policy", "extra", "lr", "seed", "accuracy", "loss", "kept_bytes", "peak_bytes", "ms_per_step", "seconds"]
lock = threading.Lock()


def policies(preset):
    return ("bandit", "uniform", "norm") if preset.startswith("prebr") else ("",)


def read(path):
    if not os.path.exists(path):
        return []
    with open(path, newline="") as f:
        return list(csv.DictReader(f))


def run(o, job):
    """One training run; returns its line of the CSV."""
    preset, policy, extra, lr, seed = job
    with tempfile.TemporaryDirectory() as out:
        command = [o.trainer, "-m", o.model, "-d", o.data, "-o", out, "--overwrite", "--image-size", str(o.image_size), "-b", "32",
                   "--epochs", str(o.epochs), "--warmup", "20", "--head-lr-scale", "10", "--eval-every", "1000000", "--save-every", "1000000",
                   "--threads", str(o.threads), "--lr", lr, "--seed", str(seed), *PRESETS[preset], *extra.split()]
        if policy:
            command += ["--policy", policy]
        start = time.time()
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            print(f"failed with status {done.returncode}: {' '.join(command)}\n{done.stderr}", file=sys.stderr, flush=True)
            os._exit(1)
        steps = read(os.path.join(out, "log.csv"))
    return {"preset": preset, "policy": policy, "extra": extra, "lr": lr, "seed": seed, "accuracy": steps[-1]["accuracy"],
            "loss": f"{statistics.mean(float(s['loss']) for s in steps[-20:]):.4f}", "kept_bytes": steps[-1]["kept_bytes"],
            "peak_bytes": steps[-1]["peak_bytes"], "ms_per_step": f"{statistics.median(float(s['ms']) for s in steps):.1f}",
            "seconds": f"{time.time() - start:.1f}"}


def key(row):
    return row["preset"], row["policy"], row["extra"], row["lr"], int(row["seed"])


def best_rate(rows, preset):
    """The rate of the grid with the best accuracy, on seed 1, under the preset's first policy."""
    grid = [r for r in rows if r["preset"] == preset and not r["extra"] and r["seed"] == "1" and r["policy"] == policies(preset)[0]]
    return max(grid, key=lambda r: float(r["accuracy"]))["lr"] if len(grid) >= len(RATES) else None


def jobs(rows):
    """What is still to be run, in order of importance; the second part needs the first to be complete."""
    grid = [(p, policies(p)[0], "", lr, 1) for lr in RATES for p in PRESETS]
    rates = {p: best_rate(rows, p) for p in PRESETS}
    main = [(p, policy, "", rates[p], seed) for seed in SEEDS for p in PRESETS for policy in policies(p) if rates[p]]
    extra = [(p, policies(p)[0], " ".join(e), rates[p], 1) for p, variants in EXTRAS.items() for e in variants if rates[p]]
    done = {key(r) for r in rows}
    return [job for job in grid + main[: len(main) // len(SEEDS)] + extra + main if job not in done]


def single_rows(o):
    """The jobs that --only names, with the first seed."""
    done = {key(r) for r in read(o.csv)}
    rows = [tuple(row.split(":")) for row in o.only]
    return [job for job in ((preset, policy, "", lr, SEEDS[0]) for preset, policy, lr in rows) if job not in done]


def work(o, taken):
    while True:
        with lock:
            todo = [job for job in (single_rows(o) if o.only else jobs(read(o.csv))) if job not in taken]
            if not todo:
                return
            job = todo[0]
            taken.add(job)
        row = run(o, job)
        with lock:
            new = not os.path.exists(o.csv)
            with open(o.csv, "a", newline="") as f:
                writer = csv.DictWriter(f, FIELDS)
                if new:
                    writer.writeheader()
                writer.writerow(row)
            print(f"{row['preset']} {row['policy']} {row['extra']} lr {row['lr']} seed {row['seed']}: {100 * float(row['accuracy']):.2f} %", flush=True)


def percent(rows):
    values = [100 * float(r["accuracy"]) for r in rows]
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{spread} ({len(values)})"


def table(rows):
    print("| method | policy | lr | accuracy %, mean ± sd (seeds) | kept MiB | arena MiB | images/s |")
    print("|---|---|---|---|---|---|---|")
    for preset in PRESETS:
        lr = best_rate(rows, preset)
        for policy in policies(preset):
            mine = [r for r in rows if r["preset"] == preset and r["policy"] == policy and r["lr"] == lr and not r["extra"]]
            if mine:
                speed = 32e3 / statistics.median(float(r["ms_per_step"]) for r in mine)
                print(f"| {preset} | {policy} | {lr} | {percent(mine)} | {int(mine[0]['kept_bytes']) / 2**20:.1f} | "
                      f"{int(mine[0]['peak_bytes']) / 2**20:.1f} | {speed:.0f} |")
    print("\n| method | " + " | ".join(RATES) + " |\n|---|" + "---|" * len(RATES))
    for preset in PRESETS:
        cells = [[r for r in rows if key(r) == (preset, policies(preset)[0], "", lr, 1)] for lr in RATES]
        print(f"| {preset} | " + " | ".join(f"{100 * float(c[0]['accuracy']):.2f}" if c else "" for c in cells) + " |")
    print("\n| varied | accuracy %, seed 1 |\n|---|---|")
    for r in rows:
        if r["extra"]:
            print(f"| {r['preset']} {r['extra']} | {100 * float(r['accuracy']):.2f} |")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-m", "--model")
    p.add_argument("-d", "--data")
    p.add_argument("--csv", default="docs/accuracy_vit.csv")
    p.add_argument("--trainer", default="./train_vit")
    p.add_argument("--image-size", type=int, default=96)
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--workers", type=int, default=1)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--only", nargs="+", metavar="PRESET:POLICY:LR", help="only these rows, with seed 1")
    p.add_argument("--table", action="store_true", help="only print the table")
    o = p.parse_args()
    if not o.table:
        taken = set()
        threads = [threading.Thread(target=work, args=(o, taken)) for _ in range(o.workers)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    if not o.only:
        table(read(o.csv))


if __name__ == "__main__":
    main()
