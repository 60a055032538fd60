"""kvfence: move KV pages between workers and know when they may be reused.

::

    with kvfence.Client("decode", timeout=5) as client, kvfence.Pool(1 << 20) as pool:
        region = client.register(pool, page_bytes=65536)
        with client.open_sink(region, [3, 5, 7], label=17, key=request, writers="10.0.0.7:7000") as room:
            state = await room.ended()      # or room.wait(2.0), or room.poll() in the scheduler's loop
        # Only here are the pages ours again: the block's end waits for the proof, not for a time.

Pages given to a room belong to it until ``poll`` answers SUCCESS or FAILED, or ``proof`` answers a proof.

Units: seconds as numbers where a call waits, bytes, and page indices; what has another unit says so in its
name. Threads: every method, any thread. Errors: KvfenceError and one class per family of codes; an answer
that only means "not yet" is None. Refused calls change nothing.

The library is looked for in $KVFENCE_LIBRARY, beside this package, then as libkvfence.so.0 where the
system's libraries are; one that does not fit is refused at import (LibraryError).
"""

from ._client import Client, DaemonInfo, Event, Group
from ._codes import (
    BusyError,
    ClosedError,
    Code,
    DaemonError,
    ForkedError,
    GroupError,
    KvfenceError,
    LeaseError,
    LibraryError,
    OptionError,
    PagesError,
    PeerError,
    QuarantinedError,
    RegionError,
    RoomError,
    TryAgain,
    UndrainedError,
    WaitTimeout,
)
from ._library import PATH as library_path
from ._library import layout_version, sentence_of, version
from ._memory import Plane, Pool, Region
from ._rooms import Kind, Lease, Phase, Proof, Room, RoomInfo, State

__version__ = "0.1.0"

__all__ = [
    "BusyError",
    "Client",
    "ClosedError",
    "Code",
    "DaemonError",
    "DaemonInfo",
    "Event",
    "ForkedError",
    "Group",
    "GroupError",
    "Kind",
    "KvfenceError",
    "Lease",
    "LeaseError",
    "LibraryError",
    "OptionError",
    "PagesError",
    "PeerError",
    "Phase",
    "Plane",
    "Pool",
    "Proof",
    "QuarantinedError",
    "Region",
    "RegionError",
    "Room",
    "RoomError",
    "RoomInfo",
    "State",
    "TryAgain",
    "UndrainedError",
    "WaitTimeout",
    "__version__",
    "layout_version",
    "library_path",
    "sentence_of",
    "version",
]
