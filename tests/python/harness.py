"""Real daemons for the tests of the Python client, each test with daemons and a run directory of its own."""

from __future__ import annotations

import ctypes
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from typing import Any, Callable, Dict, List, Optional, Tuple

import kvfence

PAGE = 65536
READY_S = 40.0
ENDED_S = 30.0  # for what takes milliseconds on a machine that is not busy
# What is tested here is no time: a machine too busy to run a worker for a second has not lost it.
PATIENT = ("--cpu", "none", "--liveness-ms", "20000", "--watchdog-ms", "20000")
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Daemon:
    """A kvfenced that serves, and what it takes to start it again."""

    def __init__(self, name: str, run_dir: str, options: List[str]) -> None:
        self.name = name
        self.run_dir = run_dir
        self.options = options
        self.address = ""
        self.worker = 0
        self.process: Optional["subprocess.Popen[str]"] = None
        self.start()

    def start(self) -> None:
        """Again too: at the same address."""
        program = os.environ["KVFENCED"]
        given = os.environ.get("KVFENCED_OPTIONS", "").split()
        command = [program, "--name", self.name, "--run-dir", self.run_dir, *given, *self.options]
        if self.address:
            command += ["--listen", self.address]
        with open(self.log_path, "a", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, preexec_fn=_die_with_parent
            )
        ready = self._ready_line()
        fields = dict(word.split("=", 1) for word in ready.split() if "=" in word)
        self.address = fields["listen"]
        self.worker = int(fields["worker"])

    @property
    def log_path(self) -> str:
        return os.path.join(self.run_dir, self.name + ".log")

    def _ready_line(self) -> str:
        assert self.process is not None and self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], READY_S)[0]:
            raise AssertionError(f"{self.name} is not ready after {READY_S} s")
        line = self.process.stdout.readline()
        if not line.startswith("kvfenced: ready "):
            raise AssertionError(f"{self.name} printed {line!r} instead of its ready line")
        return line

    def kill(self) -> None:
        """Supervisor and worker, as an operator's kill -9 of both."""
        assert self.process is not None
        self.process.kill()
        self._wait()

    def kill_worker(self) -> None:
        os.kill(self.worker, signal.SIGKILL)

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self._wait()

    def _wait(self) -> int:
        assert self.process is not None and self.process.stdout is not None
        status = self.process.wait(ENDED_S)
        self.process.stdout.close()
        self.process = None
        return status

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self._wait()


class Engine:
    """A client, a pool and a region of 64 KiB pages behind one daemon."""

    def __init__(self, daemon: Daemon, pages: int, **options: Any) -> None:
        self.daemon = daemon
        socket = os.path.join(daemon.run_dir, daemon.name + ".sock")
        self.client = kvfence.Client(socket=socket, timeout=READY_S, **options)
        self.pool = kvfence.Pool(pages * PAGE, huge_pages=False)
        self.region = self.client.register(self.pool, page_bytes=PAGE)

    def fill(self, pages: List[int], seed: int) -> None:
        for page in pages:
            self.region.page(page)[:] = bytes_of(seed, page)

    def close(self) -> None:
        self.client.close(READY_S)
        self.pool.close()


def bytes_of(seed: int, page: int) -> bytes:
    return random.Random(f"{seed} {page}").randbytes(PAGE)


def keys() -> Callable[[], int]:
    """Keys that no other test of this machine uses."""
    rng = random.SystemRandom()
    return lambda: rng.getrandbits(64)


new_key = keys()


def until(condition: Callable[[], Any], what: str, limit_s: float = ENDED_S) -> Any:
    """Asks until it is so. For what nobody announces."""
    deadline = time.monotonic() + limit_s
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not so after {limit_s} s: {what}")
        time.sleep(0.002)


class Case(unittest.TestCase):
    """Daemons by name; at the end each is stopped, must say 0, and no page may be lent."""

    def setUp(self) -> None:
        self.run_dir = tempfile.mkdtemp(prefix="kvfence-python-")
        self.daemons: Dict[str, Daemon] = {}
        self.engines: List[Engine] = []
        self.addCleanup(self._clean)

    def daemon(self, name: str, *options: str) -> Daemon:
        made = self.daemons[name] = Daemon(name, self.run_dir, [*PATIENT, *options])
        return made

    def engine(self, daemon: Daemon, pages: int = 64, **options: Any) -> Engine:
        engine = Engine(daemon, pages, **options)
        self.engines.append(engine)
        return engine

    def pair(self, *options: str, pages: int = 64) -> Tuple[Engine, Engine]:
        """Prefill and decode, each behind a daemon of its own."""
        return (
            self.engine(self.daemon("prefill", *options), pages),
            self.engine(self.daemon("decode", *options), pages),
        )

    def tearDown(self) -> None:
        lent = [
            (engine.daemon.name, engine.region.first_lent(range(engine.region.page_count)))
            for engine in self.engines
            if not engine.client.is_closed
        ]
        for engine in self.engines:
            engine.close()
        self.assertEqual([of for of in lent if of[1] is not None], [], "a page is lent at the end")
        for daemon in self.daemons.values():
            if daemon.process is not None:
                self.assertEqual(daemon.stop(), 0, f"exit status of {daemon.name}")

    def _clean(self) -> None:
        has_failed = any(error for _, error in getattr(self._outcome, "errors", [])) or not getattr(
            self._outcome, "success", True
        )
        for daemon in self.daemons.values():
            daemon.end()
            if has_failed:
                self._show_log(daemon)
        shutil.rmtree(self.run_dir, ignore_errors=True)

    def _show_log(self, daemon: Daemon) -> None:
        with open(daemon.log_path, encoding="utf-8") as log:
            for line in [line for line in log if "info:   " not in line][-25:]:
                print(f"     | {daemon.name}: {line}", end="", file=sys.stderr)

    def assert_code(
        self, code: int, function: Callable[..., Any], *args: Any, **named: Any
    ) -> kvfence.KvfenceError:
        """The call is refused with this code, and with the library's own words for it."""
        with self.assertRaises(kvfence.KvfenceError) as caught:
            function(*args, **named)
        error = caught.exception
        self.assertEqual(error.code, code, str(error))
        if code in tuple(kvfence.Code):
            self.assertEqual(error.name, f"KVF_E_{kvfence.Code(code).name}")
            self.assertEqual(error.sentence, kvfence.sentence_of(code))
        return error


def main() -> None:
    unittest.main(module="__main__", verbosity=2)
