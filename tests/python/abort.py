"""Aborts in flight: pages go to their next owner on proof, and no byte of the old one follows."""

from __future__ import annotations

import threading
import unittest
from typing import List, Tuple

import harness
import kvfence
from harness import PAGE, Case, Engine, new_key
from kvfence import Code, Kind, Phase, Proof, Room, State

PAGES = 64
# Slow enough that a room of 4 MiB is in flight for a second; `posted`: what was posted lands, as with RDMA.
IN_FLIGHT = ("--lane-rate", "4", "--tcp-placement", "posted")
CANARY = b"\xc3" * PAGE


class Abort(Case):
    def in_flight(self, source: Engine, sink: Engine) -> Tuple[Room, Room]:
        """A sink and a source room whose bytes are on their way."""
        key = new_key()
        to = sink.client.open_sink(
            sink.region, range(PAGES), label=1, key=key, writers=source.daemon.address
        )
        of = source.client.open_source(source.region, label=1, key=key)
        of.submit(range(PAGES), last=True)
        harness.until(lambda: to.info().placed_bytes > 8 * PAGE, "bytes land")
        return to, of

    def put_canaries(self, engine: Engine) -> None:
        for page in range(PAGES):
            engine.region.page(page)[:] = CANARY

    def hit_canaries(self, engine: Engine) -> List[int]:
        return [page for page in range(PAGES) if engine.region.page(page) != CANARY]

    def test_pages_aborted_in_flight_are_reused_on_proof_and_stay_their_new_owners(self) -> None:
        source, sink = self.pair(*IN_FLIGHT)
        for _ in range(3):
            to, of = self.in_flight(source, sink)
            self.put_canaries(sink)
            to.abort()
            self.assertIsNot(to.poll(), State.SUCCESS)
            proof = to.wait_drained(harness.ENDED_S)
            self.assertIn(proof, (Proof.PEER_DRAINED, Proof.FENCED, Proof.REVOKED))
            # The control: who had reused them at the abort would have been hit.
            self.assertTrue(self.hit_canaries(sink), "nothing landed after the abort")
            self.assertIs(to.poll(), State.FAILED)
            self.assertFalse(to.visible())
            self.assertTrue(sink.region.are_idle(range(PAGES)))
            self.put_canaries(sink)
            to.release()
            self.assertIs(of.wait(harness.ENDED_S), State.FAILED)
            self.assertIs(of.proof(), Proof.SOURCE_IDLE)
            of.release()
            self.assertEqual(self.hit_canaries(sink), [])

    def test_failed_is_told_only_with_proof(self) -> None:
        source, sink = self.pair(*IN_FLIGHT)
        to, of = self.in_flight(source, sink)
        to.abort(4711)
        states = [to.poll()]
        while states[-1] is not State.FAILED:
            states.append(to.poll())
        self.assertIsNotNone(to.proof())
        self.assertEqual(set(states), {State.TRANSFERRING, State.FAILED})
        self.assertEqual(to.info().reason, 4711)
        self.assertIn("4711", to.info().reason_text)
        error = to.error()
        assert error is not None
        self.assertEqual(error.code, Code.ABORTED)
        self.assertIs(of.wait(harness.ENDED_S), State.FAILED)
        for room in (to, of):
            room.abort()  # legal after the end
            self.assertIs(room.poll(), State.FAILED)
            room.release()

    def test_the_end_of_a_with_block_waits_for_the_proof(self) -> None:
        source, sink = self.pair(*IN_FLIGHT)
        to, of = self.in_flight(source, sink)
        with self.assertRaises(ZeroDivisionError):
            with to:
                self.assertFalse(sink.region.are_idle([0]))
                self.put_canaries(sink)
                raise ZeroDivisionError
        self.assertTrue(sink.region.are_idle(range(PAGES)))
        self.put_canaries(sink)
        with of:
            pass
        self.assertTrue(source.region.are_idle(range(PAGES)))
        self.assertEqual(self.hit_canaries(sink), [])
        self.assert_code(Code.STALE_ROOM, to.poll)

    def test_the_end_of_a_with_block_waits_for_a_lease_of_another_thread(self) -> None:
        _, sink = self.pair()
        order: List[str] = []
        is_leaving = threading.Event()

        def give_back(lease: kvfence.Lease, room: Room) -> None:
            is_leaving.wait()
            # The block's end has aborted the room, and can only wait for this lease.
            harness.until(lambda: room.info().phase is Phase.CLOSING, "the room closes")
            order.append("given back")
            lease.give_back()

        room = sink.client.open_sink(
            sink.region, [1], label=1, key=new_key(), writers="127.0.0.1:9"
        )
        lease = room.lease(Kind.GPU)
        thread = threading.Thread(target=give_back, args=(lease, room))
        thread.start()
        with room:
            is_leaving.set()
        order.append("left")
        thread.join()
        self.assertEqual(order, ["given back", "left"])

    def test_a_release_before_the_proof_leaves_the_pages_lent(self) -> None:
        source, sink = self.pair(*IN_FLIGHT)
        to, of = self.in_flight(source, sink)
        lease = to.lease()
        handle = to.handle
        to.release()
        self.assertEqual(sink.region.first_lent([PAGES - 1, 0]), 0)
        self.assertEqual(sink.region.lender(5), handle)
        of.wait_drained(harness.ENDED_S)
        self.assertFalse(sink.region.are_idle([0]), "a lease is out")
        lease.give_back()
        harness.until(lambda: sink.region.are_idle(range(PAGES)), "the pages become idle")
        self.assertIsNone(sink.region.lender(5))
        of.release()

    def test_a_block_that_released_before_the_proof_does_not_end_as_if_there_were_one(self) -> None:
        source, sink = self.pair(*IN_FLIGHT)
        to, of = self.in_flight(source, sink)
        with self.assertRaises(kvfence.RoomError):
            with to:
                to.release()
        harness.until(lambda: sink.region.are_idle(range(PAGES)), "the pages become idle")
        with of:
            pass

    def test_a_lease_of_a_device_stays_out_when_its_block_fails(self) -> None:
        _, sink = self.pair()
        room = sink.client.open_sink(
            sink.region, [1], label=1, key=new_key(), writers="127.0.0.1:9"
        )
        for kind, left in ((Kind.CPU, 0), (Kind.GPU, 1), (Kind.DIRECT_IO, 1)):
            with self.assertRaises(ZeroDivisionError) as caught:
                with room.lease(kind) as lease:
                    raise ZeroDivisionError
            info = room.info()
            out = (info.leases_cpu, info.leases_gpu, info.leases_direct_io)[kind]
            self.assertEqual(out, left, kind)
            self.assertEqual(lease.is_out, bool(left))
            if left:
                self.assertIn("still out", caught.exception.__notes__[0])
                room.abort()
                with self.assertRaises(kvfence.WaitTimeout) as waited:
                    room.wait_drained(0.05)
                self.assertIn(
                    f"1 leases of kind {kind.name.lower().replace('_', '-')}", str(waited.exception)
                )
                lease.give_back()
                room.wait_drained(harness.ENDED_S)
                room.release()
                room = sink.client.open_sink(
                    sink.region, [1], label=1, key=new_key(), writers="127.0.0.1:9"
                )
        self.assert_code(2, lease.give_back)
        room.abort()
        room.wait_drained(harness.ENDED_S)
        self.assert_code(Code.LEASE_CLOSED, room.lease)
        room.release()


if __name__ == "__main__":
    unittest.main(verbosity=2)
