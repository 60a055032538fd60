"""Reads gcovr's JSON and says what scripts/coverage says: a table of files, the branches that nothing
reached, and which of them tests/coverage-allowed does not explain.

An entry of that file is one line, "path | the source line, without its indentation | why". It stands for the
source line and not for its number, so that it does not move when the file grows. That its line is gone is an
error; that this run reached it is only told, since another one with fewer seeds may not. Exit status: 0, or 1
(less than the floor, unexplained, or out of date)."""

import argparse
import json
import os
import sys


def read_allowed(path):
    entries = {}
    if not os.path.exists(path):
        return entries
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            line = line.rstrip("\n")
            if line == "" or line.startswith("#"):
                continue
            parts = [part.strip() for part in line.split(" | ")]
            if len(parts) < 3 or parts[-1] == "":
                sys.exit(f"{path}:{number}: is not \"path | source line | why\"")
            entries[(parts[0], " | ".join(parts[1:-1]))] = parts[-1]
    return entries


def percent(part, whole):
    return 100.0 * part / whole if whole else 100.0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("json")
    parser.add_argument("--root", required=True)
    parser.add_argument("--allowed", required=True)
    parser.add_argument("--floor", type=float, required=True)
    args = parser.parse_args()

    with open(args.json, encoding="utf-8") as file:
        files = json.load(file)["files"]
    allowed = read_allowed(args.allowed)
    used = set()
    lines = set()
    unexplained = []
    explained = []
    sums = [0, 0, 0, 0]
    print(f"{'file':<34}{'lines':>8}{'reached':>9}{'':>9}{'branches':>10}{'reached':>9}")
    for entry in sorted(files, key=lambda one: one["file"]):
        path = entry["file"]
        with open(os.path.join(args.root, path), encoding="utf-8") as source:
            text = source.read().split("\n")
        lines.update((path, line.strip()) for line in text)
        counts = [0, 0, 0, 0]
        for line in entry["lines"]:
            if line.get("gcovr/noncode"):
                continue
            counts[0] += 1
            counts[1] += line["count"] > 0
            branches = line.get("branches", [])
            reached = sum(1 for branch in branches if branch["count"] > 0)
            counts[2] += len(branches)
            counts[3] += reached
            if reached == len(branches):
                continue
            source_line = text[line["line_number"] - 1].strip()
            key = (path, source_line)
            what = f"{path}:{line['line_number']}: {reached} of {len(branches)}: {source_line}"
            if key in allowed:
                used.add(key)
                explained.append(f"{what}\n        {allowed[key]}")
            else:
                unexplained.append(what)
        sums = [a + b for a, b in zip(sums, counts)]
        show(path, counts)
    show("sidecar/core", sums)
    print_list("branches that nothing reached, explained in tests/coverage-allowed:", explained)
    print_list("branches that nothing reached, NOT EXPLAINED:", unexplained)
    reached = [f"{path} | {line}" for path, line in allowed
               if (path, line) not in used and (path, line) in lines]
    stale = [f"{path} | {line}" for path, line in allowed if (path, line) not in lines]
    print_list("explained in tests/coverage-allowed, and reached by this run:", reached)
    print_list("explained in tests/coverage-allowed, and gone:", stale)
    total = percent(sums[3], sums[2])
    print(f"coverage: {percent(sums[1], sums[0]):.1f} % of lines, {total:.1f} % of branches "
          f"(floor {args.floor:.0f} %), {len(unexplained)} lines not explained, {len(stale)} out of date")
    return 1 if total < args.floor or unexplained or stale else 0


def show(name, counts):
    print(f"{name:<34}{counts[0]:>8}{percent(counts[1], counts[0]):>8.1f}%{'':>9}"
          f"{counts[2]:>10}{percent(counts[3], counts[2]):>8.1f}%")


def print_list(title, items):
    if items:
        print(title)
        for item in items:
            print(f"    {item}")


if __name__ == "__main__":
    sys.exit(main())
