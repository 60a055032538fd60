"""asyncio: tasks that wait for rooms on the client's event descriptor."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import unittest
from typing import Any, Coroutine, List

import harness
import kvfence
from kvfence import _events
from harness import Case, Engine, bytes_of, new_key
from kvfence import Code, Proof, Room, State

ROOMS = 64


def run(work: Coroutine[Any, Any, None]) -> None:
    """In a loop of its own, and not for ever."""

    async def limited() -> None:
        async with asyncio.timeout(2 * harness.ENDED_S):
            await work

    asyncio.run(limited())


def sink_of_nobody(engine: Engine, page: int) -> Room:
    """A room whose writer is never there."""
    return engine.client.open_sink(
        engine.region, [page], label=page, key=new_key(), writers="127.0.0.1:9"
    )


class Waiting(Case):
    def setUp(self) -> None:
        super().setUp()
        # Whoever waits is woken by the descriptor, or these tests do not end.
        self.look_after_daemon_every(3600.0)

    def look_after_daemon_every(self, seconds: float) -> None:
        self.addCleanup(setattr, _events, "LOOK_S", _events.LOOK_S)
        _events.LOOK_S = seconds

    def test_sixty_four_rooms_are_waited_for_at_once(self) -> None:
        source, sink = self.pair()
        seed = new_key()
        source.fill(list(range(ROOMS)), seed)

        async def receive(page: int) -> None:
            async with sink.client.open_sink(
                sink.region, [page], label=page, key=seed ^ page, writers=source.daemon.address
            ) as room:
                self.assertIs(await room.ended(), State.SUCCESS)
                self.assertIs(await room.drained(), Proof.LANDED)
                self.assertEqual(bytes(sink.region.page(page)), bytes_of(seed, page))

        async def send(page: int) -> None:
            async with source.client.open_source(
                source.region, label=page, key=seed ^ page
            ) as room:
                room.submit([page], last=True)
                self.assertIs(await room.drained(), Proof.SOURCE_IDLE)

        async def all_of_them() -> None:
            await asyncio.gather(*[side(page) for page in range(ROOMS) for side in (receive, send)])

        run(all_of_them())

    def test_tasks_outlive_lost_events(self) -> None:
        """Two places for events and 64 rooms that end together."""
        daemon = self.daemon("gpu0")
        sink = self.engine(daemon, event_slots=2)

        async def end_together() -> None:
            rooms = [sink_of_nobody(sink, page) for page in range(ROOMS)]
            waits = [asyncio.create_task(room.drained()) for room in rooms]
            await asyncio.sleep(0)
            for room in rooms:
                room.abort()
            await asyncio.gather(*waits)
            for room in rooms:
                self.assertIs(room.poll(), State.FAILED)
                room.release()

        run(end_together())

    def test_a_task_that_gives_up_changes_nothing(self) -> None:
        daemon = self.daemon("gpu0")
        sink = self.engine(daemon)
        room = sink_of_nobody(sink, 3)

        async def give_up() -> None:
            with self.assertRaises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await room.drained()
            self.assertIs(room.poll(), State.BOOTSTRAPPING)
            self.assertFalse(sink.region.are_idle([3]))
            task = asyncio.create_task(room.ended())
            await asyncio.sleep(0)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            self.assertFalse(sink.region.are_idle([3]))
            room.abort()
            await room.drained()
            room.release()

        run(give_up())

    def test_a_task_cancelled_in_an_async_with_block_still_waits_for_the_proof(self) -> None:
        daemon = self.daemon("gpu0")
        sink = self.engine(daemon)
        inside = asyncio.Event()

        async def hold() -> None:
            async with sink_of_nobody(sink, 3):
                inside.set()
                await asyncio.sleep(1000)

        async def cancel() -> None:
            task = asyncio.create_task(hold())
            await inside.wait()
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            self.assertTrue(sink.region.are_idle([3]))

        run(cancel())

    def test_a_released_room_and_a_closed_client_leave_no_task_waiting(self) -> None:
        daemon = self.daemon("gpu0")
        sink = self.engine(daemon)

        async def end_under_them() -> None:
            rooms = [sink_of_nobody(sink, page) for page in range(2)]
            waits = [asyncio.create_task(room.drained()) for room in rooms for _ in range(2)]
            await asyncio.sleep(0.01)
            rooms[0].release()
            for wait in waits[:2]:
                with self.assertRaises(kvfence.RoomError) as stale:
                    await wait
                self.assertEqual(stale.exception.code, Code.STALE_ROOM)
            await asyncio.to_thread(sink.client.close, harness.ENDED_S)
            for wait in waits[2:]:
                with self.assertRaises(kvfence.ClosedError):
                    await wait

        run(end_under_them())

    def test_nothing_is_left_in_the_loop_or_open_when_nobody_waits(self) -> None:
        daemon = self.daemon("gpu0")
        sink = self.engine(daemon)

        async def wait_once() -> None:
            room = sink_of_nobody(sink, 1)
            asyncio.get_running_loop().call_later(0.02, room.abort)
            await room.drained()
            room.release()

        async def count() -> None:
            await wait_once()
            before = os.listdir("/proc/self/fd")
            for _ in range(10):
                await wait_once()
            self.assertEqual(len(os.listdir("/proc/self/fd")), len(before))

        run(count())
        self.assertEqual(sink.client._events._watches, {})
        self.assertEqual(sink.client._events._waiters, {})

    def test_loops_of_two_threads_wait_with_one_client(self) -> None:
        daemon = self.daemon("gpu0")
        sink = self.engine(daemon)
        ready = threading.Barrier(3)
        rooms = [sink_of_nobody(sink, page) for page in range(16)]
        proofs: List[Proof] = []

        async def wait_for(mine: List[Room]) -> None:
            waits = [asyncio.create_task(room.drained()) for room in mine]
            await asyncio.sleep(0.01)
            ready.wait()
            proofs.extend(await asyncio.gather(*waits))

        threads = [threading.Thread(target=run, args=(wait_for(rooms[i::2]),)) for i in range(2)]
        for thread in threads:
            thread.start()
        ready.wait()
        for room in rooms:
            room.abort()
        for thread in threads:
            thread.join()
        self.assertEqual(len(proofs), 16)
        for room in rooms:
            room.release()

    def test_an_engines_own_events_do_not_rob_the_tasks(self) -> None:
        daemon = self.daemon("gpu0")
        sink = self.engine(daemon)

        async def rob() -> None:
            rooms = [sink_of_nobody(sink, page) for page in range(8)]
            waits = [asyncio.create_task(room.drained()) for room in rooms]
            await asyncio.sleep(0.01)
            for room in rooms:
                room.abort()
            while not all(room.proof() for room in rooms) or sink.client.events():
                pass  # takes them all before the loop can
            await asyncio.gather(*waits)
            for room in rooms:
                room.release()

        run(rob())

    def test_the_worker_killed_under_sixty_four_tasks_is_a_proof_for_each(self) -> None:
        self.look_after_daemon_every(0.1)  # nobody is left to write to the descriptor
        daemon = self.daemon("gpu0")
        sink = self.engine(daemon)

        async def killed() -> None:
            rooms = [sink_of_nobody(sink, page) for page in range(ROOMS)]
            waits = [asyncio.create_task(room.drained()) for room in rooms]
            await asyncio.sleep(0.01)
            daemon.kill_worker()
            for room, proof in zip(rooms, await asyncio.gather(*waits)):
                self.assertIn(proof, (Proof.WORKER_GONE, Proof.NEVER_POSTED))
                error = room.error()
                assert error is not None
                self.assertEqual(error.code, Code.WORKER_GONE)
                room.release()

        run(killed())

    def test_a_daemon_killed_under_tasks_is_a_proof_for_each_and_the_loop_goes_on(self) -> None:
        self.look_after_daemon_every(0.1)  # nobody is left to write to the descriptor
        daemon = self.daemon("gpu0")
        sink = self.engine(daemon)
        turns = 0

        async def turn() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0.001)

        async def killed() -> None:
            rooms = [sink_of_nobody(sink, page) for page in range(8)]
            waits = [asyncio.create_task(room.drained()) for room in rooms]
            turning = asyncio.create_task(turn())
            await asyncio.sleep(0.01)
            begin, before = time.monotonic(), turns
            await asyncio.to_thread(daemon.kill)
            for proof in await asyncio.gather(*waits):
                self.assertIs(proof, Proof.WORKER_GONE)
            self.assertGreater(turns, before)
            self.assertLess(time.monotonic() - begin, harness.ENDED_S)
            turning.cancel()
            for room in rooms:
                room.release()

        run(killed())
        self.assert_code(Code.DAEMON_GONE, sink.client.check)


if __name__ == "__main__":
    unittest.main(verbosity=2)
