"""One client, many threads: rooms opened, sent, aborted, polled and waited for at the same time."""

from __future__ import annotations

import random
import threading
import unittest
from array import array
from concurrent.futures import ThreadPoolExecutor
from typing import Any, List

import harness
import kvfence
from harness import Case, Engine, bytes_of, new_key
from kvfence import State

THREADS = 8
ROUNDS = 12


class Threads(Case):
    def serve(self, source: Engine, sink: Engine, me: int) -> None:
        """A thread's own pages, again and again: sent, or aborted somewhere on the way."""
        rng = random.Random(me)
        page = me * 2
        for turn in range(ROUNDS):
            key = new_key()
            is_aborted = turn % 3 == 2
            source.fill([page, page + 1], key)
            to = sink.client.open_sink(
                sink.region, [page, page + 1], label=me, key=key, writers=source.daemon.address
            )
            of = source.client.open_source(source.region, label=me, key=key)
            with to, of:
                with of.lease():
                    of.submit([page, page + 1], last=True)
                if is_aborted:
                    rng.choice((to, of)).abort()
                state = to.wait(harness.ENDED_S)
                of.wait_drained(harness.ENDED_S)
                self.assertTrue(sink.region.are_idle([page, page + 1]))
                if not is_aborted:
                    self.assertIs(state, State.SUCCESS, f"{to.error()}, {of.error()}")
            if state is State.SUCCESS:
                for of_page in (page, page + 1):
                    self.assertEqual(bytes(sink.region.page(of_page)), bytes_of(key, of_page))

    def work(self, source: Engine, sink: Engine) -> None:
        is_over = threading.Event()

        def look() -> None:
            """Asks about everything there is while the others change it."""
            handles, states = array("Q", range(1, 65)), array("i", [0] * 64)
            while not is_over.is_set():
                for engine in (source, sink):
                    engine.client.poll_many(handles, states)
                    engine.client.check()
                    engine.client.events()
                    engine.region.first_lent(range(2 * THREADS))

        looking = threading.Thread(target=look)
        looking.start()
        try:
            with ThreadPoolExecutor(THREADS) as pool:
                for result in [pool.submit(self.serve, source, sink, me) for me in range(THREADS)]:
                    result.result()
        finally:
            is_over.set()
            looking.join()

    def test_threads_share_a_client_over_tcp(self) -> None:
        self.work(*self.pair())

    def test_threads_share_a_client_within_one_daemon(self) -> None:
        daemon = self.daemon("gpu0", "--transport", "local")
        self.work(self.engine(daemon), self.engine(daemon))

    def test_clients_are_closed_under_threads_that_use_them_and_none_is_freed_too_early(
        self,
    ) -> None:
        daemon = self.daemon("gpu0")
        for turn in range(10):
            engine = self.engine(daemon, 16)
            start = threading.Barrier(THREADS + 1)
            unexpected: List[Any] = []

            def use(me: int) -> None:
                start.wait()
                try:
                    while True:
                        room = engine.client.open_sink(
                            engine.region, [me], label=1, key=new_key(), writers="127.0.0.1:9"
                        )
                        room.poll()
                        room.info()
                        room.abort()
                        room.wait_drained()
                        room.release()
                except kvfence.ClosedError:
                    pass
                except BaseException as error:
                    unexpected.append(error)

            threads = [threading.Thread(target=use, args=(me,)) for me in range(THREADS)]
            for thread in threads:
                thread.start()
            start.wait()
            threading.Event().wait(0.005 * turn)  # at another place each time
            engine.client.close(harness.ENDED_S)
            for thread in threads:
                thread.join()
            self.assertEqual(unexpected, [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
