"""What README.md and client/python/examples show, run as an engine's author would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import unittest
from pathlib import Path

import harness
import kvfence
from harness import PAGE, Case

ROOT = Path(__file__).resolve().parents[2]
ENGINE = ROOT / "client/python/examples/engine.py"


def shown_in(path: Path) -> str:
    """The Python that follows the mark, as it stands in the page."""
    found = re.search(r"<!-- python -->\n```python\n(.*?)```", path.read_text(), re.DOTALL)
    assert found is not None, f"{path} shows no Python"
    return found.group(1)


class Example(Case):
    def setUp(self) -> None:
        super().setUp()
        os.environ["KVFENCE_RUN_DIR"] = self.run_dir
        self.addCleanup(os.environ.pop, "KVFENCE_RUN_DIR")

    def test_the_engine_pair_reuses_pages_and_every_byte_is_right(self) -> None:
        for options in ((), ("--lane-rate", "20", "--tcp-placement", "posted")):
            with self.subTest(options=options):
                daemons = [self.daemon(name, *options) for name in ("prefill", "decode")]
                ended = subprocess.run(
                    [sys.executable, "-X", "dev", "-W", "error::ResourceWarning", str(ENGINE)]
                    + [daemons[0].address],
                    capture_output=True,
                    text=True,
                    timeout=300,
                    check=False,
                )
                self.assertEqual(ended.returncode, 0, ended.stderr)
                lines = ended.stdout.splitlines()
                self.assertEqual(sum(int(line.split()[0]) for line in lines[:-1]), 40)
                self.assertTrue(lines[-1].startswith("240 pages were lent, of 24"), ended.stdout)
                outcomes = dict(line.split(" requests: ")[::-1] for line in lines[:-1])
                self.assertGreaterEqual(int(outcomes["SUCCESS, proof LANDED"]), 30)
                if options:
                    self.assertTrue([o for o in outcomes if o.startswith("FAILED")], ended.stdout)
                for daemon in daemons:
                    self.assertEqual(daemon.stop(), 0)

    def test_the_lines_of_the_readmes_run_as_they_stand_there(self) -> None:
        source, sink = self.pair()
        sink.close()
        for path in (ROOT / "README.md", ROOT / "client/python/README.md"):
            with self.subTest(path=path.name):
                text = shown_in(path).replace("10.0.0.7:7000", source.daemon.address)
                key = harness.new_key()

                def send() -> None:
                    with source.client.open_source(source.region, label=17, key=key) as room:
                        room.submit([0, 1, 2], last=True)
                        room.wait(harness.ENDED_S)

                used = []
                sending = threading.Thread(target=send)
                sending.start()
                exec(
                    compile(text, str(path), "exec"),
                    {"request_id": key, "use": used.append, "kvfence": kvfence},
                )
                sending.join()
                self.assertEqual(used, [[3, 5, 7]])
                self.assertEqual(PAGE, 65536)


if __name__ == "__main__":
    unittest.main(verbosity=2)
