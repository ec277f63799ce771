#!/usr/bin/env python3
"""Measures what each method is worth on RTE: the table of docs/accuracy_bert.md. Its runs and its CSV are those of accuracy_vit.py.

First one preset of each kind at every rate of one small grid, with seed 1; then every preset at the best rate of its kind with three seeds; last
the other policies. Each finished run is a line of the CSV and is not run again, so that a stopped sweep goes on where it was.

    scripts/tokenize_glue.py --task rte -d rte/ -m bert/ --max-length 64 -o rte.tok
    scripts/accuracy_bert.py -m bert/ -d rte.tok --workers 2      # runs what is missing
    scripts/accuracy_bert.py --table                              # prints the tables from the CSV
"""
import accuracy_vit as sweep

HEAD_RATE = 5e-3   # of the classifier, for every method: at 5e-4 `full` does not leave chance within an epoch
RATES = ("5e-5", "1e-4", "2e-4")
SEEDS = (1, 2, 3)
sweep.BATCH = 8
LEAN = ["--gelu", "regelu2", "--column-lr-scale", "1"]
sweep.PRESETS = {
    "full": ["--method", "full", "--column-lr-scale", "1"],
    "head": ["--method", "head"],
    "bitfit": ["--method", "bitfit", *LEAN],
    **{f"backrazor {p}": ["--method", "backrazor", "--prune", p, *LEAN] for p in ("0.8", "0.9")},
    **{f"{m} {k}": ["--method", m, "--keep", k, *LEAN] for m in ("prebr", "prebr++") for k in ("0.5", "0.2", "0.1")},
}
SEARCHED = {"full": "full", "bitfit": "bitfit", "backrazor": "backrazor 0.8", "prebr": "prebr 0.2", "prebr++": "prebr++ 0.2"}   # kind: who stands for it
POLICIES = ("uniform", "norm")        # beside the bandit, at these (prebr 0.1 draws as many matrices as prebr 0.2 where there are six layers):
COMPARED = ("prebr++ 0.2", "prebr 0.2", "prebr++ 0.5", "prebr 0.5", "prebr++ 0.1")
sweep.common = lambda o: ["-b", "8", "--epochs", str(o.epochs), "--warmup", "50", "--schedule", "linear", "--group-by-length"]


def kind(preset):
    return preset.split()[0]


def job(preset, policy, lr, seed):
    """Biases and norms learn ten times faster, but where everything learns."""
    return preset, policy, "1" if kind(preset) in ("full", "head") else "10", f"--head-lr-scale {HEAD_RATE / float(lr):g}", lr, seed


def bandit(preset):
    return "bandit" if preset.startswith("prebr") else ""


def rate(rows, preset):
    """The rate at which the one that stands for its kind came out best, None before all of them are there. The head has no other rate."""
    if preset == "head":
        return RATES[0]
    stands = SEARCHED[kind(preset)]
    accuracy = {sweep.key(r): float(r["accuracy"]) for r in rows}
    found = {lr: accuracy.get(job(stands, bandit(stands), lr, SEEDS[0])) for lr in RATES}
    return max(RATES, key=found.get) if None not in found.values() else None


def jobs(rows):
    """What is still to be run, in order of importance."""
    search = [job(p, bandit(p), lr, SEEDS[0]) for p in SEARCHED.values() for lr in RATES]
    chosen = {p: rate(rows, p) for p in sweep.PRESETS}
    main = [job(p, bandit(p), chosen[p], seed) for seed in SEEDS for p in sweep.PRESETS if chosen[p]]
    policies = [job(p, policy, chosen[p], seed) for p in COMPARED for seed in SEEDS for policy in POLICIES if chosen[p]]
    done = {sweep.key(r) for r in rows}
    return [j for j in search + main + policies if j not in done]


def table(rows):
    print("| method | policy | lr | accuracy %, mean ± sd (seeds) | kept MiB | arena MiB | sequences/s |")
    print("|---|---|---|---|---|---|---|")
    for preset in sweep.PRESETS:
        lr = rate(rows, preset)
        for policy in ("bandit", *POLICIES) if bandit(preset) else ("",):
            mine = [r for r in rows if lr and sweep.key(r)[:5] == job(preset, policy, lr, 0)[:5]]
            if mine:
                speed = 1e3 * sweep.BATCH / sweep.statistics.median(float(r["ms_per_step"]) for r in mine)
                print(f"| {preset} | {policy} | {lr} | {sweep.percent(mine)} | {int(mine[0]['kept_bytes']) / 2**20:.1f} | "
                      f"{int(mine[0]['peak_bytes']) / 2**20:.1f} | {speed:.1f} |")
    accuracy = {sweep.key(r): f"{100 * float(r['accuracy']):.2f}" for r in rows}
    print("\n| seed 1 | " + " | ".join(f"lr {lr}" for lr in RATES) + " |\n|---|" + "---|" * len(RATES))
    for preset in SEARCHED.values():
        print(f"| {preset} | " + " | ".join(accuracy.get(job(preset, bandit(preset), lr, SEEDS[0]), "") for lr in RATES) + " |")


if __name__ == "__main__":
    sweep.jobs, sweep.table = jobs, table
    p = sweep.options(__doc__)
    p.set_defaults(csv="docs/accuracy_bert.csv", trainer="./train_bert", epochs=3)
    sweep.main(p)
