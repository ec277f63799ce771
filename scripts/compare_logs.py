#!/usr/bin/env python3
"""Sets two logs side by side and says where they part.

    compare_logs.py a/log.csv b/log.csv [--column loss] [--tolerance 1e-4]

The relative difference of a step is |a - b| / max(|a|, |b|). Exit status: 0 within the tolerance on every step, 1 past it (or a step
that only one log has, but for --common), 2 where a file is no log.
"""
import argparse
import math
import sys

from run_log import bad_file, read_log


def difference(a, b):
    """Relative; infinite where only one of them is a number."""
    if a is None or b is None or math.isnan(a) or math.isnan(b):
        same = a is b or (a is not None and b is not None and math.isnan(a) and math.isnan(b))
        return 0.0 if same else math.inf
    if a == b:
        return 0.0
    return abs(a - b) / max(abs(a), abs(b)) if math.isfinite(a) and math.isfinite(b) else math.inf


def text(value):
    return "-" if value is None else f"{value:.9g}"


def compare(a, b, column, tolerance, every):
    """Prints the table of one column over the steps that both have; the largest difference."""
    steps = sorted(a.keys() & b.keys())
    parts = [(step, a[step][column], b[step][column], difference(a[step][column], b[step][column])) for step in steps]
    print(f"{'step':>8}  {column + ' a':>16}  {column + ' b':>16}  {'relative':>10}")
    for i, (step, x, y, d) in enumerate(parts):
        if i % every == 0 or i == len(parts) - 1:
            print(f"{step:8.0f}  {text(x):>16}  {text(y):>16}  {d:10.2e}" + ("  <" if d > tolerance else ""))
    for name, bound in (("first difference", 0.0), (f"first past {tolerance:g}", tolerance)):
        step = next((step for step, _, _, d in parts if d > bound), None)
        print(f"{column}: {name}: " + ("none" if step is None else f"step {step:.0f}"))
    worst = max(parts, key=lambda part: part[3])
    print(f"{column}: max relative difference: {worst[3]:.3e}" + (f" (step {worst[0]:.0f})" if worst[3] else ""))
    return worst[3]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("a", help="log.csv or a run directory")
    p.add_argument("b")
    p.add_argument("--column", action="append", help="default loss; may be given several times")
    p.add_argument("--tolerance", type=float, default=1e-4)
    p.add_argument("--every", type=int, default=0, help="show every so many steps (default: about 20 lines)")
    p.add_argument("--common", action="store_true", help="steps that only one log has do not count")
    o = p.parse_args()
    if not o.tolerance >= 0 or o.every < 0:
        p.error("--tolerance and --every are not negative")
    logs = [{line["step"]: line for line in read_log(path)} for path in (o.a, o.b)]
    common = logs[0].keys() & logs[1].keys()
    if not common:
        bad_file(f"{o.a} and {o.b} have no step in common")
    worst = 0.0
    for column in o.column or ["loss"]:
        for path, log in zip((o.a, o.b), logs):
            if column not in next(iter(log.values())):
                bad_file(f"{path}: no column `{column}`")
        worst = max(worst, compare(*logs, column, o.tolerance, o.every or -(-len(common) // 20)))
    alone = len(logs[0].keys() ^ logs[1].keys())
    if alone:
        print(f"{alone} steps are in one log only (a has {len(logs[0])}, b has {len(logs[1])})")
    sys.exit(worst > o.tolerance or (alone > 0 and not o.common))


if __name__ == "__main__":
    main()
