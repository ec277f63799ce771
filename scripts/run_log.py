"""log.csv of a run, read with the standard library. Columns: see data/run.h."""
import csv
import os
import sys


def bad_file(message):
    print(f"{os.path.basename(sys.argv[0])}: {message}", file=sys.stderr)
    sys.exit(2)


def read_log(path):
    """The lines of a log as dicts of floats; an empty field is None. A run directory stands for its log.csv."""
    if os.path.isdir(path):
        path = os.path.join(path, "log.csv")
    try:
        with open(path, newline="") as f:
            rows = list(csv.reader(f))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        bad_file(f"{path}: {getattr(error, 'strerror', None) or error}")
    if not rows or "step" not in rows[0]:
        bad_file(f"{path}: no column `step` in the first line: not a log")
    lines = []
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(rows[0]):
            bad_file(f"{path}: line {number} has {len(row)} fields, the first line has {len(rows[0])}")
        try:
            lines.append({name: float(text) if text else None for name, text in zip(rows[0], row)})
        except ValueError as error:
            bad_file(f"{path}: line {number}: {error}")
        if lines[-1]["step"] is None:
            bad_file(f"{path}: line {number} has no step")
    if not lines:
        bad_file(f"{path}: no steps")
    return lines
