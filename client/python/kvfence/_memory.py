"""Memory whose pages rooms may name: pools, planes, regions."""

from __future__ import annotations

import ctypes
import mmap
import os
import warnings
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Optional, Sequence, Tuple, Type, Union

from ._codes import RegionError
from ._handle import Handle
from ._library import (
    PlaneStruct,
    PoolOpts,
    RegionOpts,
    error_of,
    lib,
    quick,
)
from ._values import (
    Integers,
    integers,
    milliseconds,
    option_error,
    page_range_error,
    u32,
    u64,
    unsigned,
)

if TYPE_CHECKING:
    from ._client import Client

_HOST, _DMABUF = 0, 1
_HUGE = {None: 0, True: 1, False: 2}
_REFUSAL_BYTES = 256


class Pool:
    """Memory that a daemon accepts: a memfd that cannot shrink, all of it reserved, mapped here.

    ``size`` bytes, rounded up to the page size used. ``numa_node`` None: anywhere, else it is bound there
    before its first touch. ``huge_pages`` None: 2 MiB pages if enough are free; True: require them; False:
    never. Any thread. Usable with ``with``.

    Raises RegionError (no memory, or no huge pages although required), OptionError.
    """

    def __init__(
        self, size: int, *, numa_node: Optional[int] = None, huge_pages: Optional[bool] = None
    ) -> None:
        opts = PoolOpts(
            size_bytes=ctypes.sizeof(PoolOpts),
            numa_node=-1 if numa_node is None else unsigned("numa_node", numa_node, (1 << 31) - 1),
            bytes=u64("size", size),
            huge_pages=_HUGE[huge_pages],
        )
        pointer = ctypes.c_void_p()
        answer = lib.kvf_pool_create(opts, pointer)
        if answer != 0:
            raise error_of(answer, "kvf_pool_create")
        self._take(pointer)

    @classmethod
    def adopt(cls, fd: int, size: int) -> "Pool":
        """Takes memory the engine made itself: a memfd with F_SEAL_SHRINK, its first ``size`` bytes. The
        descriptor is duplicated and stays the caller's. Raises RegionError (no seal, out of range).
        """
        pointer = ctypes.c_void_p()
        answer = lib.kvf_pool_adopt(unsigned("fd", fd, (1 << 31) - 1), u64("size", size), pointer)
        if answer != 0:
            raise error_of(answer, "kvf_pool_adopt")
        pool = cls.__new__(cls)
        pool._take(pointer)
        return pool

    def _take(self, pointer: ctypes.c_void_p) -> None:
        """Maps the memory once more, as an object that Python counts the users of: the library's own
        mapping would go away under a view. It goes to forked children, as any shared memory does.
        """
        self._map: Optional[mmap.mmap] = None
        self._fd = -1
        try:
            self._size = int(quick.kvf_pool_bytes(pointer))
            self._page_bytes = int(quick.kvf_pool_page_bytes(pointer))
            self._map = mmap.mmap(quick.kvf_pool_fd(pointer), self._size, mmap.MAP_SHARED)
            self._fd = os.dup(quick.kvf_pool_fd(pointer))
        finally:
            lib.kvf_pool_destroy(pointer)

    @property
    def memory(self) -> memoryview:
        """All of it, writable. A view keeps the memory mapped, also after close()."""
        return memoryview(self._mapped())

    @property
    def size(self) -> int:
        """Bytes."""
        return self._size

    @property
    def page_bytes(self) -> int:
        """Of the kernel's pages it consists of: 4096 or 2 MiB."""
        return self._page_bytes

    def fileno(self) -> int:
        """The memfd, owned by the pool."""
        self._mapped()
        return self._fd

    def _mapped(self) -> mmap.mmap:
        if self._map is None:
            raise ValueError("the pool was closed")
        return self._map

    def close(self) -> None:
        """Gives the memory back, once the last view of it is gone; the second time it does nothing.
        Regions that use it keep it alive in the daemon until they are unregistered."""
        mapped, self._map = self._map, None
        if mapped is None:
            return
        os.close(self._fd)
        self._fd = -1
        try:
            mapped.close()
        except BufferError:
            pass  # somebody looks at it; it goes with the last view

    def __enter__(self) -> "Pool":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_map", None) is not None:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=2)
            self.close()

    def __repr__(self) -> str:
        state = "closed" if self._map is None else f"fd={self._fd}"
        return f"<kvfence.Pool {self._size} bytes, {state}>"


@dataclass(frozen=True)
class Plane:
    """One layer's K or V buffer in a region: page p has ``page_bytes`` bytes from ``off`` + p *
    ``stride`` on. All in bytes, ``off`` from the start of the region's memory. ``stride`` 0: page_bytes.
    """

    page_bytes: int
    off: int = 0
    stride: int = 0

    def __post_init__(self) -> None:
        if self.stride == 0:
            object.__setattr__(self, "stride", self.page_bytes)


class Region:
    """Memory registered with the daemon. Client.register makes it. Any thread.

    Its pages are indices 0 .. page_count - 1; index p covers p's bytes in every plane. The ledger says
    which of them are lent: from the return of the call that lends until proof, through a restart of the
    daemon too.
    """

    def __init__(
        self,
        client: "Client",
        number: int,
        pool: Optional[Pool],
        off: int,
        page_count: int,
        planes: Tuple[Plane, ...],
    ) -> None:
        self.client = client
        self.number = number  # the library's handle
        self.page_count = page_count
        self.planes = planes
        self._handle: Handle = client._handle
        self._pool = pool
        self._off = off

    def page(self, index: int, plane: int = 0) -> memoryview:
        """The bytes of a page in one plane, writable. Only for regions in a Pool (else TypeError).

        Nobody keeps a caller from pages that are lent: ask the room first.
        """
        number = unsigned_page(index, self.page_count)
        if self._pool is None:
            raise TypeError("this region was registered by descriptor: map it yourself")
        of = self.planes[plane]
        start = self._off + of.off + number * of.stride
        return self._pool.memory[start : start + of.page_bytes]

    def are_idle(self, pages: Integers) -> bool:
        """True if none of these pages is lent to a room. An allocator asks this before it hands pages
        out, and so catches every release path that forgot to ask the room. On True the bytes that were
        placed are visible. No system call. Raises PagesError (no such page), RegionError."""
        return self.first_lent(pages) is None

    def first_lent(self, pages: Integers) -> Optional[int]:
        """The position in the list of the first page that is lent, or None if all are idle."""
        listed = integers("pages", pages)
        position = ctypes.c_size_t()
        function = lib.kvf_pages_are_idle if listed.item_bytes == 4 else lib.kvf_pages_are_idle64
        answer = self._handle.need(function, self.number, listed.address, listed.length, position)
        return None if answer == 1 else int(position.value)

    def lender(self, page: int) -> Optional[int]:
        """The handle of the sink room a page is lent to; 0 if it is lent for reading; None if idle."""
        room = ctypes.c_uint64()
        number = unsigned_page(page, self.page_count)
        answer = self._handle.call(lib.kvf_page_lender, self.number, number, room)
        if answer == _ENOENT:
            return None
        if answer != 0:
            raise self._handle.refusal(lib.kvf_page_lender, answer)
        return int(room.value)

    def unregister(self) -> None:
        """Ends the registration. Raises RegionError while a room still names a page of it, and the second
        time; DaemonError."""
        self._handle.need(lib.kvf_region_unregister, self.number)

    def __repr__(self) -> str:
        return f"<kvfence.Region {self.number}: {self.page_count} pages, {len(self.planes)} planes>"


_ENOENT = -2


def unsigned_page(index: int, page_count: int) -> int:
    number = int(index.__index__())
    if not 0 <= number < page_count:
        raise page_range_error()
    return number


def make_planes(
    planes: Optional[Sequence[Plane]],
    page_bytes: Optional[int],
    page_count: Optional[int],
    size: int,
) -> Tuple[Tuple[Plane, ...], int]:
    """Planes and number of pages; with page_bytes alone, one plane over all of the memory."""
    if (planes is None) == (page_bytes is None):
        raise option_error("a region has either planes or page_bytes")
    if planes is None and page_bytes is not None:
        if u64("page_bytes", page_bytes) == 0:
            raise option_error("page_bytes is 0")
        planes = [Plane(page_bytes)]
        page_count = size // page_bytes if page_count is None else page_count
    if page_count is None:
        raise option_error("a region with planes needs its page_count")
    return tuple(planes or ()), u64("page_count", page_count)


def register(
    client: "Client",
    memory: Union[Pool, int],
    planes: Optional[Sequence[Plane]],
    page_bytes: Optional[int],
    page_count: Optional[int],
    off: int,
    size: Optional[int],
    is_device: bool,
    timeout: float,
) -> Region:
    pool = memory if isinstance(memory, Pool) else None
    fd = unsigned("memory", memory.fileno() if isinstance(memory, Pool) else memory, (1 << 31) - 1)
    start = u64("off", off)
    if size is None:
        if pool is None:
            raise option_error("memory by descriptor needs its size")
        size = pool.size - start
    made, count = make_planes(planes, page_bytes, page_count, u64("size", size))
    described = (PlaneStruct * len(made))(
        *[
            PlaneStruct(u64("off", p.off), u64("stride", p.stride), u64("page_bytes", p.page_bytes))
            for p in made
        ]
    )
    opts = RegionOpts(
        size_bytes=ctypes.sizeof(RegionOpts),
        fd=fd,
        memory_off=start,
        memory_bytes=size,
        page_count=count,
        planes=described,
        plane_count=u32("planes", len(made)),
        timeout_ms=milliseconds("timeout", timeout),
        memory=_DMABUF if is_device else _HOST,
    )
    number = ctypes.c_uint32()
    answer = client._handle.call(lib.kvf_region_register, opts, number)
    if answer != 0:
        error = client._handle.refusal(lib.kvf_region_register, answer)
        said = _last_refusal(client)
        if said and isinstance(error, RegionError):
            error.add_note(f"the daemon says: {said}")
        raise error
    return Region(client, int(number.value), pool, start, count, made)


def _last_refusal(client: "Client") -> str:
    said = ctypes.create_string_buffer(_REFUSAL_BYTES)
    if client._handle.is_closed:
        return ""
    client._handle.call(lib.kvf_last_refusal, said, _REFUSAL_BYTES)
    return said.value.decode("utf-8", "replace")
