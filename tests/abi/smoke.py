"""The library through a foreign-function interface: functions and plain structs, nothing else needed."""
import ctypes
import errno
import sys

lib = ctypes.CDLL(sys.argv[1])


class AttachOpts(ctypes.Structure):
    _fields_ = [
        ("size_bytes", ctypes.c_uint32),
        ("timeout_ms", ctypes.c_uint32),
        ("socket_path", ctypes.c_char_p),
        ("daemon_name", ctypes.c_char_p),
        ("client_name", ctypes.c_char_p),
        ("rooms_max", ctypes.c_uint32),
        ("cmd_slots", ctypes.c_uint32),
        ("event_slots", ctypes.c_uint32),
        ("arena_bytes", ctypes.c_uint32),
        ("pad_", ctypes.c_uint32 * 4),
    ]


class PoolOpts(ctypes.Structure):
    _fields_ = [
        ("size_bytes", ctypes.c_uint32),
        ("numa_node", ctypes.c_int32),
        ("bytes", ctypes.c_uint64),
        ("huge_pages", ctypes.c_uint32),
        ("pad_", ctypes.c_uint32 * 5),
    ]


lib.kvf_version.restype = ctypes.c_char_p
lib.kvf_strerror.restype = ctypes.c_char_p
lib.kvf_code_name_of.restype = ctypes.c_char_p
lib.kvf_pool_addr.restype = ctypes.c_void_p
lib.kvf_pool_addr.argtypes = [ctypes.c_void_p]
lib.kvf_pool_bytes.restype = ctypes.c_uint64
lib.kvf_pool_bytes.argtypes = [ctypes.c_void_p]
lib.kvf_pool_destroy.argtypes = [ctypes.c_void_p]

assert lib.kvf_version().count(b".") == 2
client = ctypes.c_void_p()
opts = AttachOpts(size_bytes=ctypes.sizeof(AttachOpts), socket_path=b"/nowhere/at.all")
rc = lib.kvf_attach(ctypes.byref(opts), ctypes.byref(client))
assert lib.kvf_code_name_of(rc) == b"KVF_E_NO_DAEMON", lib.kvf_strerror(rc)
assert client.value is None
opts.rooms_max = 1 << 20
rc = lib.kvf_attach(ctypes.byref(opts), ctypes.byref(client))
assert lib.kvf_code_name_of(rc) == b"KVF_E_LIMIT_RANGE", lib.kvf_strerror(rc)
pool = ctypes.c_void_p()
opts = PoolOpts(size_bytes=ctypes.sizeof(PoolOpts), numa_node=-1, bytes=8192, huge_pages=2)
assert lib.kvf_pool_create(ctypes.byref(opts), ctypes.byref(pool)) == 0
size = lib.kvf_pool_bytes(pool)
ctypes.memset(lib.kvf_pool_addr(pool), 1, size)
lib.kvf_pool_destroy(pool)
assert lib.kvf_poll(None, ctypes.c_uint64(1)) == -errno.EINVAL
print("kvfence", lib.kvf_version().decode(), "through ctypes:", size, "bytes of pool")
