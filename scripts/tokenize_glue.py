#!/usr/bin/env python3
"""Text to a token file for train_bert: GLUE tasks as downloaded, or your own TSV / JSONL.

    scripts/tokenize_glue.py --task rte -d rte/ -m bert-base-uncased/ -o rte.tok
    scripts/tokenize_glue.py --train mine.tsv --dev held_out.tsv --text-a question --text-b answer --label good -m bert/ -o mine.tok

-d holds train.tsv, dev.tsv, test.tsv (each optional; .jsonl is read too). TSV is split at tabs and nowhere else: GLUE has no quoting, so a
quote is just a character. The format of the file is in data/tokens.h. Standard library and `tokenizers`.
"""
import argparse
import json
import os
import re
import struct
import sys
from array import array

SPLITS = ("train", "dev", "test")
METRICS = ("accuracy", "f1", "matthews", "pearson", "spearman")
MOST_CLASSES = 65536          # that a token file may have
# text_a, text_b, label: columns by name; labels: classes in order, None for scores
TASKS = {
    "rte": dict(a="sentence1", b="sentence2", label="label", labels=["entailment", "not_entailment"], metrics=["accuracy"]),
    "mrpc": dict(a="#1 String", b="#2 String", label="Quality", labels=["0", "1"], metrics=["accuracy", "f1"]),
    "cola": dict(a="sentence", b=None, label="label", labels=["0", "1"], metrics=["matthews"], bare=["source", "label", "mark", "sentence"]),
    "sst2": dict(a="sentence", b=None, label="label", labels=["0", "1"], metrics=["accuracy"]),
    "qnli": dict(a="question", b="sentence", label="label", labels=["entailment", "not_entailment"], metrics=["accuracy"]),
    "qqp": dict(a="question1", b="question2", label="is_duplicate", labels=["0", "1"], metrics=["accuracy", "f1"]),
    "mnli": dict(a="sentence1", b="sentence2", label="gold_label", labels=["entailment", "neutral", "contradiction"], metrics=["accuracy"]),
    "stsb": dict(a="sentence1", b="sentence2", label="score", labels=None, metrics=["pearson", "spearman"]),
}


def trouble(message):
    print(f"{os.path.basename(sys.argv[0])}: {message}", file=sys.stderr)
    sys.exit(1)


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--task", choices=sorted(TASKS), help="a GLUE task: says the columns, the labels and the metrics")
    p.add_argument("-d", "--data", help="directory of the task's files (mnli: the matched dev and test, unless --mismatched)")
    p.add_argument("--mismatched", action="store_true", help="mnli: dev_mismatched and test_mismatched instead")
    p.add_argument("--train", help="your own file, .tsv with a header line or .jsonl")
    p.add_argument("--dev")
    p.add_argument("--test")
    p.add_argument("--text-a", help="column of the (first) sentence")
    p.add_argument("--text-b", help="column of the second sentence, where there are pairs")
    p.add_argument("--label", help="column of the label; a file without it is for predictions only")
    p.add_argument("--labels", help="names of the classes in order, with commas (default: those of the training file, sorted)")
    p.add_argument("--regression", action="store_true", help="labels are numbers to be met, not classes")
    p.add_argument("--metric", action="append", choices=METRICS, help="may be given more than once; their mean picks the best checkpoint")
    p.add_argument("-m", "--model", help="model directory with vocab.txt or tokenizer.json")
    p.add_argument("--vocab", help="a vocab.txt instead")
    p.add_argument("--cased", action="store_true", help="keep capitals and accents (default: as tokenizer_config.json says, else uncased)")
    p.add_argument("--max-length", type=int, default=128, help="tokens of a sequence, special ones included; the longer sentence loses first")
    p.add_argument("--skip-bad", action="store_true", help="leave out records that cannot be used instead of stopping at the first")
    p.add_argument("-o", "--out", required=True)
    o = p.parse_args()
    if not o.model and not o.vocab:
        p.error("--model or --vocab is needed: whose vocabulary?")
    if bool(o.task) == bool(o.text_a):
        p.error("either --task with --data, or --text-a with --train, --dev, --test")
    if o.task and not o.data:
        p.error("--data is missing: the directory with the task's files")
    if not o.task and not (o.train or o.dev or o.test):
        p.error("no file: give --train, --dev or --test")
    if o.max_length < 3:
        p.error("--max-length is at least 3")
    return o


# ---- records ----

def read_lines(path):
    """(number, line) without ends of lines, a byte order mark or empty lines at the end. Only line feeds end a line."""
    try:
        with open(path, "rb") as f:
            text = f.read().decode("utf-8-sig")
    except OSError as error:
        trouble(f"{path}: {error.strerror}")
    except UnicodeDecodeError as error:
        trouble(f"{path}: byte {error.start} is not UTF-8; convert the file first")
    for number, line in enumerate(text.rstrip("\r\n").split("\n"), 1):
        yield number, line.removesuffix("\r")


def read_tsv(path, bare, exact, bad):
    """(number, {column: text}). bare: the columns of a file without a header line (CoLA). exact: what is too much in a line is bad too."""
    header = bare
    for number, line in read_lines(path):
        fields = line.split("\t")
        if header is None:
            header = fields
            if len(set(header)) < len(header):
                trouble(f"{path}: line 1 names a column twice: {', '.join(header)}")
        elif not line and len(header) > 1:
            continue                            # between records
        elif len(fields) < len(header) or (exact and len(fields) > len(header)):
            bad(f"{path}: line {number} has {len(fields)} columns, the header has {len(header)}")
        else:
            yield number, dict(zip(header, fields))


def read_jsonl(path, bad):
    for number, line in read_lines(path):
        try:
            record = json.loads(line) if line else None
        except (ValueError, RecursionError) as error:
            bad(f"{path}: line {number}: {error}")
            continue
        if isinstance(record, dict):
            yield number, record
        elif line:
            bad(f"{path}: line {number} is not a JSON object; one is wanted on each line")


def column(path, number, record, name):
    if name not in record:
        hint = "; is it a CSV? Columns are separated by tabs" if len(record) == 1 and "," in str([*record][0]) else ""
        trouble(f"{path}: line {number} has no column '{name}'; there are: {', '.join(map(str, record))}{hint}")
    return record[name]


def is_text(value):
    """Whether a field can be a sentence or a label: a string that UTF-8 can hold, or a number."""
    if isinstance(value, str):
        return not any(0xD800 <= ord(c) < 0xE000 for c in value)
    return isinstance(value, (int, float)) and not isinstance(value, bool)


class Reader:
    """Records of one file as (text_a, text_b or None, label text or None)."""

    def __init__(self, o, task):
        self.o, self.task, self.skipped = o, task, 0

    def bad(self, message):
        if not self.o.skip_bad:
            trouble(message + "; mend it, or go on without such records: --skip-bad")
        self.skipped += 1

    def read(self, path, split):
        if path.endswith((".jsonl", ".json")):
            records = read_jsonl(path, self.bad)
        else:
            records = read_tsv(path, self.task.get("bare") if split != "test" else None, not self.o.task, self.bad)
        out = []
        for number, record in records:
            texts = [column(path, number, record, name) for name in (self.task["a"], self.task["b"]) if name]
            label = self.task["label"]
            if label and split == "train" and not self.task.get("labels"):
                column(path, number, record, label)
            label = record.get(label) if label else None
            if not all(map(is_text, texts)):
                self.bad(f"{path}: line {number} has a sentence that is no text")
            elif not all(str(text).strip() for text in texts):
                self.bad(f"{path}: line {number} has an empty sentence")
            elif label is not None and not ((is_text(label) or isinstance(label, bool)) and str(label).strip()):
                self.bad(f"{path}: line {number} has an empty label, or one that is no text")
            else:
                out.append((number, str(texts[0]), str(texts[1]) if len(texts) > 1 else None, label))
        return out


def split_files(o):
    if not o.task:
        return {"train": o.train, "dev": o.dev, "test": o.test}
    kind = {"mnli": "_mismatched" if o.mismatched else "_matched"}.get(o.task, "")
    files = {}
    for split in SPLITS:
        names = [split + (kind if split != "train" else "") + end for end in (".tsv", ".jsonl")]
        files[split] = next((p for p in (os.path.join(o.data, n) for n in names) if os.path.exists(p)), None)
    if not any(files.values()):
        trouble(f"{o.data}: holds no train.tsv, dev.tsv or test.tsv of {o.task}")
    return files


# ---- labels ----

def class_names(o, task, splits):
    if o.regression:
        return None
    if o.labels:
        names = o.labels.split(",")
        if "" in names or len(set(names)) < len(names):
            trouble(f"--labels {o.labels}: a name is empty or comes twice")
        return names
    if o.task:
        return task["labels"]
    seen = {str(label) for _, _, _, label in splits["train"] or splits["dev"] if label is not None}
    if not seen:
        return ["0", "1"]                       # nothing is labelled: predictions only
    return sorted(seen, key=lambda s: (0, int(s), s) if re.fullmatch("-?[0-9]+", s) else (1, 0, s))


def check_classes(names):
    if len(names) < 2:
        trouble(f"only one class, '{names[0]}'; there is nothing to learn (--regression, if labels are numbers to be met)")
    if len(names) > MOST_CLASSES:
        trouble(f"{len(names)} classes are more than {MOST_CLASSES} (--regression, if labels are numbers to be met)")
    for name in names:
        if re.search("[\\n\\r\\t\\0]", name):
            trouble(f"label {name!r} has a tab, a line break or a zero in it")


def check_metrics(metrics, names):
    for metric in metrics:
        if (names is None) != (metric in ("pearson", "spearman")):
            trouble(f"--metric {metric} is for {'classes' if names is None else 'scores (--regression)'}")
        if metric == "f1" and len(names) != 2:
            trouble(f"--metric f1 is for two classes, there are {len(names)}")


def label_number(path, number, label, classes, reader):
    """A class (int) or a score (float); None where the record is bad and skipped. classes: names in order to numbers, None for scores."""
    if classes is None:
        try:
            value = float(label)
        except (TypeError, ValueError):
            value = float("nan")
        if abs(value) < 3e38:                   # as a float32
            return value
        reader.bad(f"{path}: line {number}: '{label}' is not a number that a float can hold")
    elif str(label) in classes:
        return classes[str(label)]
    elif isinstance(label, int) and not isinstance(label, bool) and 0 <= label < len(classes) and not any(re.fullmatch("-?[0-9]+", name) for name in classes):
        return label                            # the class's number, where names cannot be meant
    else:
        known = ", ".join([*classes][:10]) + (f" and {len(classes) - 10} more" if len(classes) > 10 else "")
        reader.bad(f"{path}: line {number}: label '{label}' is none of {known}")
    return None


# ---- tokens ----

def open_tokenizer(o):
    try:
        from tokenizers import BertWordPieceTokenizer, Tokenizer
    except ModuleNotFoundError:
        trouble("this Python has no `tokenizers`; take .venv/bin/python after scripts/setup.sh --python, or pip install tokenizers")
    vocab = o.vocab or os.path.join(o.model, "vocab.txt")
    lower = not o.cased
    config = os.path.join(o.model or "", "tokenizer_config.json")
    whole = os.path.join(o.model or "", "tokenizer.json")
    used = config
    try:
        if not o.cased and o.model and os.path.exists(config):
            with open(config, encoding="utf-8") as f:
                lower = json.load(f).get("do_lower_case", True)
        used = vocab if os.path.isfile(vocab) else whole
        if used == vocab:
            tokenizer = BertWordPieceTokenizer(vocab, lowercase=lower)
        elif not o.vocab and os.path.exists(whole):
            tokenizer = Tokenizer.from_file(whole)
            tokenizer.no_padding()
        else:
            trouble(f"{vocab}: no such vocabulary")
    except Exception as error:                  # what the library raises has no type of its own
        trouble(f"{used}: cannot be used: {error}")
    tokenizer.enable_truncation(o.max_length, strategy="longest_first")
    return tokenizer


def fnv1a(tokens):
    h = 0xCBF29CE484222325
    for byte in "".join(token + "\n" for token in tokens).encode():
        h = (h ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return h


def vocabulary(tokenizer):
    """Tokens in the order of their numbers."""
    numbers = tokenizer.get_vocab()
    if sorted(numbers.values()) != list(range(len(numbers))):
        trouble("the vocabulary has gaps or a token twice: its numbers are not 0, 1, 2, ...")
    return sorted(numbers, key=numbers.get)


def padded(data):
    return data + bytes(-len(data) % 8)


def main():
    o = options()
    task = TASKS[o.task] if o.task else dict(a=o.text_a, b=o.text_b, label=o.label, labels=None, metrics=None)
    if o.task and task["labels"] is None:
        o.regression = True
    reader, files = Reader(o, task), split_files(o)
    splits = {s: reader.read(files[s], s) if files[s] else [] for s in SPLITS}
    for s in SPLITS:
        if files[s] and not splits[s]:
            trouble(f"{files[s]}: has no sentences")
    names = class_names(o, task, splits)
    metrics = o.metric or task["metrics"] or (["pearson", "spearman"] if names is None else ["accuracy"])
    if names is not None:
        check_classes(names)
    check_metrics(metrics, names)
    classes = None if names is None else {name: number for number, name in enumerate(names)}
    tokenizer = open_tokenizer(o)
    tokens = vocabulary(tokenizer)
    pad = tokens.index("[PAD]") if "[PAD]" in tokens else 0

    offsets, ids, segments = array("Q", [0]), array("I"), array("B")
    labels, counts, labelled = array("f" if names is None else "i"), [], 0
    for number, split in enumerate(SPLITS):
        records = splits[split]
        has_labels = bool(records) and task["label"] is not None and any(r[3] is not None for r in records)
        labelled |= has_labels << number
        good = []
        for line, a, b, label in records:
            value = label_number(files[split], line, label, classes, reader) if has_labels else 0
            if value is not None:
                good.append((a, b, value))
        encoded = tokenizer.encode_batch([a if b is None else (a, b) for a, b, _ in good])
        for e, (_, _, value) in zip(encoded, good):
            ids.extend(e.ids)
            segments.extend(e.type_ids)
            offsets.append(len(ids))
            labels.append(value)
        counts.append(len(good))
    if ids and max(ids) >= len(tokens):
        trouble(f"token number {max(ids)} is outside the {len(tokens)} tokens of the vocabulary")

    text = padded("".join(line + "\n" for line in [o.task or "own", " ".join(metrics), *(names or [])]).encode())
    header = struct.pack("<8sIIQIIIIIIQII", b"prebrtok", 1, len(tokens), fnv1a(tokens), len(names or []), len(text), *counts, labelled,
                         len(ids), pad, 0)
    temporary = o.out + ".tmp"
    try:
        with open(temporary, "wb") as f:
            for part in (header, text, offsets.tobytes(), padded(labels.tobytes()), padded(ids.tobytes()), padded(segments.tobytes())):
                f.write(part)
        os.replace(temporary, o.out)
    except OSError as error:
        if os.path.exists(temporary):
            os.remove(temporary)
        trouble(f"{o.out}: {error.strerror}")
    kinds = [f"{n} {s}{'' if labelled >> k & 1 or not n else ' (no labels: for predictions)'}" for k, (s, n) in enumerate(zip(SPLITS, counts))]
    lengths = [end - start for start, end in zip(offsets, offsets[1:])]
    print(f"{o.out}: {', '.join(kinds)} sequences; {sum(lengths) / max(1, len(lengths)):.1f} tokens on average, {max(lengths, default=0)} at most"
          + (f"; {reader.skipped} left out" if reader.skipped else ""))


if __name__ == "__main__":
    main()
