"""Rooms: one request's transfer on one worker, its state, its proof, its leases."""

from __future__ import annotations

import ctypes
import errno
import time
from dataclasses import dataclass
from enum import IntEnum, unique
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, List, Optional, Type

from ._codes import Code, KvfenceError, QuarantinedError, WaitTimeout
from ._handle import forked_error
from ._library import PieceOpts, RoomInfoStruct, error_of, lib, name_of, quick, sentence_of
from ._memory import Region
from ._values import Integers, integers, option_error, u32, u64, unsigned

if TYPE_CHECKING:
    from ._client import Client

# A call into C is not interrupted by Ctrl-C, so long waits come back this often. Nothing is asked then
# that the wait itself does not ask.
_SLICE_MS = 200
_LAST_PIECE = 1
_REASON_MAX = 65535


@unique
class State(IntEnum):
    """SGLang's KVPoll numbers, so that engines may MIN-reduce them over ranks."""

    FAILED = 0  # drained, after an abort or a failure
    BOOTSTRAPPING = 1  # sink: not every writer has accepted; source: no grant yet
    WAITING_FOR_INPUT = 2  # sink: accepted; source: granted, nothing submitted
    TRANSFERRING = 3  # moving, or closing and not yet proven
    SUCCESS = 4  # drained, everything there and visible


@unique
class Proof(IntEnum):
    """How a room was proven idle, strongest first."""

    NEVER_POSTED = 1
    LANDED = 2
    SOURCE_IDLE = 3
    PEER_DRAINED = 4
    REVOKED = 5
    FENCED = 6
    WORKER_GONE = 7
    ENGINE_GONE = 8
    OPERATOR = 9  # no proof: an operator's explicit word


@unique
class Phase(IntEnum):
    FREE = 0
    OPEN = 1
    CLOSING = 2
    FENCING = 3
    QUARANTINED = 4
    DRAINED = 5


@unique
class Kind(IntEnum):
    """Of an external lease. It decides what the death of the engine proves."""

    CPU = 0
    GPU = 1
    DIRECT_IO = 2


_STATES = tuple(State)
_ENDED = (State.FAILED, State.SUCCESS)


@dataclass(frozen=True)
class RoomInfo:
    """Everything a room's lines say, for logs and people."""

    state: State
    phase: Phase
    proof: Optional[Proof]  # None while not drained
    reason: int  # 0, a Code, or the engine's own abort reason
    detail: int  # errno, or the peer's reason
    placed_bytes: int  # sink: landed so far; source: accepted by the lanes so far
    total_bytes: int  # 0: not known yet
    close_to_drained_ns: int
    total_pages: int  # source: length of the grant's page list, 0: no grant yet
    unproven: int  # (grant, lane) pairs still without proof
    leases_cpu: int  # external leases out
    leases_gpu: int
    leases_direct_io: int
    group_waits: int  # bit per rank of its group that has not settled since the failure

    @property
    def reason_text(self) -> str:
        """The sentence for the reason; "" if there is none."""
        if self.reason == 0:
            return ""
        if self.reason in _CODES:
            return sentence_of(self.reason)
        return f"the engine aborted the room with its own reason {self.reason}"

    def waits_for(self) -> str:
        """What a room that is not drained still waits for."""
        parts: List[str] = []
        if self.unproven:
            parts.append(f"{self.unproven} grants on lanes")
        for count, kind in (
            (self.leases_cpu, "cpu"),
            (self.leases_gpu, "gpu"),
            (self.leases_direct_io, "direct-io"),
        ):
            if count:
                parts.append(f"{count} leases of kind {kind}")
        if self.group_waits:
            ranks = [str(rank) for rank in range(64) if self.group_waits >> rank & 1]
            parts.append(f"ranks {', '.join(ranks)} of its group")
        return ", ".join(parts) if parts else f"its end, in phase {self.phase.name}"


_CODES = frozenset(int(code) for code in Code)


class Lease:
    """Work of the engine or another library that may touch the room's pages. Room.lease takes it.

    The room is not drained while it is out. Give it back when the work can touch the pages no more, once;
    dropping the object gives nothing back. A ``with`` gives it back at its end, but one of kind gpu or
    direct-io whose block ended by an exception stays out, since the device may be at work still.
    """

    def __init__(self, room: "Room", kind: Kind) -> None:
        self.room = room
        self.kind = kind
        self._out: List[Kind] = []  # taken from, which one thread alone can do
        room._need(lib.kvf_lease, int(kind))
        self._out.append(kind)

    @property
    def is_out(self) -> bool:
        """False once it was given back."""
        return bool(self._out)

    def give_back(self) -> None:
        """Works after the room's release too. Raises LeaseError the second time. No system call but one
        eventfd write, if the room waited for it and the daemon sleeps."""
        try:
            kind = self._out.pop()
        except IndexError:
            raise error_of(errno.ENOENT, "kvf_lease_give_back") from None
        self.room._need(lib.kvf_lease_give_back, int(kind))

    def __enter__(self) -> "Lease":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if not self.is_out:
            return
        if error is not None and self.kind is not Kind.CPU:
            error.add_note(
                f"a lease of kind {self.kind.name.lower()} is still out: give_back() once the device is idle"
            )
            return
        self.give_back()

    def __repr__(self) -> str:
        return f"<kvfence.Lease {self.kind.name}, {'out' if self.is_out else 'given back'}>"


class Room:
    """One incarnation of one room. Client.open_sink and Client.open_source make it.

    Its pages belong to it until poll() answers SUCCESS or FAILED, or proof() answers a proof. Failure may
    be told early by failed_early(); release may not.

    ``with`` (and ``async with``): at its end the room is aborted if it has not ended, its proof is waited
    for however long that takes, and then it is released. So whoever gets past the end normally owns the
    pages again; where there is no proof the end raises, or waits, and frees nothing.

    An object is only a name for a handle (an int): dropping it ends nothing, Client.room makes another.
    Any thread.
    """

    __slots__ = ("client", "handle", "region", "_core", "_pointer", "_was_drained", "__weakref__")

    def __init__(self, client: "Client", handle: int, region: Optional[Region] = None) -> None:
        self.client = client
        self.handle = u64("handle", handle)
        self.region = region  # None for one made by Client.room
        self._core = client._handle
        self._pointer = client._handle.pointer
        self._was_drained: Optional[bool] = None  # when this object released it

    # ---- questions: no lock, no system call --------------------------------------------------------

    def poll(self) -> State:
        """The state. FAILED and SUCCESS only with proof; on SUCCESS every byte is visible. Raises
        RoomError (released, or no such room), ForkedError, ClosedError."""
        state = quick.kvf_poll(self._pointer, self.handle)
        if state < 0:
            raise self._core.refusal(quick.kvf_poll, state)
        return _STATES[int(state)]

    def proof(self) -> Optional[Proof]:
        """The proof, or None while something may still touch the pages. On a proof the caller owns the
        pages again."""
        answer = quick.kvf_drained(self._pointer, self.handle)
        if answer > 0:
            return Proof(answer)
        if answer == -errno.EAGAIN:
            return None
        raise self._core.refusal(quick.kvf_drained, answer)

    def failed_early(self) -> bool:
        """True once the room's failure is certain, maybe long before it is drained."""
        return self._yes(quick.kvf_failed_early)

    def visible(self) -> bool:
        """True if a sink's bytes are all there and safe to read. Apart from drained (safe to reuse)."""
        return self._yes(quick.kvf_visible)

    def _yes(self, function: Any) -> bool:
        answer = function(self._pointer, self.handle)
        if answer < 0:
            raise self._core.refusal(function, answer)
        return bool(answer == 1)

    def info(self) -> RoomInfo:
        """Everything its lines say, as of now."""
        shown = RoomInfoStruct(size_bytes=ctypes.sizeof(RoomInfoStruct))
        self._need(lib.kvf_room_info, shown)
        return RoomInfo(
            state=State(shown.state),
            phase=Phase(shown.phase),
            proof=Proof(shown.proof) if shown.proof else None,
            **{name: int(getattr(shown, name)) for name in _NUMBERS},
        )

    def error(self) -> Optional[KvfenceError]:
        """Why it failed, as an exception of the reason's family; None if it has not failed."""
        if self.poll() is not State.FAILED:
            return None
        reason = self.info().reason or int(Code.ABORTED)
        if reason in _CODES:
            return error_of(reason, "room")
        error = error_of(Code.ABORTED, "room")
        error.add_note(f"with the engine's own reason {reason}")
        return error

    # ---- waiting ------------------------------------------------------------------------------------

    def wait(self, timeout: Optional[float] = None) -> State:
        """Sleeps until FAILED or SUCCESS. ``timeout`` in seconds, None: however long it takes. Notices a
        dead daemon. Raises WaitTimeout, which changes nothing but the waiter's view; QuarantinedError.
        """
        state: State = self._sleep(self._ended, timeout)
        return state

    def wait_drained(self, timeout: Optional[float] = None) -> Proof:
        """Sleeps until the pages are proven idle. As wait(), but does not wait for other ranks."""
        proof: Proof = self._sleep(self._drained, timeout)
        return proof

    async def ended(self) -> State:
        """wait() for asyncio: sleeps on the client's event descriptor. Any number of tasks and loops."""
        state: State = await self.client._events.wait(self.handle, self._ended)
        return state

    async def drained(self) -> Proof:
        """wait_drained() for asyncio. For a limit use asyncio.timeout: it frees nothing either."""
        proof: Proof = await self.client._events.wait(self.handle, self._drained)
        return proof

    def _ended(self) -> Optional[State]:
        state = self.poll()
        if state in _ENDED:
            return state
        self._check_quarantine()
        return None

    def _drained(self) -> Optional[Proof]:
        proof = self.proof()
        if proof is None:
            self._check_quarantine()
        return proof

    def _check_quarantine(self) -> None:
        if self.failed_early() and self.info().phase is Phase.QUARANTINED:
            error = error_of(Code.QUARANTINED, "room")
            assert isinstance(error, QuarantinedError)
            raise error

    def _sleep(self, question: Callable[[], Any], timeout: Optional[float]) -> Any:
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"a timeout of {timeout!r} seconds")
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            answer = question()
            if answer is not None:
                return answer
            left_ms = _SLICE_MS
            if deadline is not None:
                left_ms = min(left_ms, int((deadline - time.monotonic()) * 1000 + 0.999))
                if left_ms <= 0:
                    raise self._timeout()
            state = self._core.call(lib.kvf_wait, self.handle, left_ms)
            if state < 0 and state != -errno.ETIMEDOUT:
                raise self._core.refusal(lib.kvf_wait, state)

    def _timeout(self) -> WaitTimeout:
        code = errno.ETIMEDOUT
        text = f"{sentence_of(code)}; the room waits for {self.info().waits_for()}"
        return WaitTimeout(code, name_of(code), text, "kvf_wait")

    # ---- what changes it -----------------------------------------------------------------------------

    def submit(
        self,
        pages: Integers,
        *,
        start: int = 0,
        last: bool = False,
        region: Optional[Region] = None,
    ) -> None:
        """Source rooms: lends ``pages`` and sends them to positions [start, start + len(pages)) of every
        grant. Legal from open on, before the grant too. ``last``: the pieces now cover the grant, or the
        room fails with PIECE_HOLE. ``region``: the one of the open, or its aux region.

        A refused piece changes nothing. Raises TryAgain (ring or arena full), PagesError, RoomError,
        DaemonError (none serves at the moment)."""
        listed = integers("pages", pages)
        of = region if region is not None else self.region
        if of is None:
            raise option_error("a room made from its handle needs the region of a piece")
        self.client._same(of)
        piece = PieceOpts(
            size_bytes=ctypes.sizeof(PieceOpts),
            region=of.number,
            page_count=listed.length,
            start=u32("start", start),
            flags=_LAST_PIECE if last else 0,
        )
        if listed.item_bytes == 4:
            piece.pages = listed.address
        else:
            piece.pages64 = listed.address
        self._need(lib.kvf_submit, piece)

    def abort(self, reason: int = 0) -> None:
        """Asks the daemon to end the room. Legal at any time, twice, and after the end. ``reason``: the
        engine's own, 1 to 65535, shown again by info(). Returns at once; the pages stay lent until
        drained."""
        self._need(lib.kvf_abort, unsigned("reason", reason, _REASON_MAX))

    def release(self) -> None:
        """Drops the engine's interest. Legal at any time: an unfinished room is aborted first, and its
        pages stay lent in the ledger until drained (Region.are_idle). The handle is dead afterwards.
        """
        was_drained = self.proof() is not None
        self._need(lib.kvf_release)
        self._was_drained = was_drained
        self.client._events.fail(self.handle, error_of(Code.STALE_ROOM, "kvf_release"))

    def lease(self, kind: Kind = Kind.CPU) -> Lease:
        """Takes an external lease. Raises LeaseError (the room is closing: do not start the work; or all
        511 of kind cpu, 127 of the others, are out). No system call."""
        return Lease(self, Kind(kind))

    def _need(self, function: Any, *arguments: Any) -> int:
        return self._core.need(function, self.handle, *arguments)

    # ---- with ------------------------------------------------------------------------------------------

    def __enter__(self) -> "Room":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if self._begin_exit():
            self.wait_drained()
            self.release()

    async def __aenter__(self) -> "Room":
        return self

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if self._begin_exit():
            await self.drained()
            self.release()

    def _begin_exit(self) -> bool:
        """False: the pages are known to be idle, since the block released it after its proof, or detached
        the client with nothing undrained."""
        if self._core.is_forked:
            raise forked_error("room")
        if self._was_drained or self._core.undrained == 0:
            return False
        if self.proof() is None:
            self.abort()
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Room) and self._core is other._core and self.handle == other.handle

    def __hash__(self) -> int:
        return hash((id(self._core), self.handle))

    def __repr__(self) -> str:
        return f"<kvfence.Room {self.handle:#x}>"


_NUMBERS = (
    "reason",
    "detail",
    "placed_bytes",
    "total_bytes",
    "close_to_drained_ns",
    "total_pages",
    "unproven",
    "leases_cpu",
    "leases_gpu",
    "leases_direct_io",
    "group_waits",
)
