#!/usr/bin/env python3
"""Draws the logs of one or more runs: loss, accuracy, rate, speed and memory over the steps.

    plot_log.py runs/full runs/sheared -o curves.png
"""
import argparse
import os

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from run_log import read_log

MIB = 1024.0 * 1024.0


def series(log, column, scale=1.0):
    """(steps, values) where the log has a value."""
    points = [(line["step"], line[column] / scale) for line in log if line.get(column) is not None]
    return [p[0] for p in points], [p[1] for p in points]


def smoothed(values, window):
    """Mean over `window` steps around each (fewer at the ends), so that the curve lies in the middle of the raw one."""
    half = window // 2
    around = [values[max(0, i - half):i + half + 1] for i in range(len(values))]
    return [sum(part) / len(part) for part in around]


def draw(axes, log, color, label, window):
    """One run in all panels."""
    loss, accuracy, rate, speed, memory = axes
    steps, values = series(log, "loss")
    loss.plot(steps, values, color=color, alpha=0.25, linewidth=0.8)
    loss.plot(steps, smoothed(values, window), color=color, linewidth=1.6, label=label)
    accuracy.plot(*series(log, "accuracy", 0.01), color=color, marker="o", markersize=4)
    rate.plot(*series(log, "lr"), color=color)
    steps, values = series(log, "samples_per_s")
    speed.plot(steps, values, color=color, alpha=0.25, linewidth=0.8)
    speed.plot(steps, smoothed(values, window), color=color, linewidth=1.6)
    memory.plot(*series(log, "kept_bytes", MIB), color=color, drawstyle="steps-post")


def names_of(paths):
    """What tells the runs apart: the directory of each log, as much of its path as is needed."""
    paths = [os.path.abspath(path if os.path.isdir(path) else os.path.dirname(os.path.abspath(path))) for path in paths]
    for depth in range(1, 8):
        names = ["/".join(path.split(os.sep)[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            break
    return names


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("logs", nargs="+", help="log.csv files or run directories")
    p.add_argument("-o", "--out", default="log.png")
    p.add_argument("--smooth", type=int, default=0, help="steps of the moving mean (default: a twentieth of the run)")
    o = p.parse_args()
    logs = [read_log(path) for path in o.logs]

    figure, grid = plt.subplot_mosaic([["loss"] * 4, ["accuracy", "lr", "speed", "memory"]], figsize=(13, 7.5), height_ratios=[1.5, 1],
                                      layout="constrained")
    axes = [grid[name] for name in ("loss", "accuracy", "lr", "speed", "memory")]
    for i, (log, name) in enumerate(zip(logs, names_of(o.logs))):
        draw(axes, log, f"C{i % 10}", name, o.smooth or max(1, len(log) // 20))
    for axis, title in zip(axes, ("training loss", "test accuracy, %", "learning rate", "samples / s", "kept for backward, MiB")):
        axis.set_title(title, fontsize=10, loc="left")
        axis.set_xlabel("step", fontsize=9)
        axis.grid(alpha=0.3)
        axis.set_xlim(0, max(log[-1]["step"] for log in logs))
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[2:]:
        axis.set_ylim(bottom=0)
    axes[2].yaxis.set_major_formatter("{x:.1e}")
    axes[0].legend(frameon=False)
    figure.savefig(o.out, dpi=130)
    print(f"{o.out}: {len(logs)} run{'s' * (len(logs) > 1)}, {max(len(log) for log in logs)} steps")


if __name__ == "__main__":
    main()
