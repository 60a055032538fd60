"""Daemons and workers that end: outcomes with proof, exceptions with codes, and work after it."""

from __future__ import annotations

import errno
import os
import unittest

import harness
import kvfence
from harness import Case, Engine, bytes_of, new_key
from kvfence import Code, Phase, Proof, Room, State

SLOW = ("--lane-rate", "4")


class Death(Case):
    def transfer(self, source: Engine, sink: Engine) -> None:
        key = new_key()
        source.fill([1], key)
        with sink.client.open_sink(
            sink.region, [2], label=1, key=key, writers=source.daemon.address
        ) as to, source.client.open_source(source.region, label=1, key=key) as of:
            of.submit([1], last=True)
            self.assertIs(to.wait(harness.ENDED_S), State.SUCCESS)
        self.assertEqual(bytes(sink.region.page(2)), bytes_of(key, 1))

    def in_flight(self, source: Engine, sink: Engine) -> "tuple[Room, Room]":
        key = new_key()
        to = sink.client.open_sink(
            sink.region, range(64), label=1, key=key, writers=source.daemon.address
        )
        of = source.client.open_source(source.region, label=1, key=key)
        of.submit(range(64), last=True)
        harness.until(lambda: to.info().placed_bytes > 0, "bytes land")
        return to, of

    def test_a_killed_daemon_is_a_proof_and_the_next_one_is_worked_with(self) -> None:
        source, sink = self.pair(*SLOW)
        to, of = self.in_flight(source, sink)
        sink.daemon.kill()
        with to:
            self.assertIs(to.wait(harness.ENDED_S), State.FAILED)
            self.assertIs(to.proof(), Proof.WORKER_GONE)
            error = to.error()
            assert error is not None
            self.assertIsInstance(error, kvfence.DaemonError)
            self.assertEqual(error.code, Code.WORKER_GONE)
        self.assertTrue(sink.region.are_idle(range(64)))
        self.assert_code(Code.DAEMON_GONE, sink.client.check)
        opening = lambda: sink.client.open_sink(
            sink.region, [1], label=1, key=new_key(), writers=source.daemon.address
        )
        self.assertIsInstance(self.assert_code(Code.WORKER_GONE, opening), kvfence.DaemonError)
        self.assertIsInstance(
            self.assert_code(Code.NO_DAEMON, sink.client.reattach), kvfence.DaemonError
        )
        with of:
            self.assertIs(of.wait(harness.ENDED_S), State.FAILED)
            self.assertIsInstance(of.error(), kvfence.PeerError)
        sink.daemon.start()
        sink.client.reattach(harness.READY_S)
        sink.client.check()
        self.transfer(source, sink)

    def test_a_killed_worker_is_a_proof_and_the_same_client_goes_on_with_the_next(self) -> None:
        source, sink = self.pair(*SLOW)
        to, of = self.in_flight(source, sink)
        epoch = sink.client.info().worker_epoch
        sink.daemon.kill_worker()
        with to, of:
            self.assertIs(to.wait(harness.ENDED_S), State.FAILED)
            self.assertIs(to.proof(), Proof.WORKER_GONE)
            error = to.error()
            assert error is not None
            self.assertEqual(error.code, Code.WORKER_GONE)
        harness.until(
            lambda: sink.client.info().worker_epoch not in (0, epoch), "the next worker serves"
        )
        sink.client.check()
        self.transfer(source, sink)

    def test_a_lease_that_is_out_when_the_daemon_is_killed_still_holds_its_pages(self) -> None:
        source, sink = self.pair()
        room = sink.client.open_sink(
            sink.region, [4], label=1, key=new_key(), writers=source.daemon.address
        )
        lease = room.lease()
        sink.daemon.kill()
        with self.assertRaises(kvfence.WaitTimeout):
            room.wait_drained(1.0)
        self.assertIsNone(room.proof())
        self.assertFalse(sink.region.are_idle([4]))
        lease.give_back()
        self.assertIs(room.wait_drained(harness.ENDED_S), Proof.WORKER_GONE)
        room.release()

    def test_a_killed_peer_fails_the_room_with_proof(self) -> None:
        source, sink = self.pair(*SLOW)
        to, of = self.in_flight(source, sink)
        source.daemon.kill()
        with to:
            self.assertIs(to.wait(harness.ENDED_S), State.FAILED)
            self.assertIsInstance(to.error(), kvfence.PeerError)
        with of:
            self.assertIs(of.wait_drained(harness.ENDED_S), Proof.WORKER_GONE)

    def test_a_stopping_daemon_takes_no_more_rooms_and_ends_those_it_has(self) -> None:
        source, sink = self.pair(*SLOW, "--grace-ms", "300")
        to, of = self.in_flight(source, sink)
        assert sink.daemon.process is not None
        sink.daemon.process.terminate()

        def refusal() -> int:
            try:
                sink.client.check()
            except kvfence.DaemonError as error:
                return error.code
            return 0

        self.assertEqual(harness.until(refusal, "it says that it stops"), errno.ESHUTDOWN)
        self.assert_code(
            errno.ESHUTDOWN,
            sink.client.open_sink,
            sink.region,
            [1],
            label=1,
            key=new_key(),
            writers=source.daemon.address,
        )
        with to, of:
            self.assertIs(to.wait(harness.ENDED_S), State.FAILED)
            self.assertIs(of.wait(harness.ENDED_S), State.FAILED)
        self.assertEqual(sink.daemon._wait(), 4, "rooms had to be fenced")

    def test_a_daemon_that_never_was_there_is_told_at_once(self) -> None:
        for name in ("nobody", None):
            os.environ["KVFENCE_RUN_DIR"] = self.run_dir
            try:
                error = self.assert_code(Code.NO_DAEMON, kvfence.Client, name)
            finally:
                del os.environ["KVFENCE_RUN_DIR"]
            self.assertIn("start kvfenced", str(error))

    def test_the_daemons_own_sentence_is_in_the_notes_of_a_refused_registration(self) -> None:
        daemon = self.daemon("gpu0")
        first, second = self.engine(daemon), self.engine(daemon)
        error = self.assert_code(
            Code.MEMORY_REGISTERED, second.client.register, first.pool, page_bytes=harness.PAGE
        )
        self.assertIn("the daemon says:", error.__notes__[0])

    def test_a_closing_room_says_its_phase_and_what_it_waits_for(self) -> None:
        daemon = self.daemon("gpu0")
        sink = self.engine(daemon)
        room = sink.client.open_sink(
            sink.region, [1], label=1, key=new_key(), writers="127.0.0.1:9"
        )
        with room.lease():
            room.abort()
            harness.until(lambda: room.info().phase is Phase.CLOSING, "it closes")
            self.assertEqual(room.info().waits_for(), "1 leases of kind cpu")
            self.assertTrue(room.failed_early())
        room.wait(harness.ENDED_S)
        room.release()


if __name__ == "__main__":
    unittest.main(verbosity=2)
