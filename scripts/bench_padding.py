#!/usr/bin/env python3
"""What padding costs: the time of train_bert's steps against the share of real tokens in their batches. Needs NumPy; it runs ./train_bert.

The same sequences, batched as they come and grouped by length, several rounds in turn; a step's time is the median over rounds. Prints two
tables, by order and by share, and writes a line for each step to docs/padding_bert.csv.

    scripts/tokenize_glue.py --task rte -d rte/ -m bert/ --max-length 256 -o rte256.tok
    scripts/bench_padding.py -m bert/ -d rte256.tok
"""
import argparse
import csv
import os
import statistics
import subprocess
import sys
import tempfile

from token_file import epoch_order, open_tokens

ORDERS = {"as they come": [], "grouped by length": ["--group-by-length"]}
EDGES = (0, 0.4, 0.5, 0.6, 0.7, 0.9, 1)   # of the bins of the share


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-m", "--model", required=True)
    p.add_argument("-d", "--data", required=True, help="token file")
    p.add_argument("-b", "--batch", type=int, default=8)
    p.add_argument("--steps", type=int, default=32, help="of a run; one group of lengths is 32 batches")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--trainer", default="./train_bert")
    p.add_argument("--csv", default="docs/padding_bert.csv")
    return p.parse_args()


def run(o, extra):
    """Milliseconds of each step."""
    with tempfile.TemporaryDirectory() as out:
        command = [o.trainer, "-m", o.model, "-d", o.data, "-b", str(o.batch), "--steps", str(o.steps), "--threads", str(o.threads), "--eval-every", "-1",
                   "--seed", "1", "-o", out, "--overwrite", *extra]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"failed with status {done.returncode}: {' '.join(command)}\n{done.stderr}")
        with open(os.path.join(out, "log.csv"), newline="") as f:
            return [float(line["ms"]) for line in csv.DictReader(f)]


def batches(o, grouped):
    """(real tokens, tokens with padding) of each batch of the first epoch."""
    split = open_tokens(o.data).splits["train"]
    if o.steps > len(split) // o.batch:
        sys.exit(f"--steps {o.steps}: the first epoch has {len(split) // o.batch}")
    order = epoch_order(split, o.batch, grouped, 1, 0)
    lengths = [[split.length(i) for i in order[k * o.batch:(k + 1) * o.batch]] for k in range(o.steps)]
    return [(sum(part), o.batch * max(part)) for part in lengths]


def line(name, steps):
    real, padded, ms = (sum(s[k] for s in steps) for k in ("real", "padded", "ms"))
    n = len(steps)
    print(f"| {name} | {n} | {100 * real / padded:.0f} % | {padded / n:.0f} | {ms / n:.0f} | {1e3 * ms / real:.0f} | {1e3 * ms / padded:.0f} |")


def main():
    o = options()
    times = {order: [] for order in ORDERS}
    for _ in range(o.rounds):
        for order, extra in ORDERS.items():
            times[order].append(run(o, extra))
    steps = [{"order": order, "step": k + 1, "real": real, "padded": padded, "ms": statistics.median(run[k] for run in times[order])}
             for order, extra in ORDERS.items() for k, (real, padded) in enumerate(batches(o, bool(extra)))]
    with open(o.csv, "w", newline="") as f:
        writer = csv.DictWriter(f, steps[0])
        writer.writeheader()
        writer.writerows(steps)
    print("| batches | steps | real tokens | tokens of a batch | ms a step | µs a real token | µs a token |\n|---|---|---|---|---|---|---|")
    for order in ORDERS:
        line(order, [s for s in steps if s["order"] == order])
    for low, high in zip(EDGES, EDGES[1:]):
        part = [s for s in steps if low < s["real"] / s["padded"] <= high]
        if part:
            line(f"{100 * low:.0f} to {100 * high:.0f} % real", part)


if __name__ == "__main__":
    main()
