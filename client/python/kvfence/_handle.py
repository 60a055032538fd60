"""One attachment's pointer, and who is inside a call with it.

C frees the handle at detach and must not be inside a call then. So each call that lets other threads run
puts a token of its own into a table first and looks then whether a close has begun; a close says so first
and looks at the table then. One of the two sees the other, and neither needs a lock. Calls that let nobody
run in between read the pointer within the call itself: after a close they find NULL, which C refuses.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
import time
import weakref
from typing import Any, Callable, Dict, Optional

from ._codes import BusyError, ClosedError, Code, ForkedError, KvfenceError
from ._library import error_of, lib, name_of, sentence_of

_living: "weakref.WeakSet[Handle]" = weakref.WeakSet()


class Handle:
    """Not for engines. Any thread, signal handlers too."""

    def __init__(self, pointer: ctypes.c_void_p) -> None:
        self.pointer = pointer  # read by every call, NULL once detached
        self.undrained: Optional[int] = None  # rooms at detach; None before its answer
        self.is_forked = False
        self.on_fork: Optional[Callable[[], None]] = None
        self._is_closing = False
        self._is_detached = False
        self._inside: Dict[object, int] = {}  # token of a call, its thread
        self._left = threading.Condition(threading.RLock())
        self._closer = threading.RLock()  # one close at a time
        _living.add(self)

    @property
    def is_closed(self) -> bool:
        return self._is_closing or self._is_detached

    def call(self, function: Any, *arguments: Any) -> int:
        """A call during which other threads run: its answer, whatever that is."""
        token = object()
        try:
            self._inside[token] = threading.get_ident()
            if self.is_closed:
                raise closed_error(function.__name__)
            return int(function(self.pointer, *arguments))
        finally:
            self._inside.pop(token, None)
            if self._is_closing:
                with self._left:
                    self._left.notify_all()

    def need(self, function: Any, *arguments: Any) -> int:
        """The same, but a refusal is an exception."""
        answer = self.call(function, *arguments)
        if answer < 0:
            raise self.refusal(function, answer)
        return answer

    def refusal(self, function: Any, code: int) -> KvfenceError:
        """What a negative answer means. NULL was refused because it was closed meanwhile."""
        if code == -errno.EINVAL and self.is_closed:
            return closed_error(function.__name__)
        return error_of(code, function.__name__)

    def detach(self, timeout_ms: int) -> int:
        """Frees the handle: how many rooms were not proven. The second time it only answers so again.

        Waits for calls of other threads, up to timeout_ms, and frees nothing under one.
        """
        with self._closer:
            if self._is_detached:
                return self.undrained or 0
            if threading.get_ident() in list(self._inside.values()):
                raise _busy_error("a call of this very thread (close() in a signal handler?)")
            deadline = time.monotonic() + timeout_ms / 1000.0
            self._is_closing = True
            with self._left:
                if not self._left.wait_for(lambda: not self._inside, timeout_ms / 1000.0):
                    self._is_closing = False
                    raise _busy_error(f"{len(self._inside)} calls of other threads")
            return self._detach(max(0, int((deadline - time.monotonic()) * 1000)))

    def _detach(self, timeout_ms: int) -> int:
        if self._is_detached:  # by a signal handler, while this one waited
            return self.undrained or 0
        pointer, undrained = self.pointer.value, ctypes.c_uint32(0)
        self._is_detached = True
        self.pointer.value = None
        # Whatever it answers, the handle is freed; what it could not prove it counts.
        lib.kvf_detach(pointer, timeout_ms, undrained)
        self.undrained = int(undrained.value)
        self._is_closing = False
        return self.undrained

    def after_fork(self) -> None:
        """In the child, which has one thread and none of the calls that were under way."""
        self.is_forked = True
        self._inside.clear()
        self._is_closing = False
        self._left = threading.Condition(threading.RLock())
        self._closer = threading.RLock()
        if self.on_fork is not None:
            self.on_fork()


def closed_error(call: str) -> ClosedError:
    return ClosedError(errno.EBADF, name_of(errno.EBADF), "the client was closed", call)


def forked_error(call: str) -> ForkedError:
    code = int(Code.FORKED)
    return ForkedError(code, name_of(code), sentence_of(code), call)


def _busy_error(who: str) -> BusyError:
    return BusyError(
        errno.EBUSY,
        name_of(errno.EBUSY),
        f"still under way: {who}; the client stays attached, close it again later",
        "kvf_detach",
    )


def _after_fork_in_child() -> None:
    for handle in list(_living):
        handle.after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
