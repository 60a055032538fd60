"""Real daemons for the tests of kvfence-stat, and a strict reader of Prometheus' text format."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

# Files of an older or newer daemon are made by changing bytes of a real one. ring/stats.h, and its golden dump.
MAJOR_AT = 8
NAME_AT = 192


class Failure(Exception):
    """What was seen and should not have been."""


def check(condition, sentence):
    if not condition:
        raise Failure(sentence)


def wait_for(look, sentence, limit_s=20.0):
    """Looks until the answer is true, and returns it."""
    end = time.monotonic() + limit_s
    while True:
        answer = look()
        if answer:
            return answer
        check(time.monotonic() < end, f"within {limit_s} s: {sentence}")
        time.sleep(0.02)


class World:
    """A run directory of its own, and the processes started in it. All are ended with it."""

    def __init__(self, bin_dir):
        self.bin = bin_dir
        self.run = tempfile.mkdtemp(prefix="kvf-stat.", dir="/tmp")
        self.processes = []
        self.env = dict(os.environ, KVFENCE_RUN_DIR=self.run)
        self.env.pop("KVFENCE_SOCKET", None)
        self.log = open(os.path.join(self.run, "log"), "w+b")

    def close(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        self.log.close()
        shutil.rmtree(self.run)

    def start(self, args, **more):
        env = dict(self.env, **more.pop("env", {}))
        process = subprocess.Popen(args, env=env, stderr=self.log, stdin=subprocess.DEVNULL, **more)
        self.processes.append(process)
        return process

    def daemon(self, name, *options):
        """Starts a daemon and waits until it serves. Its .ready is the line that it printed."""
        process = self.start(
            [f"{self.bin}/kvfenced", "--name", name, "--log-level", "error", "--cpu", "none", *options],
            stdout=subprocess.PIPE,
            text=True,
        )
        process.ready = process.stdout.readline()
        check(process.ready.startswith("kvfenced: ready "), f"{name} did not become ready: {process.ready!r}")
        process.listen = re.search(r" listen=(\S+)", process.ready).group(1)
        process.worker = int(re.search(r" worker=(\d+)", process.ready).group(1))
        return process

    def end(self, process, signum=signal.SIGTERM):
        process.send_signal(signum)
        process.wait()

    def stat(self, *args):
        """Runs kvfence-stat. Its status, output and errors."""
        done = subprocess.run(
            [f"{self.bin}/kvfence-stat", *args], env=self.env, capture_output=True, text=True, timeout=30
        )
        return done.returncode, done.stdout, done.stderr

    def engine(self, program, daemon, *args):
        """Runs an engine to its end; returns what it printed."""
        done = subprocess.run(
            [f"{self.bin}/{program}", *args],
            env=dict(self.env, KVFENCE_SOCKET=f"{self.run}/{daemon}.sock"),
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.stdout

    def stats_file(self, name):
        return os.path.join(self.run, name + ".stats")

    def put_changed(self, source, target, changes):
        """A copy of a stats file with bytes changed at offsets; put in place as a daemon does."""
        with open(self.stats_file(source), "rb") as file:
            image = bytearray(file.read())
        for at, value in changes.items():
            image[at : at + len(value)] = value
        fresh = self.stats_file(target) + ".new"
        with open(fresh, "wb") as file:
            file.write(image)
        os.rename(fresh, self.stats_file(target))


# ---- Prometheus' text format 0.0.4, and what its ecosystem asks of names ----------------------------------

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"'
SAMPLE = re.compile(rf"({NAME})(?:\{{((?:{LABEL}(?:,{LABEL})*)?)\}})? (\S+)\Z")
VALUE = re.compile(r"-?[0-9]+(\.[0-9]+)?\Z")  # what this program prints: never NaN, never an infinity


class Family:
    def __init__(self, name, help_text):
        self.name = name
        self.help = help_text
        self.type = None
        self.samples = []  # (suffix, labels, value)


def labels_of(text):
    """Pairs in order, unescaped."""
    pairs = re.findall(LABEL, text or "")
    unescaped = {}
    for name, value in pairs:
        check(name not in unescaped, f"label {name} twice in {text}")
        check(not name.startswith("__"), f"label {name} is reserved")
        unescaped[name] = re.sub(r'\\(["\\n])', lambda m: {"n": "\n"}.get(m.group(1), m.group(1)), value)
    return unescaped


def suffix_of(family, name):
    if family is None:
        return None
    if family.type == "histogram":
        for suffix in ("_bucket", "_sum", "_count"):
            if name == family.name + suffix:
                return suffix
        return None
    return "" if name == family.name else None


def take_sample(family, line, seen):
    match = SAMPLE.match(line)
    check(match, f"no sample: {line!r}")
    suffix = suffix_of(family, match.group(1))
    check(suffix is not None, f"a sample outside its family: {line!r}")
    check(family.type, f"a sample before its TYPE: {line!r}")
    check(VALUE.match(match.group(7)), f"a value that is no plain number: {line!r}")
    labels = labels_of(match.group(2))
    series = (match.group(1), tuple(sorted(labels.items())))
    check(series not in seen, f"a series twice: {line!r}")
    seen.add(series)
    family.samples.append((suffix, labels, float(match.group(7))))


def parse(text):
    """Families by name, in order. Raises Failure at the first line that a strict reader would refuse."""
    families = {}
    family = None
    seen = set()
    check(text.endswith("\n"), "the last line does not end")
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            _, _, name, help_text = line.split(" ", 3)
            check(re.fullmatch(NAME, name), f"a name that is none: {line!r}")
            check(name not in families, f"HELP twice, or samples not in one group: {line!r}")
            family = families[name] = Family(name, help_text)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            check(family is not None and name == family.name, f"TYPE without HELP: {line!r}")
            check(family.type is None and not family.samples, f"TYPE twice or too late: {line!r}")
            check(kind in ("counter", "gauge", "histogram"), f"an unknown type: {line!r}")
            family.type = kind
        else:
            check(not line.startswith("#") and line != "", f"a line that says nothing: {line!r}")
            take_sample(family, line, seen)
    for family in families.values():
        check_family(family)
    return families


def check_family(family):
    check(family.samples, f"{family.name} has no sample")
    check(family.name.startswith("kvfence_"), f"{family.name} is not of kvfence")
    is_total = family.name.endswith("_total")
    check(is_total == (family.type == "counter"), f"{family.name}: a {family.type}'s name")
    for unit in ("_us", "_ms", "_ns", "_kb", "_mb", "_percent"):
        check(not re.search(unit + r"(_total)?\Z", family.name), f"{family.name} is not in a base unit")
    if family.type == "histogram":
        check_histogram(family)
    if family.type == "counter":
        for _, labels, value in family.samples:
            check(value >= 0, f"{family.name}{labels} is negative")


def check_histogram(family):
    series = {}
    for suffix, labels, value in family.samples:
        key = tuple(sorted((k, v) for k, v in labels.items() if k != "le"))
        series.setdefault(key, {"buckets": []})
        if suffix == "_bucket":
            check("le" in labels, f"{family.name}: a bucket without its edge")
            series[key]["buckets"].append((float(labels["le"]), value))
        else:
            check("le" not in labels, f"{family.name}{suffix} has an edge")
            series[key][suffix] = value
    for key, one in series.items():
        edges = [edge for edge, _ in one["buckets"]]
        counts = [count for _, count in one["buckets"]]
        check(edges == sorted(set(edges)), f"{family.name}{key}: edges that do not rise")
        check(counts == sorted(counts), f"{family.name}{key}: buckets that are not cumulative")
        check(edges[-1] == float("inf"), f"{family.name}{key} has no +Inf")
        check(counts[-1] == one["_count"], f"{family.name}{key}: +Inf is not its count")
        check("_sum" in one, f"{family.name}{key} has no sum")


def value_of(families, name, /, **labels):
    """The one sample of that name that has these labels."""
    base = re.sub(r"_(bucket|sum|count)\Z", "", name)
    family = families.get(name) or families.get(base)
    check(family is not None, f"there is no {name}")
    suffix = name[len(family.name) :]
    found = [
        value
        for s, have, value in family.samples
        if s == suffix and all(have.get(k) == v for k, v in labels.items())
    ]
    check(len(found) == 1, f"{len(found)} samples of {name} with {labels}")
    return found[0]


def main(test):
    """Runs one test over its own world. argv: BIN_DIR."""
    world = World(os.path.abspath(sys.argv[1]))
    try:
        test(world)
    except Failure as failure:
        world.log.flush()
        world.log.seek(0)
        sys.stderr.write(world.log.read().decode(errors="replace"))
        sys.stderr.write(f"{os.path.basename(sys.argv[0])}: {failure}\n")
        sys.exit(1)
    finally:
        world.close()
