#!/usr/bin/env python3
"""Measures what each method is worth: the accuracy table of docs/accuracy_vit.md. Standard library only; it runs ./train_vit.

First every preset at every rate of one small grid with seed 1, then at its best rate with every multiplier for biases and norms; then every preset
and policy at its preset's best setting with three seeds; last, single questions. Each finished run is a line of the CSV and is not run again, so that a stopped sweep goes on where it was.

    scripts/accuracy_vit.py -m vit_tiny_patch16_224 -d cifar-10-batches-bin --workers 2     # runs what is missing
    scripts/accuracy_vit.py ... --image-size 224 --csv docs/accuracy_vit_224.csv --only "full::1:3e-4"   # single rows
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

RATES = ("1e-4", "3e-4", "1e-3", "3e-3")
SEEDS = (1, 2, 3)
BATCH = 32
LEAN = ["--gelu", "regelu2"]
PRESETS = {  # name: options beside the common ones; policies and keeps are added to the sampled ones
    "full": ["--method", "full"],
    "head": ["--method", "head"],
    "bitfit": ["--method", "bitfit", *LEAN],
    "backrazor": ["--method", "backrazor", *LEAN],
    **{f"{m} {k}": ["--method", m, "--keep", k, *LEAN] for m in ("prebr", "prebr++") for k in ("0.5", "0.2", "0.1")},
}
BIAS_SCALES = ("1", "10", "30")
EXTRAS = {  # single questions, answered at the best setting of the preset they vary
    "prebr++ 0.5": ["--gelu exact", "--column-lr-scale 3", "--column-lr-scale 0.3", "--alpha 1e-1"],
    "prebr++ 0.2": ["--column-lr-scale 3", "--column-lr-scale 0.3", "--alpha 1e-4", "--alpha 1e-2", "--resample 5", "--importance-weight"],
}
# What the search above cannot reach: biases, norms and head near bitfit's best rate (1e-2) while embeddings and columns stay near the best of
# full (1e-4, 3e-4). name: (preset, policies, lr, bias scale, further options, seeds).
NEAR = "--head-lr-scale 100 --column-lr-scale 3"
TUNED = {
    **{f"prebr++ {k}, tuned": (f"prebr++ {k}", ("bandit", "uniform", "norm"), "1e-4", "100", NEAR, SEEDS) for k in ("0.5", "0.2", "0.1")},
    **{f"prebr {k}, tuned": (f"prebr {k}", ("bandit",), "1e-4", "100", NEAR, SEEDS[:1]) for k in ("0.5", "0.2", "0.1")},
    "full, tuned": ("full", ("",), "3e-4", "1", "--head-lr-scale 33", SEEDS),
    "full, tuned too": ("full", ("",), "3e-4", "33", "--head-lr-scale 33", SEEDS),
    "backrazor, tuned": ("backrazor", ("",), "3e-4", "33", "--head-lr-scale 33", SEEDS[:1]),
}
FIELDS = ["preset", "policy", "bias_scale", "extra", "lr", "seed", "accuracy", "loss", "kept_bytes", "peak_bytes", "ms_per_step", "seconds"]
lock = threading.Lock()


def policies(preset):
    return ("bandit", "uniform", "norm") if preset.startswith("prebr") else ("",)


def read(path):
    if not os.path.exists(path):
        return []
    with open(path, newline="") as f:
        return list(csv.DictReader(f))


def common(o):
    """Options of every run."""
    return ["--image-size", str(o.image_size), "-b", str(BATCH), "--epochs", str(o.epochs), "--warmup", "20", "--head-lr-scale", "10"]


def run(o, job):
    """One training run; returns its line of the CSV."""
    preset, policy, bias, extra, lr, seed = job
    with tempfile.TemporaryDirectory() as out:
        command = [o.trainer, "-m", o.model, "-d", o.data, "-o", out, "--overwrite", *common(o), "--eval-every", "1000000", "--save-every", "1000000",
                   "--threads", str(o.threads), "--lr", lr, "--bias-lr-scale", bias, "--seed", str(seed), *PRESETS[preset], *extra.split()]
        if policy:
            command += ["--policy", policy]
        start = time.time()
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            print(f"failed with status {done.returncode}: {' '.join(command)}\n{done.stderr}", file=sys.stderr, flush=True)
            os._exit(1)
        steps = read(os.path.join(out, "log.csv"))
    return {"preset": preset, "policy": policy, "bias_scale": bias, "extra": extra, "lr": lr, "seed": seed, "accuracy": steps[-1]["accuracy"],
            "loss": f"{statistics.mean(float(s['loss']) for s in steps[-20:]):.4f}", "kept_bytes": steps[-1]["kept_bytes"],
            "peak_bytes": steps[-1]["peak_bytes"], "ms_per_step": f"{statistics.median(float(s['ms']) for s in steps):.1f}",
            "seconds": f"{time.time() - start:.1f}"}


def key(row):
    return row["preset"], row["policy"], row["bias_scale"], row["extra"], row["lr"], int(row["seed"])


def first_bias(preset):
    """The multiplier with which the rates are tried: what a first trial found for those that keep little."""
    return "1" if preset in ("full", "head") else "10"


def best(rows, preset, wanted):
    """(multiplier, rate) of the best accuracy among the wanted settings, seed 1, first policy; None before all of them are there."""
    mine = {(r["bias_scale"], r["lr"]): float(r["accuracy"]) for r in rows
            if r["preset"] == preset and r["policy"] == policies(preset)[0] and not r["extra"] and r["seed"] == "1"}
    return max(wanted, key=lambda setting: mine[setting]) if all(setting in mine for setting in wanted) else None


def settings(rows, preset):
    """What the preset is tried with so far: the rates, and once these are done, the multipliers at the best of them."""
    rates = [(first_bias(preset), lr) for lr in RATES]
    found = best(rows, preset, rates)
    return rates + [(bias, found[1]) for bias in BIAS_SCALES if found and bias != first_bias(preset) and preset != "head"]


def final(rows, preset):
    wanted = settings(rows, preset)
    return best(rows, preset, wanted) if len(wanted) > len(RATES) or preset == "head" else None


def jobs(rows):
    """What is still to be run, in order of importance; later parts need earlier ones to be complete."""
    search = [(p, policies(p)[0], bias, "", lr, 1) for p in PRESETS for bias, lr in settings(rows, p)]
    chosen = {p: final(rows, p) for p in PRESETS}
    main = [(p, policy, chosen[p][0], "", chosen[p][1], seed) for seed in SEEDS for p in PRESETS for policy in policies(p) if chosen[p]]
    extra = [(p, policies(p)[0], chosen[p][0], e, chosen[p][1], 1) for p, variants in EXTRAS.items() for e in variants if chosen[p]]
    tuned = [(p, policy, bias, e, lr, seed) for seed in SEEDS for p, which, lr, bias, e, seeds in TUNED.values() if seed in seeds for policy in which]
    done = {key(r) for r in rows}
    return [job for job in search + main + tuned + extra if job not in done]


def single_rows(o):
    """The jobs that --only names, with the first seed."""
    done = {key(r) for r in read(o.csv)}
    rows = [tuple(row.split(":")) for row in o.only]
    return [job for job in ((preset, policy, bias, "", lr, SEEDS[0]) for preset, policy, bias, lr in rows) if job not in done]


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
            print(f"{row['preset']} {row['policy']} {row['extra']} bias x {row['bias_scale']} lr {row['lr']} seed {row['seed']}: {100 * float(row['accuracy']):.2f} %", flush=True)


def percent(rows):
    values = [100 * float(r["accuracy"]) for r in rows]
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{spread} ({len(values)})"


def print_row(name, policy, lr, bias, rows):
    speed = 1e3 * BATCH / statistics.median(float(r["ms_per_step"]) for r in rows)
    print(f"| {name} | {policy} | {lr} | {bias} | {percent(rows)} | {int(rows[0]['kept_bytes']) / 2**20:.1f} | "
          f"{int(rows[0]['peak_bytes']) / 2**20:.1f} | {speed:.0f} |")


def table(rows):
    print("| method | policy | lr | bias scale | accuracy %, mean ± sd (seeds) | kept MiB | arena MiB | samples/s |")
    print("|---|---|---|---|---|---|---|---|")
    for preset in PRESETS:
        chosen = final(rows, preset)
        for policy in policies(preset):
            mine = [r for r in rows if (r["preset"], r["policy"], (r["bias_scale"], r["lr"]), r["extra"]) == (preset, policy, chosen, "")]
            if mine:
                print_row(preset, policy, chosen[1], chosen[0], mine)
    for name, (preset, which, lr, bias, extra, _) in TUNED.items():
        for policy in which:
            mine = [r for r in rows if key(r)[:5] == (preset, policy, bias, extra, lr)]
            if mine:
                print_row(name, policy, lr, bias, mine)
    accuracy = {key(r): f"{100 * float(r['accuracy']):.2f}" for r in rows}
    print("\n| method | " + " | ".join(f"lr {lr}" for lr in RATES) + " | " + " | ".join(f"bias x {b}" for b in BIAS_SCALES) + " |")
    print("|---|" + "---|" * (len(RATES) + len(BIAS_SCALES)))
    for preset in PRESETS:
        rates = [(preset, policies(preset)[0], first_bias(preset), "", lr, 1) for lr in RATES]
        found = best(rows, preset, [(first_bias(preset), lr) for lr in RATES])
        biases = [(preset, policies(preset)[0], bias, "", found[1] if found else "", 1) for bias in BIAS_SCALES]
        print(f"| {preset} | " + " | ".join(accuracy.get(k, "") for k in rates + biases) + " |")
    print("\n| varied | accuracy %, seed 1 |\n|---|---|")
    for r in rows:
        if r["extra"] and not any(r["extra"] == t[4] for t in TUNED.values()):
            print(f"| {r['preset']} {r['extra']} | {100 * float(r['accuracy']):.2f} |")


def options(description):
    p = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-m", "--model")
    p.add_argument("-d", "--data")
    p.add_argument("--csv", default="docs/accuracy_vit.csv")
    p.add_argument("--trainer", default="./train_vit")
    p.add_argument("--image-size", type=int, default=96)
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--workers", type=int, default=1)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--only", nargs="+", metavar="PRESET:POLICY:BIAS-SCALE:LR", help="only these rows, with seed 1")
    p.add_argument("--table", action="store_true", help="only print the table")
    return p


def main(p):
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
    main(options(__doc__))
