#!/usr/bin/env python3
"""A prefill and a decode engine in one program: pages are taken, lent, sent, aborted, and reused on proof.

usage: engine.py PREFILL_ADDRESS [REQUESTS]

Beside two daemons named "prefill" (it listens at PREFILL_ADDRESS) and "decode". There are fewer pages than
the requests need together, so pages of ended requests, aborted ones too, go to the next at once.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Deque, List

import kvfence

PAGE_BYTES = 65536
PAGES = 24  # of each engine
PAGES_PER_REQUEST = 6


@dataclass
class Request:
    number: int
    # Unique per request and attempt, equal on both sides; the label may come again.
    key: int = field(default_factory=lambda: secrets.randbits(64))

    @property
    def is_cancelled(self) -> bool:
        return self.number % 4 == 3  # its user goes away

    def kv(self, position: int) -> bytes:
        return (self.key ^ position).to_bytes(8, "little") * (PAGE_BYTES // 8)


class Engine:
    """Memory in pages, and an allocator that asks the ledger before it hands one out."""

    def __init__(self, name: str) -> None:
        self.client = kvfence.Client(name, timeout=5)
        self.pool = kvfence.Pool(PAGES * PAGE_BYTES)
        self.region = self.client.register(self.pool, page_bytes=PAGE_BYTES, page_count=PAGES)
        self.free: Deque[int] = deque(range(PAGES))
        self.places = asyncio.Semaphore(PAGES // PAGES_PER_REQUEST)
        self.taken = 0

    async def take(self) -> List[int]:
        await self.places.acquire()
        pages = [self.free.popleft() for _ in range(PAGES_PER_REQUEST)]
        assert self.region.are_idle(pages), "a page was given back while it was lent"
        self.taken += len(pages)
        return pages

    def give_back(self, pages: List[int]) -> None:
        self.free.extend(pages)
        self.places.release()

    def close(self) -> None:
        self.client.close()
        self.pool.close()


async def prefill(engine: Engine, request: Request) -> None:
    pages = await engine.take()
    async with engine.client.open_source(
        engine.region, label=request.number % 16, key=request.key
    ) as room:
        for position, page in enumerate(pages):
            engine.region.page(page)[:] = request.kv(position)  # a layer's worth was computed
            try:
                room.submit([page], start=position, last=position == len(pages) - 1)
            except kvfence.KvfenceError:
                break  # the other side has aborted: nothing more to send
            await asyncio.sleep(0)
        await room.drained()
    engine.give_back(pages)  # the end of the block has waited for the proof


async def decode(engine: Engine, request: Request, writer: str) -> str:
    pages = await engine.take()
    async with engine.client.open_sink(
        engine.region, pages, label=request.number % 16, key=request.key, writers=writer
    ) as room:
        if request.is_cancelled:
            await asyncio.sleep(0.001 * (request.number % 7))
            room.abort()  # the request is over, its pages are not free yet
        state = await room.ended()  # a scheduler with a loop of its own calls room.poll()
        proof = await room.drained()
        if state is kvfence.State.SUCCESS:
            for position, page in enumerate(pages):
                assert engine.region.page(page) == request.kv(position), "not this request's bytes"
    engine.give_back(pages)
    return f"{state.name}, proof {proof.name}"


async def serve(writer: str, count: int) -> None:
    prefiller, decoder = Engine("prefill"), Engine("decode")
    requests = [Request(number) for number in range(count)]
    work = [decode(decoder, request, writer) for request in requests]
    sending = asyncio.gather(*[prefill(prefiller, request) for request in requests])
    for outcome, times in sorted(Counter(await asyncio.gather(*work)).items()):
        print(f"{times:4} requests: {outcome}")
    await sending
    print(
        f"{decoder.taken} pages were lent, of {PAGES}; every byte that arrived was its request's own"
    )
    prefiller.close()
    decoder.close()


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]) if len(sys.argv) == 3 else 40))
