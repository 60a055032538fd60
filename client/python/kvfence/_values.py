"""Arguments of engines on their way into the library: checked here, since C cannot see what was cut off."""

from __future__ import annotations

import ctypes
import errno
import operator
from array import array
from typing import TYPE_CHECKING, Any, Iterable, List, NamedTuple, Optional, Tuple, Union

from ._codes import Code, OptionError, PagesError
from ._library import UINT32_MAX, UINT64_MAX, name_of, sentence_of

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

    #: Page indices or handles: a buffer of 32- or 64-bit integers (array, numpy), or any integers.
    Integers = Union[ReadableBuffer, Iterable[int]]
    Writable = WriteableBuffer
else:
    Integers = Any
    Writable = Any


def option_error(text: str) -> OptionError:
    """An argument that the library would never see as it was given."""
    return OptionError(errno.EINVAL, name_of(errno.EINVAL), text, "kvfence")


def page_range_error() -> PagesError:
    code = int(Code.PAGE_RANGE)
    return PagesError(code, name_of(code), sentence_of(code), "kvfence")


def unsigned(what: str, value: int, most: int) -> int:
    number = operator.index(value)  # TypeError for what is no integer
    if not 0 <= number <= most:
        raise option_error(f"{what} is {number}: 0 to {most} are allowed")
    return number


def u32(what: str, value: int) -> int:
    return unsigned(what, value, UINT32_MAX)


def u64(what: str, value: int) -> int:
    return unsigned(what, value, UINT64_MAX)


def text(what: str, value: Optional[str]) -> Optional[bytes]:
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"{what} is a str, not {type(value).__name__}")
    encoded = value.encode("utf-8", "surrogateescape")
    if b"\0" in encoded:
        raise option_error(f"{what} has a zero byte in it")
    return encoded


def texts(what: str, values: Iterable[str]) -> "ctypes.Array[ctypes.c_char_p]":
    if isinstance(values, str):
        values = [values]
    encoded: List[Optional[bytes]] = []
    for value in values:
        if value is None:
            raise TypeError(f"{what} has None in it")
        encoded.append(text(what, value))
    return (ctypes.c_char_p * len(encoded))(*encoded)


def milliseconds(what: str, seconds: float) -> int:
    """Rounded up, so that a short wait is a wait."""
    if not seconds >= 0:  # also for what is not a number
        raise option_error(f"{what} is {seconds!r} seconds: 0 and more are allowed")
    return int(min(seconds * 1000.0, float(UINT32_MAX - 1)) + 0.999999)


class IntegerList(NamedTuple):
    """A list in memory that C may read while this tuple lives."""

    owner: Any
    address: int
    length: int
    item_bytes: int  # 4 or 8


def _from_iterable(what: str, values: Iterable[int]) -> "array[int]":
    try:
        return array("q", values)
    except OverflowError:
        raise page_range_error() from None
    except TypeError:
        raise TypeError(f"{what} is a buffer or an iterable of integers") from None


def _as_view(what: str, values: Integers) -> Tuple["memoryview", int]:
    try:
        view = memoryview(values)  # type: ignore[arg-type]
    except TypeError:
        return memoryview(_from_iterable(what, values)), 8  # type: ignore[arg-type]
    kind = view.format.lstrip("@=<")
    if view.ndim != 1 or view.itemsize not in (4, 8) or kind not in ("i", "I", "l", "L", "q", "Q"):
        raise TypeError(
            f"{what} is a list of 32- or 64-bit integers in this machine's order, not {view.ndim}"
            f" dimensions of format {view.format!r}"
        )
    if not view.c_contiguous:
        copied = array("q" if kind in ("l", "q") or view.itemsize == 4 else "Q", view.tolist())
        return memoryview(copied), 8
    return view, view.itemsize


def integers(what: str, values: Integers) -> IntegerList:
    """A buffer is passed as it lies there, without a copy; while the call runs it cannot be resized."""
    view, item_bytes = _as_view(what, values)
    if len(view) == 0:
        return IntegerList(None, 0, 0, item_bytes)
    kind = ctypes.c_uint32 if item_bytes == 4 else ctypes.c_uint64
    if view.readonly:
        owner: Any = (kind * len(view)).from_buffer_copy(view)
    else:
        owner = kind.from_buffer(view)
    return IntegerList(owner, ctypes.addressof(owner), len(view), item_bytes)


def integers32(what: str, values: Integers) -> IntegerList:
    """As integers(), for where the library takes no longer ones."""
    listed = integers(what, values)
    if listed.item_bytes == 4 or listed.length == 0:
        return listed
    longer = (ctypes.c_int64 * listed.length).from_address(listed.address)
    try:
        return integers(what, array("i", longer))
    except OverflowError:
        raise page_range_error() from None


def words(what: str, buffer: Any, item_bytes: int, is_written: bool) -> Tuple[Any, int]:
    """First element and length of a buffer that stays where it is."""
    view = memoryview(buffer)
    kind = view.format.lstrip("@=<")
    if (
        view.ndim != 1
        or not view.c_contiguous
        or view.itemsize != item_bytes
        or kind not in (("l", "L", "q", "Q") if item_bytes == 8 else ("i", "I", "l", "L"))
    ):
        raise TypeError(f"{what} is one array of {item_bytes * 8}-bit integers without gaps")
    if view.readonly and is_written:
        raise TypeError(f"{what} is written to, and this buffer is read-only")
    if len(view) == 0:
        return None, 0
    kinds = ctypes.c_uint64 if item_bytes == 8 else ctypes.c_int32
    if view.readonly:
        return (kinds * len(view)).from_buffer_copy(view), len(view)
    return kinds.from_buffer(view), len(view)
