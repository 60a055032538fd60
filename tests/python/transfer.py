"""Bytes between two daemons and within one, lists of every kind, fan-in, fan-out, groups."""

from __future__ import annotations

import unittest
from array import array
from typing import Any, List

import harness
import kvfence
from harness import PAGE, Case, Engine, bytes_of, new_key
from kvfence import Code, Plane, Proof, State


class Transfer(Case):
    def send(self, source: Engine, sink: Engine, sent: Any, received: Any) -> None:
        """Pages `sent` of one engine arrive in `received` of the other, byte for byte."""
        key = new_key()
        numbers = [int(page) for page in sent]
        source.fill(numbers, key)
        with sink.client.open_sink(
            sink.region, received, label=7, key=key, writers=source.daemon.address
        ) as to, source.client.open_source(source.region, label=7, key=key) as of:
            of.submit(sent, last=True)
            self.assertIs(to.wait(harness.ENDED_S), State.SUCCESS)
            self.assertIs(to.proof(), Proof.LANDED)
            self.assertTrue(to.visible())
            self.assertIs(of.wait(harness.ENDED_S), State.SUCCESS)
            self.assertIs(of.proof(), Proof.SOURCE_IDLE)
            self.assertIsNone(to.error())
        for page, got in zip(numbers, [int(page) for page in received]):
            self.assertEqual(bytes(sink.region.page(got)), bytes_of(key, page))

    def test_pages_arrive_byte_for_byte_over_tcp(self) -> None:
        source, sink = self.pair()
        self.send(source, sink, [0, 1, 2, 9, 63], [3, 5, 7, 8, 40])

    def test_pages_arrive_byte_for_byte_between_engines_of_one_daemon(self) -> None:
        daemon = self.daemon("gpu0", "--transport", "local")
        self.send(self.engine(daemon), self.engine(daemon), [0, 1, 2, 9, 63], [3, 5, 7, 8, 40])

    def test_page_lists_of_every_kind_are_read_as_they_lie_there(self) -> None:
        source, sink = self.pair()
        numbers = [4, 2, 9]
        kinds: List[Any] = [
            numbers,
            tuple(numbers),
            range(4, 7),
            array("i", numbers),
            array("I", numbers),
            array("q", numbers),
            array("Q", numbers),
            memoryview(array("i", numbers)).toreadonly(),
            memoryview(array("i", [4, 0, 2, 0, 9, 0]))[::2],
        ]
        try:
            import numpy
        except ImportError:
            pass
        else:
            kinds += [numpy.array(numbers, dtype=t) for t in ("int32", "uint32", "int64", "uint64")]
            kinds += [numpy.array([4, 0, 2, 0, 9], dtype="int64")[::2]]
        for kind in kinds:
            with self.subTest(kind=repr(kind)):
                self.send(source, sink, kind, kind)

    def test_pieces_in_any_order_cover_the_grant(self) -> None:
        source, sink = self.pair()
        key = new_key()
        source.fill(list(range(6)), key)
        with sink.client.open_sink(
            sink.region, range(10, 16), label=1, key=key, writers=[source.daemon.address]
        ) as to, source.client.open_source(source.region, label=1, key=key) as of:
            of.submit([4, 5], start=4)
            of.submit([0], start=0)
            of.submit([1, 2, 3], start=1, last=True)
            self.assertIs(to.wait(harness.ENDED_S), State.SUCCESS)
            info = to.info()
            self.assertEqual((info.placed_bytes, info.total_bytes), (6 * PAGE, 6 * PAGE))
        for page in range(6):
            self.assertEqual(bytes(sink.region.page(10 + page)), bytes_of(key, page))

    def test_two_writers_fill_their_ranges_of_one_sink(self) -> None:
        first, sink = self.pair()
        second = self.engine(self.daemon("prefill2"))
        key = new_key()
        writers = [first.daemon.address, second.daemon.address]
        first.fill([0, 1], key)
        second.fill([5, 6, 7], key)
        with sink.client.open_sink(
            sink.region, range(5), label=1, key=key, writers=writers, ranges=[(0, 2), (2, 3)]
        ) as to:
            with first.client.open_source(first.region, label=1, key=key) as of:
                of.submit([0, 1], last=True)
                self.assertIs(of.wait(harness.ENDED_S), State.SUCCESS)
            self.assertIsNone(to.proof(), "with one writer of two still to come")
            with second.client.open_source(second.region, label=1, key=key) as of:
                of.submit([5, 6, 7], last=True)
                self.assertIs(of.wait(harness.ENDED_S), State.SUCCESS)
            self.assertIs(to.wait(harness.ENDED_S), State.SUCCESS)
        for got, page in enumerate([0, 1, 5, 6, 7]):
            self.assertEqual(bytes(sink.region.page(got)), bytes_of(key, page))

    def test_one_source_serves_two_sinks(self) -> None:
        source, sink = self.pair()
        other = self.engine(self.daemon("decode2"))
        key = new_key()
        source.fill([3, 4], key)
        with source.client.open_source(source.region, label=1, key=key, sinks=2) as of:
            rooms = [
                s.client.open_sink(
                    s.region, [8, 9], label=1, key=key, writers=source.daemon.address
                )
                for s in (sink, other)
            ]
            of.submit([3, 4], last=True)
            for room in rooms:
                self.assertIs(room.wait(harness.ENDED_S), State.SUCCESS)
                room.release()
        for engine in (sink, other):
            self.assertEqual(bytes(engine.region.page(8)), bytes_of(key, 3))
            self.assertEqual(bytes(engine.region.page(9)), bytes_of(key, 4))

    def test_auxiliary_slots_and_planes_go_with_the_pages(self) -> None:
        source, sink = self.pair()
        planes = [Plane(4096, off=0, stride=8192), Plane(4096, off=4096, stride=8192)]
        pools = [kvfence.Pool(16 * 8192, huge_pages=False) for _ in range(2)]
        regions = [
            engine.client.register(pool, planes=planes, page_count=16)
            for engine, pool in zip((source, sink), pools)
        ]
        key = new_key()
        for plane in range(2):
            regions[0].page(3, plane)[:] = bytes([0x50 + plane]) * 4096
        source.fill([1], key)
        # A room's aux slots have the geometry of their own region.
        with sink.client.open_sink(
            sink.region,
            [2],
            label=1,
            key=key,
            writers=source.daemon.address,
            aux_region=regions[1],
            aux_pages=[6],
        ) as to, source.client.open_source(
            source.region, label=1, key=key, aux_region=regions[0]
        ) as of:
            of.submit([1])
            of.submit([3], start=1, last=True, region=regions[0])
            self.assertIs(to.wait(harness.ENDED_S), State.SUCCESS)
            of.wait_drained(harness.ENDED_S)
        self.assertEqual(bytes(sink.region.page(2)), bytes_of(key, 1))
        for plane in range(2):
            self.assertEqual(bytes(regions[1].page(6, plane)), bytes([0x50 + plane]) * 4096)
        for region in regions:
            region.unregister()
        for pool in pools:
            pool.close()

    def test_when_one_rank_of_a_group_fails_the_others_end_with_it(self) -> None:
        source, sink = self.pair()
        members = [source.daemon.address, sink.daemon.address]
        key = new_key()
        with sink.client.open_sink(
            sink.region,
            [1],
            label=1,
            key=key,
            writers="127.0.0.1:9",
            group=sink.client.register_group(members, 1, group_id=5),
        ) as one, source.client.open_source(
            source.region,
            label=2,
            key=key,
            group=source.client.register_group(members, 0, group_id=5),
        ) as two:
            one.abort(77)
            self.assertIs(one.wait(harness.ENDED_S), State.FAILED)
            self.assertIs(two.wait(harness.ENDED_S), State.FAILED)
            self.assertEqual(one.info().reason, 77)
            error = two.error()
            assert error is not None
            self.assertEqual(error.code, Code.GROUP_CLOSED)
            self.assertIsInstance(error, kvfence.GroupError)

    def test_rooms_are_polled_together_where_their_numbers_lie(self) -> None:
        source, sink = self.pair()
        key = new_key()
        rooms = [
            sink.client.open_sink(
                sink.region, [page], label=page, key=key, writers=source.daemon.address
            )
            for page in range(8)
        ]
        handles = array("Q", [room.handle for room in rooms])
        states = array("i", [-1] * 9)
        self.assertEqual(sink.client.poll_many(handles, states), 0)
        rooms[3].abort()
        rooms[5].abort()
        harness.until(lambda: sink.client.poll_many(handles, states) == 2, "two rooms of eight end")
        self.assertEqual([i for i in range(8) if states[i] == State.FAILED], [3, 5])
        self.assertEqual(states[8], -1, "a place behind the rooms was written")
        rooms[3].release()
        sink.client.poll_many(handles, states)
        self.assertEqual(states[3], -Code.STALE_ROOM)
        for room in rooms:
            if room is not rooms[3]:
                room.abort()
                room.wait_drained(harness.ENDED_S)
                room.release()

    def test_an_engines_own_loop_takes_events(self) -> None:
        import select

        source, sink = self.pair()
        room = sink.client.open_sink(
            sink.region, [1], label=1, key=new_key(), writers=source.daemon.address
        )
        waiting = select.epoll()
        waiting.register(sink.client.fileno(), select.EPOLLIN)
        drained: List[int] = []
        room.abort()
        while not drained:
            events = sink.client.events()
            if events is None:
                drained += [room.handle] if room.proof() else []
            elif events:
                drained += [event.room for event in events if event.is_drained]
            else:
                self.assertTrue(
                    waiting.poll(harness.ENDED_S), "no event and no look of the descriptor"
                )
        self.assertEqual(drained, [room.handle])
        room.release()
        waiting.close()


if __name__ == "__main__":
    unittest.main(verbosity=2)
