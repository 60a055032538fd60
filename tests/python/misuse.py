"""What no engine should do: each is an exception with a sentence, and the interpreter lives on."""

from __future__ import annotations

import copy
import errno
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
import unittest
import warnings
from array import array
from typing import Any, Callable, Dict

import harness
import kvfence
from harness import PAGE, Case, Engine, new_key
from kvfence import Code, Kind, Plane, Pool, Room

NOBODY = "127.0.0.1:9"


def calls_of(engine: Engine, room: Room, lease: kvfence.Lease) -> Dict[str, Callable[[], Any]]:
    """Every call there is on something of a client."""
    client, region = engine.client, engine.region
    states = array("i", [0])
    return {
        "reattach": client.reattach,
        "check": client.check,
        "info": client.info,
        "register": lambda: client.register(engine.pool, page_bytes=PAGE),
        "open_sink": lambda: client.open_sink(region, [1], label=1, key=1, writers=NOBODY),
        "open_source": lambda: client.open_source(region, label=1, key=1),
        "poll_many": lambda: client.poll_many(array("Q", [room.handle]), states),
        "fileno": client.fileno,
        "events": client.events,
        "register_group": lambda: client.register_group([NOBODY], 0),
        "are_idle": lambda: region.are_idle([1]),
        "lender": lambda: region.lender(1),
        "unregister": region.unregister,
        "poll": room.poll,
        "proof": room.proof,
        "failed_early": room.failed_early,
        "visible": room.visible,
        "room.info": room.info,
        "wait": lambda: room.wait(1),
        "wait_drained": lambda: room.wait_drained(1),
        "submit": lambda: room.submit([1]),
        "abort": room.abort,
        "release": room.release,
        "lease": room.lease,
        "give_back": lease.give_back,
    }


class Misuse(Case):
    def room(self, engine: Engine, page: int = 1) -> Room:
        return engine.client.open_sink(
            engine.region, [page], label=1, key=new_key(), writers=NOBODY
        )

    def setUp(self) -> None:
        super().setUp()
        self.sink = self.engine(self.daemon("gpu0"))

    # ---- closed ---------------------------------------------------------------------------------------

    def test_after_a_close_every_call_says_so_and_a_second_close_does_nothing(self) -> None:
        room = self.room(self.sink)
        lease = room.lease()
        calls = calls_of(self.sink, room, lease)
        with self.assertRaises(kvfence.UndrainedError) as caught:
            self.sink.client.close(0.2)
        self.assertEqual(caught.exception.undrained, 1, "a lease was out")
        self.assertIsInstance(caught.exception, TimeoutError)
        for name, call in calls.items():
            with self.subTest(call=name), self.assertRaises(kvfence.ClosedError):
                call()
        self.sink.client.close()
        with self.assertRaises(kvfence.ClosedError), room:
            pass  # whose end cannot say that the page is idle
        # Nor can the daemon: the process that holds the lease lives.
        self.assertEqual(self.sink.daemon.stop(), 4)

    def test_a_block_whose_client_was_closed_with_all_rooms_proven_ends_normally(self) -> None:
        with self.room(self.sink):
            self.sink.client.close(harness.ENDED_S)
        self.assertTrue(self.sink.client.is_closed)

    def test_a_close_ends_the_waits_of_other_threads_and_frees_nothing_under_them(self) -> None:
        for _ in range(5):
            engine = self.engine(self.sink.daemon)
            room = self.room(engine)
            is_polling = threading.Event()
            ended = []

            def wait() -> None:
                with self.assertRaises(kvfence.ClosedError):
                    room.wait()
                ended.append("wait")

            def poll() -> None:
                with self.assertRaises(kvfence.ClosedError):
                    while True:
                        room.poll()
                        is_polling.set()
                ended.append("poll")

            threads = [threading.Thread(target=work) for work in (wait, wait, poll, poll)]
            for thread in threads:
                thread.start()
            is_polling.wait()
            engine.client.close(harness.ENDED_S)
            for thread in threads:
                thread.join()
            self.assertEqual(sorted(ended), ["poll", "poll", "wait", "wait"])

    def test_a_close_in_a_signal_handler_that_came_into_a_call_is_refused_and_harmless(
        self,
    ) -> None:
        room = self.room(self.sink)
        refused = []

        def handler(number: int, frame: Any) -> None:
            try:
                self.sink.client.close(0)
            except kvfence.KvfenceError as error:
                refused.append(error.code)

        before = signal.signal(signal.SIGALRM, handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
            deadline = time.monotonic() + harness.ENDED_S
            while not refused and time.monotonic() < deadline:
                room.info()
        except kvfence.ClosedError:
            pass  # it came between two calls, where it may
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        self.assertTrue(self.sink.client.is_closed or refused == [errno.EBUSY] * len(refused))
        if not self.sink.client.is_closed:
            room.abort()
            room.wait_drained(harness.ENDED_S)
            room.release()

    def test_an_interrupt_ends_a_wait_and_nothing_else(self) -> None:
        room = self.room(self.sink)
        threading.Timer(0.1, signal.raise_signal, [signal.SIGINT]).start()
        with self.assertRaises(KeyboardInterrupt):
            room.wait(harness.ENDED_S)
        self.assertFalse(self.sink.region.are_idle([1]))
        with room:
            pass
        self.assertTrue(self.sink.region.are_idle([1]))

    def test_a_client_that_is_dropped_warns_and_detaches(self) -> None:
        engine = Engine(self.sink.daemon, 4)
        region = engine.region.number
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del engine.client, engine.region
            gc.collect()
        self.assertTrue(any("kvfence.Client was dropped" in str(w.message) for w in caught), region)
        harness.until(lambda: self.registers(engine.pool), "its memory is free again")
        engine.pool.close()

    def registers(self, pool: Pool) -> bool:
        try:
            self.sink.client.register(pool, page_bytes=PAGE).unregister()
        except kvfence.RegionError:
            return False
        return True

    # ---- fork, and the interpreter's end -----------------------------------------------------------------

    def in_child(self, work: Callable[[], None]) -> None:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                work()
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)

    def test_in_a_forked_child_every_call_says_so_and_the_parent_goes_on(self) -> None:
        room = self.room(self.sink)
        lease = room.lease()
        calls = calls_of(self.sink, room, lease)
        waiting = threading.Thread(target=room.wait)
        waiting.start()  # is inside a call while we fork

        def child() -> None:
            for name, call in calls.items():
                with self.subTest(call=name), self.assertRaises(kvfence.ForkedError):
                    call()
            with self.assertRaises(kvfence.ForkedError), room:
                pass
            self.sink.region.page(1)[:8] = b"of child"  # shared memory is there, and no crash
            self.sink.client.close()
            self.sink.client.close()
            self.sink.pool.close()

        self.in_child(child)
        self.assertEqual(bytes(self.sink.region.page(1)[:8]), b"of child")
        self.sink.client.check()
        self.assertFalse(self.sink.region.are_idle([1]))
        # The child was given the lease's object and gave nothing back.
        self.assertEqual(room.info().leases_cpu, 1)
        lease.give_back()
        room.abort()
        waiting.join()
        room.wait_drained(harness.ENDED_S)
        room.release()

    def test_a_child_attaches_for_itself(self) -> None:
        def child() -> None:
            engine = Engine(self.sink.daemon, 4)
            with self.room(engine):
                pass
            engine.close()

        self.in_child(child)

    def end_with(self, lines: str) -> "subprocess.CompletedProcess[str]":
        """An interpreter with an open room that ends in some way."""
        script = f"""
import kvfence, threading, asyncio, os, sys, time
client = kvfence.Client(socket={self.sink.daemon.run_dir + "/gpu0.sock"!r}, client_name="ending")
pool = kvfence.Pool(16 * {PAGE}, huge_pages=False)
region = client.register(pool, page_bytes={PAGE})
room = client.open_sink(region, [1, 2], label=1, key={new_key()}, writers={NOBODY!r})
view = pool.memory
{lines}
"""
        ended = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-W", "ignore::ResourceWarning", "-c", script],
            capture_output=True,
            text=True,
            timeout=4 * harness.ENDED_S,
            check=False,
        )
        return ended

    def test_an_interpreter_ends_with_open_rooms_in_any_way_without_a_crash(self) -> None:
        for lines in (
            "",
            "threading.Thread(target=room.wait, daemon=True).start(); time.sleep(0.05)",
            "def spin():\n    while True: room.poll()\n"
            "threading.Thread(target=spin, daemon=True).start(); time.sleep(0.05)",
            "del room, region, client, pool",
            "import gc; cycle = [client, room]; cycle.append(cycle); del client, room, region, cycle; gc.collect()",
            "sys.exit(0)",
            "client.close(); pool.close()",
            "async def main():\n    asyncio.create_task(room.drained())\n    await asyncio.sleep(0.05)\n"
            "asyncio.run(main())",
            "lease = room.lease()",
        ):
            with self.subTest(lines=lines):
                ended = self.end_with(lines)
                self.assertEqual((ended.returncode, ended.stderr), (0, ""))
        # What they left is drained by the daemon: nothing of theirs is in the way of its end (tearDown).

    # ---- arguments ---------------------------------------------------------------------------------------

    def sink_with(self, **changed: Any) -> Room:
        arguments: Dict[str, Any] = {"label": 1, "key": new_key(), "writers": NOBODY}
        arguments.update(changed)
        pages = arguments.pop("pages", [1])
        region = arguments.pop("region", self.sink.region)
        return self.sink.client.open_sink(region, pages, **arguments)

    def test_page_lists_that_are_none_are_refused_by_their_code(self) -> None:
        count = self.sink.region.page_count
        for pages, code in (
            ([], Code.NO_PAGES),
            (array("i"), Code.NO_PAGES),
            ([count], Code.PAGE_RANGE),
            ([-1], Code.PAGE_RANGE),
            ([1 << 31], Code.PAGE_RANGE),
            ([1 << 63], Code.PAGE_RANGE),
            ([-(1 << 70)], Code.PAGE_RANGE),
            (array("Q", [(1 << 64) - 1]), Code.PAGE_RANGE),
            (array("I", [(1 << 32) - 1]), Code.PAGE_RANGE),
            ([1, 2, 1], Code.PAGE_TWICE),
        ):
            with self.subTest(pages=pages):
                error = self.assert_code(code, self.sink_with, pages=pages)
                self.assertIsInstance(error, kvfence.PagesError)
        for pages in (
            None,
            3,
            "12",
            b"1234",
            [1.5],
            ["1"],
            array("d", [1.0]),
            array("h", [1]),
            object(),
        ):
            with self.subTest(pages=pages), self.assertRaises(TypeError):
                self.sink_with(pages=pages)
        self.assert_code(Code.PAGE_RANGE, self.sink.region.are_idle, [count])
        self.assert_code(Code.PAGE_RANGE, self.sink.region.lender, count)
        self.assert_code(Code.PAGE_RANGE, self.sink.region.page, -1)
        self.assertTrue(self.sink.region.are_idle(range(count)))

    def test_a_page_that_is_lent_is_not_lent_again(self) -> None:
        with self.room(self.sink, 5) as room:
            error = self.assert_code(Code.PAGE_LENT, self.sink_with, pages=array("q", [4, 5]))
            self.assertIsInstance(error, kvfence.PagesError)
            self.assertEqual(self.sink.region.lender(5), room.handle)
            self.assertTrue(self.sink.region.are_idle([4]))
            self.assertEqual(self.sink.client.room(self.sink.region.lender(5)), room)

    def test_numbers_outside_of_their_range_are_refused_and_not_cut(self) -> None:
        for changed in (
            {"label": 1 << 64},
            {"label": -1},
            {"key": 1 << 64},
            {"ranges": [(0, 1 << 32)]},
        ):
            with self.subTest(changed=changed), self.assertRaises(kvfence.OptionError):
                self.sink_with(**changed)
        for changed in (
            {"label": 1.0},
            {"key": "1"},
            {"writers": 5},
            {"writers": [None]},
            {"region": 3},
        ):
            with self.subTest(changed=changed), self.assertRaises((TypeError, AttributeError)):
                self.sink_with(**changed)
        client, room = self.sink.client, self.room(self.sink)
        with room:
            for call in (
                lambda: room.abort(65536),
                lambda: room.abort(-1),
                lambda: client.open_source(self.sink.region, label=1, key=1, sinks=17),
                lambda: client.close(-1.0),
                lambda: client.close(float("nan")),
                lambda: client.reattach(-1),
                lambda: client.room(1 << 64),
                lambda: client.register(self.sink.pool),
                lambda: client.register(self.sink.pool, page_bytes=PAGE, off=-4096),
                lambda: client.register(0, page_bytes=PAGE),
                lambda: kvfence.Client(rooms=1 << 20),
                lambda: kvfence.Client(rooms=1 << 33),
                lambda: kvfence.Client("a\0b"),
                lambda: kvfence.Client("a/b"),
                lambda: kvfence.Pool(0),
                lambda: kvfence.Pool(4096, numa_node=1 << 20),
            ):
                with self.assertRaises(kvfence.OptionError):
                    call()
            with self.assertRaises(ValueError):
                room.wait(-1)
            with self.assertRaises(ValueError):
                room.lease(3)  # type: ignore[arg-type]

    def test_addresses_and_peers_that_are_none_are_refused_by_their_code(self) -> None:
        for changed, code in (
            ({"writers": []}, Code.PEER_COUNT),
            ({"writers": [NOBODY] * 17}, Code.PEER_COUNT),
            ({"writers": [NOBODY] * 2}, Code.PEER_COUNT),
            ({"writers": [NOBODY], "ranges": [(0, 1), (1, 1)]}, Code.PEER_COUNT),
            ({"writers": [NOBODY], "ranges": [(0, 2)]}, Code.PEER_COUNT),
            ({"writers": "nonsense"}, Code.PEER_UNRESOLVED),
        ):
            with self.subTest(changed=changed):
                error = self.assert_code(code, self.sink_with, **changed)
                self.assertIsInstance(error, kvfence.PeerError)

    def test_memory_that_does_not_fit_is_refused_by_its_code(self) -> None:
        client, pool = self.sink.client, self.sink.pool
        fd = os.memfd_create("unsealed")
        os.truncate(fd, PAGE)
        self.assert_code(Code.NO_SEAL, client.register, fd, page_bytes=4096, size=PAGE)
        self.assert_code(Code.NO_SEAL, Pool.adopt, fd, PAGE)
        os.close(fd)
        self.assert_code(errno.EBADF, Pool.adopt, fd, PAGE)
        self.assert_code(
            Code.MEMORY_RANGE, client.register, pool, page_bytes=PAGE, page_count=1 << 20
        )
        overlapping = [Plane(PAGE), Plane(PAGE, off=4096)]
        self.assert_code(Code.MEMORY_RANGE, client.register, pool, planes=overlapping, page_count=2)
        self.assert_code(Code.NO_DMABUF, client.register, pool, page_bytes=PAGE, device=True)
        self.sink.region.unregister()
        self.assert_code(Code.UNKNOWN_REGION, self.sink.region.unregister)
        self.assert_code(Code.UNKNOWN_REGION, self.sink_with)
        self.sink.region = client.register(pool, page_bytes=PAGE)

    def test_things_of_another_client_are_refused(self) -> None:
        other = self.engine(self.sink.daemon)
        self.assert_code(Code.UNKNOWN_REGION, self.sink_with, region=other.region)
        group = other.client.register_group([NOBODY, "127.0.0.1:10"], 0)
        self.assert_code(Code.UNKNOWN_GROUP, self.sink_with, group=group)
        with self.sink.client.open_source(self.sink.region, label=1, key=new_key()) as of:
            self.assert_code(Code.UNKNOWN_REGION, of.submit, [1], region=other.region)

    def test_roles_pieces_and_handles_that_are_wrong_are_refused_by_their_code(self) -> None:
        client = self.sink.client
        with self.room(self.sink) as to, client.open_source(
            self.sink.region, label=9, key=new_key()
        ) as of:
            self.assert_code(Code.ROLE, to.submit, [2])
            of.submit([2, 3], start=4)
            self.assert_code(Code.PIECE_OVERLAP, of.submit, [6], start=5)
            self.assertIsInstance(
                self.assert_code(Code.PAGE_LENT, of.submit, [1], start=0), kvfence.PagesError
            )
            of.submit([4, 5, 6, 7], last=True)
            self.assert_code(Code.PIECES_CLOSED, of.submit, [9], start=6)
            self.assertIsInstance(
                self.assert_code(Code.REGION_BUSY, self.sink.region.unregister), kvfence.RegionError
            )
        for handle in (0, 1, (1 << 64) - 1, to.handle + (1 << 40)):
            self.assert_code(Code.UNKNOWN_ROOM, client.room(handle).poll)
            self.assert_code(Code.UNKNOWN_ROOM, client.room(handle).abort)
        self.assert_code(Code.STALE_ROOM, to.poll)
        self.assert_code(Code.STALE_ROOM, to.release)
        with self.assertRaises(kvfence.OptionError):
            client.room(of.handle).submit([1])

    def test_arrays_of_poll_many_that_do_not_fit_are_refused(self) -> None:
        client = self.sink.client
        with self.room(self.sink) as room:
            rooms, states = array("Q", [room.handle] * 3), array("i", [7, 7, 7])
            for bad_rooms, bad_states in (
                (array("i", [1]), states),
                (rooms, array("q", [1, 2])),
                (rooms, array("f", [1, 2])),
                (rooms, bytes(8)),
                (rooms, memoryview(states).toreadonly()),
                ([room], states),
                (rooms, None),
                (memoryview(rooms)[::2], states),
            ):
                with self.assertRaises(TypeError):
                    client.poll_many(bad_rooms, bad_states)  # type: ignore[arg-type]
            with self.assertRaises(kvfence.OptionError):
                client.poll_many(rooms, array("i", [1]))
            self.assertEqual(client.poll_many(array("Q"), array("i")), 0)
            self.assertEqual(list(states), [7, 7, 7])

    def test_views_of_a_closed_pool_stay_good_and_new_ones_are_refused(self) -> None:
        pool = Pool(2 * PAGE, huge_pages=False)
        self.assertEqual((pool.size, pool.page_bytes), (2 * PAGE, 4096))
        region = self.sink.client.register(pool, page_bytes=PAGE)
        view = region.page(1)
        view[:4] = b"good"
        region.unregister()
        pool.close()
        pool.close()
        gc.collect()
        self.assertEqual(bytes(view[:4]), b"good")
        for call in (lambda: pool.memory, pool.fileno, lambda: region.page(1)):
            with self.assertRaises(ValueError):
                call()
        with self.assertRaises(ValueError):
            self.sink.client.register(pool, page_bytes=PAGE)

    def test_too_many_rooms_and_leases_are_told_by_their_code(self) -> None:
        engine = self.engine(self.sink.daemon, rooms=4)
        rooms = [self.room(engine, page) for page in range(4)]
        self.assertIsInstance(
            self.assert_code(Code.ROOMS_FULL, self.room, engine, 5), kvfence.RoomError
        )
        leases = [rooms[0].lease(Kind.GPU) for _ in range(127)]
        self.assert_code(errno.EOVERFLOW, rooms[0].lease, Kind.GPU)
        for lease in leases:
            lease.give_back()
        for room in rooms:
            with room:
                pass

    def test_exceptions_travel_between_processes_and_clients_do_not(self) -> None:
        error = self.assert_code(Code.NO_PAGES, self.sink_with, pages=[])
        again = pickle.loads(pickle.dumps(error))
        self.assertEqual((type(again), str(again)), (type(error), str(error)))
        undrained = kvfence.UndrainedError(1, "a", "b", "c", 3)
        self.assertEqual(pickle.loads(pickle.dumps(undrained)).undrained, 3)
        with self.room(self.sink) as room:
            for thing in (self.sink.client, room, self.sink.region, self.sink.pool):
                with self.assertRaises((TypeError, ValueError)):
                    pickle.dumps(thing)
            twin = copy.copy(self.sink.client)
        self.sink.client.close(harness.ENDED_S)
        self.assertTrue(twin.is_closed)
        twin.close()


if __name__ == "__main__":
    unittest.main(verbosity=2)
