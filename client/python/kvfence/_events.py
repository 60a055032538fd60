"""asyncio waits on the client's event descriptor.

Whoever takes an event takes it from everybody, so all that wait stand in one table, whichever loop they are
of, and whoever takes events wakes those concerned. A waiter stands in the table first, takes events until
there are none (which arms the descriptor), and asks its question once more; a change before that is seen by
the question, a later one makes the descriptor readable.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from ._codes import KvfenceError
from ._handle import Handle, closed_error
from ._library import EventStruct, lib

EVENTS_PER_CALL = 64
ROUNDS_PER_TAKE = 64  # then other things of the loop have their turn
# The descriptor says what a daemon stores. The end of a whole daemon is stored by nobody: kvf_events_next asks
# the kernel for it, at most this often, as kvf_wait does. It frees nothing; what it finds is a proof.
LOOK_S = 0.1

Question = Callable[[], Optional[Any]]  # None: not yet


class _Waiter:
    __slots__ = ("loop", "future", "question")

    def __init__(self, loop: asyncio.AbstractEventLoop, question: Question) -> None:
        self.loop = loop
        self.future: "asyncio.Future[Any]" = loop.create_future()
        self.question = question

    def look(self) -> None:
        """In the waiter's own loop."""
        if self.future.done():
            return
        try:
            answer = self.question()
        except KvfenceError as error:
            self.future.set_exception(error)
            return
        if answer is not None:
            self.future.set_result(answer)

    def fail(self, error: KvfenceError) -> None:
        """With an exception of its own: each of several waiters adds its own trace."""
        if not self.future.done():
            self.future.set_exception(type(error)(*error.args))


def _running_loop() -> Optional[asyncio.AbstractEventLoop]:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class _Watch:
    """A loop's reader of the descriptor, there while somebody waits in that loop."""

    def __init__(self, events: "Events", loop: asyncio.AbstractEventLoop, fd: int) -> None:
        self.loop = loop
        self.count = 0
        self._events = events
        # A copy of its own: the client's may be closed, and its number be another's, before this loop
        # hears of it.
        self._fd = os.dup(fd)
        loop.add_reader(self._fd, self._ready)
        self._timer = loop.call_later(LOOK_S, self._look)

    def _ready(self) -> None:
        if not self._events.take():
            self.loop.call_soon(self._ready)

    def _look(self) -> None:
        self._events.take()
        self._timer = self.loop.call_later(LOOK_S, self._look)

    def end(self) -> None:
        """In its loop, or after that was closed."""
        self._timer.cancel()
        if not self.loop.is_closed():
            self.loop.remove_reader(self._fd)
        os.close(self._fd)


class Events:
    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._lock = threading.RLock()
        self._waiters: Dict[int, List[_Waiter]] = {}
        self._watches: Dict[asyncio.AbstractEventLoop, _Watch] = {}
        self._buffer = (EventStruct * EVENTS_PER_CALL)()
        handle.on_fork = self.after_fork

    async def wait(self, room: int, question: Question) -> Any:
        """Until the question has an answer. Cancelled, it changes nothing but its own waiting."""
        answer = question()
        if answer is not None:
            return answer
        waiter = _Waiter(asyncio.get_running_loop(), question)
        self._add(room, waiter)
        try:
            if not self.take():
                waiter.loop.call_soon(self.take)
            waiter.look()
            return await waiter.future
        finally:
            self._remove(room, waiter)

    def _add(self, room: int, waiter: _Waiter) -> None:
        with self._lock:
            watch = self._watches.get(waiter.loop)
            if watch is None:
                self._end_closed_loops()
                fd = self._handle.need(lib.kvf_event_fd)
                watch = self._watches[waiter.loop] = _Watch(self, waiter.loop, fd)
            watch.count += 1
            self._waiters.setdefault(room, []).append(waiter)

    def _remove(self, room: int, waiter: _Waiter) -> None:
        with self._lock:
            waiters = self._waiters.get(room, [])
            if waiter in waiters:
                waiters.remove(waiter)
            if not waiters:
                self._waiters.pop(room, None)
            watch = self._watches.get(waiter.loop)
            if watch is not None:
                watch.count -= 1
                if watch.count == 0:
                    del self._watches[waiter.loop]
                    watch.end()

    def _end_closed_loops(self) -> None:
        """Of loops that were closed with waiters in them: nobody will remove those."""
        for loop in [loop for loop in self._watches if loop.is_closed()]:
            self._watches.pop(loop).end()
            for room in list(self._waiters):
                left = [waiter for waiter in self._waiters[room] if waiter.loop is not loop]
                self._waiters[room] = left
                if not left:
                    del self._waiters[room]

    def take(self) -> bool:
        """Takes the events there are and wakes whom they concern. False: there may be more."""
        with self._lock:
            for _ in range(ROUNDS_PER_TAKE):
                count = self._next(EVENTS_PER_CALL)
                if count is None:
                    return True
                rooms, is_all, is_over = count
                self._wake(None if is_all else rooms)
                if is_over:
                    return True
            return False

    def _next(self, most: int) -> Optional[Tuple[Set[int], bool, bool]]:
        """Rooms, whether it may be any room, whether it was the last. None: no more events ever."""
        try:
            count = self._handle.call(lib.kvf_events_next, self._buffer, most)
        except KvfenceError:
            return None
        if count == -errno.EOVERFLOW:
            return set(), True, False
        if count < 0:
            self.fail_all(self._handle.refusal(lib.kvf_events_next, count))
            return None
        return {int(self._buffer[i].room) for i in range(count)}, False, count == 0

    def poll(self, most: int) -> Tuple[List[Tuple[int, int, bool]], bool]:
        """For an engine's own loop: events as they come, and whether some were lost. Those who wait here
        are woken all the same."""
        with self._lock:
            size = min(most, EVENTS_PER_CALL)
            count = self._handle.call(lib.kvf_events_next, self._buffer, size)
            if count == -errno.EOVERFLOW:
                self._wake(None)
                return [], True
            if count < 0:
                raise self._handle.refusal(lib.kvf_events_next, count)
            taken = [(int(e.room), int(e.state), e.is_drained != 0) for e in self._buffer[:count]]
            self._wake({room for room, _, _ in taken})
            return taken, False

    def _wake(self, rooms: Optional[Set[int]]) -> None:
        concerned = (
            list(self._waiters) if rooms is None else [r for r in rooms if r in self._waiters]
        )
        here = _running_loop()
        for room in concerned:
            for waiter in list(self._waiters[room]):
                if waiter.loop is here:
                    waiter.look()
                else:
                    self._tell(waiter, waiter.look)

    def _tell(self, waiter: _Waiter, what: Callable[..., None], *arguments: Any) -> None:
        try:
            waiter.loop.call_soon_threadsafe(what, *arguments)
        except RuntimeError:
            pass  # its loop was closed: nobody waits there any more

    def fail(self, room: int, error: KvfenceError) -> None:
        """The handle is dead: no event will speak of it again."""
        with self._lock:
            for waiter in list(self._waiters.get(room, [])):
                self._tell(waiter, waiter.fail, error)

    def fail_all(self, error: KvfenceError) -> None:
        with self._lock:
            for waiters in list(self._waiters.values()):
                for waiter in list(waiters):
                    self._tell(waiter, waiter.fail, error)

    def close(self) -> None:
        self.fail_all(closed_error("kvf_event_fd"))

    def after_fork(self) -> None:
        """The child has none of the loops' threads and none of the waiters."""
        self._lock = threading.RLock()
        self._waiters = {}
        self._watches = {}
