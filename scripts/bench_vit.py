#!/usr/bin/env python3
"""How fast train_vit is beside plain PyTorch (scripts/reference_vit.py): ViT-Ti/16 and ViT-B/16, 224 px, same weights, batches and threads.

The programs take turns, several rounds, and each round begins elsewhere. A figure is the median over rounds of the median over a run's
steps, a ratio the median over rounds of the ratios within a round, so that what else the machine does touches both sides. Prints tables
and writes docs/speed_vit.csv and docs/speed_gemm.csv; `make bench` is this with its defaults. Standard library only.

    scripts/bench_vit.py --threads 2 --rounds 3
    scripts/bench_vit.py --models tiny --tiny-batch 2 --rounds 1 --steps 2 --gemm-rounds 0 --csv /tmp/speed.csv     a quick look

ViT-B has random weights. BackRazor is the published form in both programs: exact GELU, softmax weights kept, q, k, v and they pruned too.
A run is shorter than --resample, so it has one drawing of columns, before the steps that count, and no measurement for the bandit.
The parts of a step are train_vit's own shares of the time of all steps, those included that do not count.
"""
import argparse
import csv
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

SIZES = {"tiny": ("ViT-Ti/16", 192, 3), "base": ("ViT-B/16", 768, 12)}       # name, width, heads
RAZOR = ["--method", "backrazor", "--attention", "materialized", "--gelu", "exact"]
WORKS = [("train_vit", "full", ["--method", "full"]),
         ("PyTorch", "full", ["--method", "full"]),
         ("train_vit", "prebr++ 0.5", ["--method", "prebr++", "--keep", "0.5"]),
         ("train_vit", "prebr++ 0.2", ["--method", "prebr++", "--keep", "0.2"]),
         ("train_vit", "backrazor", RAZOR),
         ("PyTorch", "backrazor", RAZOR)]
PARTS = {"gemm": ["gemm"], "attention": ["attention"], "norms": ["norm"]}   # of a step, by train_vit's names; what else it names is the rest


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-m", "--model", help="a ViT-Ti/16 checkpoint [where $PREBR_TEST_DATA or data-sets/ has it; else random weights]")
    p.add_argument("-d", "--data", help="a CIFAR-10 directory [likewise; else noise]")
    p.add_argument("--python", help="an interpreter with torch [$PYTHON, .venv/bin/python, python3]; without one train_vit alone is measured")
    p.add_argument("--trainer", default="./train_vit")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--models", default="tiny,base", help="tiny, base or both")
    p.add_argument("--tiny-batch", type=int, default=16)
    p.add_argument("--base-batch", type=int, default=4)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int, default=6, help="of a run, that count")
    p.add_argument("--drop", type=int, default=2, help="steps before them that do not")
    p.add_argument("--gemm-rounds", type=int, default=15, help="of build/test/bench_gemm; 0: leave it out")
    p.add_argument("--limit", type=float, default=0, help="seconds after which no further run begins (0: none)")
    p.add_argument("--csv", default="docs/speed_vit.csv", help="the other is beside it")
    o = p.parse_args()
    if not set(o.models.split(",")) <= set(SIZES) or min(o.threads, o.rounds, o.steps, o.tiny_batch, o.base_batch) < 1 or o.drop < 0:
        p.error("--models is tiny, base or both; threads, rounds, steps and batches are at least 1")
    o.python, o.model, o.data = o.python or find_torch(), o.model or find_data("vit_tiny_patch16_224"), o.data or find_data("cifar-10-batches-bin")
    return o


def run(command, threads):
    """Its stdout; a failure ends everything."""
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": str(threads)})
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr}")
    return done.stdout


def find_torch():
    for python in (os.environ.get("PYTHON"), ".venv/bin/python", "python3"):
        if python and shutil.which(python) and not subprocess.run([python, "-c", "import torch"], capture_output=True).returncode:
            return python
    print("no Python with torch: train_vit alone is measured (scripts/setup.sh --python)", file=sys.stderr)
    return None


def find_data(name):
    paths = [os.path.join(directory, name) for directory in (os.environ.get("PREBR_TEST_DATA"), "data-sets") if directory]
    return next(filter(os.path.isdir, paths), None)


def make_noise(directory):
    """A CIFAR-10 directory of random pixels."""
    noise = random.Random(1)
    os.mkdir(directory)
    with open(os.path.join(directory, "data_batch_1.bin"), "wb") as f:
        for i in range(256):
            f.write(bytes([i % 10]) + noise.randbytes(3072))
    return directory


def make_model(o, size, work):
    """A random model for both programs: what train_vit makes from a config and writes after a step."""
    _, width, heads = SIZES[size]
    config, made = os.path.join(work, size + "-config"), os.path.join(work, size)
    os.mkdir(config)
    with open(os.path.join(config, "config.json"), "w") as f:
        json.dump({"model_type": "vit", "architectures": ["ViTForImageClassification"], "hidden_size": width, "num_hidden_layers": 12,
                   "num_attention_heads": heads, "intermediate_size": 4 * width, "patch_size": 16, "image_size": 224, "num_labels": 10}, f)
    run([o.trainer, "-m", config, "-d", o.data, "--from-scratch", "-b", "1", "--steps", "1", "--eval-every", "-1", "-o", made], o.threads)
    shutil.rmtree(os.path.join(made, "state"))
    return os.path.join(made, "model")


def run_ours(o, common, batch):
    """(losses, ms of each step, {part: share}, arena). Without --out, whose model and state would take longer than the run."""
    out = run([o.trainer, *common, "--log-every", "1"], o.threads)
    lines = re.findall(r"^step \d+/\d+ .*loss (\S+) .*?([\d.e+]+)/s", out, re.M)
    shares = dict(re.findall(r" (\w+) ([\d.]+) %", re.search(r"^  time of steps(.*)$", out, re.M)[1]))
    parts = {part: sum(float(shares.pop(name)) for name in names) / 100 for part, names in PARTS.items()}
    parts["rest"] = sum(map(float, shares.values())) / 100
    return [float(loss) for loss, _ in lines], [1e3 * batch / float(rate) for _, rate in lines], parts, re.search(r"arena = planned peak (.*);", out)[1]


def run_torch(o, common, work):
    out = os.path.join(work, "torch")
    run([o.python, "scripts/reference_vit.py", *common, "-o", out], o.threads)
    with open(os.path.join(out, "log.csv"), newline="") as f:
        rows = list(csv.DictReader(f))
    return [float(r["loss"]) for r in rows], [float(r["ms"]) for r in rows], None, f"{int(rows[-1]['peak_bytes']) / 2**20:.0f} MiB (process)"


def measure(o, name, model, batch, work, end):
    """{(program, setting): [(losses, median ms, parts, memory) of each round]}"""
    works = [w for w in WORKS if o.python or w[0] != "PyTorch"]
    results = {w[:2]: [] for w in works}
    for r in range(o.rounds):
        for program, setting, options in works[r % len(works):] + works[:r % len(works)]:
            if end and time.time() > end:
                print(f"the time is up: {name} has {r} whole rounds", file=sys.stderr)
                return results
            common = ["-m", model, "-d", o.data, "--image-size", "224", "-b", str(batch), "--steps", str(o.drop + o.steps), "--eval-every", "-1",
                      "--threads", str(o.threads), *options]
            losses, ms, parts, memory = run_ours(o, common, batch) if program == "train_vit" else run_torch(o, common, work)
            if len(ms) != o.drop + o.steps:
                sys.exit(f"{program} {setting}: {len(ms)} steps in its output, not {o.drop + o.steps}")
            results[program, setting].append((losses, statistics.median(ms[o.drop:]), parts, memory))
            print(f"{name}, round {r + 1}: {program} {setting}: {results[program, setting][-1][1]:.1f} ms a step", file=sys.stderr, flush=True)
    return results


def same_work(results):
    """Both programs must have done the same: the losses of the first steps agree."""
    for setting in ("full", "backrazor"):
        ours, theirs = results.get(("train_vit", setting)), results.get(("PyTorch", setting))
        if ours and theirs and not all(abs(x - y) <= 1e-3 * abs(y) for x, y in zip(ours[0][0][:2], theirs[0][0])):
            sys.exit(f"{setting}: losses {ours[0][0][:2]} in train_vit and {theirs[0][0][:2]} in PyTorch: not the same work")


def ratio(results, key, base):
    """How many times as fast as `base`, or None."""
    pairs = list(zip(results[key], results.get(base, [])))
    return statistics.median(b[1] / a[1] for a, b in pairs) if pairs else None


def table_rows(o, name, batch, results):
    for (program, setting), runs in results.items():
        if not runs:
            continue
        ms = statistics.median(r[1] for r in runs)
        row = {"model": name, "batch": batch, "threads": o.threads, "program": program, "setting": setting, "rounds": len(runs),
               "ms": f"{ms:.1f}", "images_per_s": f"{1e3 * batch / ms:.2f}"}
        for column, base in (("x_pytorch_full", ("PyTorch", "full")), ("x_pytorch_backrazor", ("PyTorch", "backrazor"))):
            times = ratio(results, (program, setting), base)
            row[column] = f"{times:.2f}" if times else ""
        for part in (*PARTS, "rest"):
            row[part + "_ms"] = f"{ms * statistics.median(r[2][part] for r in runs):.1f}" if runs[0][2] else ""
        yield {**row, "memory": runs[-1][3]}


def gemm_rows(o):
    text = run(["build/test/bench_gemm", str(o.threads), str(o.gemm_rounds)], o.threads)
    for section in re.split(r"\n(?=ViT)", text)[1:]:
        model, batch = re.match(r"(.*), batch (\d+)", section).groups()
        share = re.search(r"^all twelve: ([\d.]+) of", section, re.M)[1]
        products = re.findall(r"^(\w+ d?[XYW]) +(\d+) +(\d+) +(\d+) +([\d.]+) +([\d.]+) +([\d.]+)$", section, re.M)
        for name, m, n, k, ours, plain, rate in products:
            yield {"model": model, "batch": batch, "threads": o.threads, "product": name, "m": m, "n": n, "k": k, "gflops": ours,
                   "gflops_onednn": plain, "ratio": rate}
        yield {"model": model, "batch": batch, "threads": o.threads, "product": "all", "m": "", "n": "", "k": "", "gflops": "",
               "gflops_onednn": "", "ratio": share}


def show(rows, path):
    """A Markdown table on stdout, and the CSV."""
    if not rows:
        return
    columns = list(rows[0])
    width = {c: max(len(c), *(len(str(r[c])) for r in rows)) for c in columns}
    print("\n| " + " | ".join(c.ljust(width[c]) for c in columns) + " |\n|" + "|".join("-" * (width[c] + 2) for c in columns) + "|")
    for r in rows:
        print("| " + " | ".join(str(r[c]).ljust(width[c]) for c in columns) + " |")
    with open(path, "w", newline="") as f:
        out = csv.DictWriter(f, columns, lineterminator="\n")
        out.writeheader()
        out.writerows(rows)


def main():
    os.chdir(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    o = options()
    end = time.time() + o.limit if o.limit else 0
    rows = []
    with tempfile.TemporaryDirectory() as work:
        o.data = o.data or make_noise(os.path.join(work, "noise"))
        for size, batch in (("tiny", o.tiny_batch), ("base", o.base_batch)):
            if size not in o.models.split(","):
                continue
            model = o.model if size == "tiny" and o.model else make_model(o, size, work)
            results = measure(o, SIZES[size][0], model, batch, work, end)
            same_work(results)
            rows += table_rows(o, SIZES[size][0], batch, results)
    gemm = list(gemm_rows(o)) if o.gemm_rounds and not (end and time.time() > end) else []
    show(rows, o.csv)
    show(gemm, os.path.join(os.path.dirname(o.csv), "speed_gemm.csv"))
    for row in gemm:
        if row["product"] == "all":
            print(f"{row['model']}, batch {row['batch']}: GEMM at {100 * float(row['ratio']):.0f} % of plain oneDNN's rate")


if __name__ == "__main__":
    main()
