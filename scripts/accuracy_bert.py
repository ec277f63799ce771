#!/usr/bin/env python3
"""Measures what each method is worth on text: the table of docs/accuracy_bert.md. It is accuracy_vit.py's sweep, of ./train_bert.

    scripts/tokenize_glue.py --task rte -d rte/ -m bert/ -o rte.tok
    scripts/accuracy_bert.py -m bert/ -d rte.tok --workers 2      # runs what is missing
    scripts/accuracy_bert.py --table                              # prints the table from the CSV
"""
import accuracy_vit as sweep

LEAN = ["--gelu", "regelu2"]
sweep.RATES = ("2e-5", "5e-5", "1e-4", "3e-4")
sweep.BATCH = 8
sweep.PRESETS = {
    "full": ["--method", "full"],
    "head": ["--method", "head"],
    "bitfit": ["--method", "bitfit", *LEAN],
    **{f"backrazor {p}": ["--method", "backrazor", "--prune", p, *LEAN] for p in ("0.8", "0.9")},
    **{f"{m} {k}": ["--method", m, "--keep", k, *LEAN] for m in ("prebr", "prebr++") for k in ("0.5", "0.2", "0.1")},
}
sweep.EXTRAS = {"full": ["--group-by-length"], "prebr++ 0.2": ["--group-by-length", "--dropout 0"]}
sweep.common = lambda o: ["-b", str(sweep.BATCH), "--epochs", str(o.epochs), "--warmup", "50", "--head-lr-scale", "10", "--schedule", "linear"]

if __name__ == "__main__":
    p = sweep.options(__doc__)
    p.set_defaults(csv="docs/accuracy_bert.csv", trainer="./train_bert", epochs=3)
    sweep.main(p)
