/* Control connections against a core that only keeps books: framing, first frames, pulled output, and what
 * strangers can do to the listener. */
#include <criterion/criterion.h>

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sidecar/control.h"
#include "sidecar/transport/tcp_socket.h"

#define PEERS 8u
#define PENDINGS 4u

/* ---- the core ------------------------------------------------------------------------------------------- */

static struct {
    int accept_rc;
    uint32_t next_peer;
    uint32_t accepts;
    int lane_rc;
    uint32_t lane_accepts;
    struct kvf_wire_lane_hello lane_hello;
    uint32_t frames;
    uint32_t next_seq; /* frames of a peer carry 0, 1, 2 ... */
    uint32_t wrong;    /* frames out of order or with wrong bytes */
    uint64_t frame_bytes;
    uint32_t lost;
    int lost_err;
    uint32_t connected;
    uint32_t failed;
    int failed_err;
    uint64_t owed_bytes; /* how many bytes the peer is owed */
    uint64_t emitted_bytes;
    uint32_t emits;
    uint32_t refusals;
    uint32_t refusal_code;
} core;

int kvf_core_peer_accept(struct kvf_core *c, uint64_t now_ns, const unsigned char *payload,
                         size_t bytes, uint32_t *ret_peer)
{
    struct kvf_wire_hello hello;
    (void)c;
    (void)now_ns;
    core.accepts++;
    if (kvf_wire_get_hello(payload, bytes, &hello) != 0) {
        return -EPROTO;
    }
    if (core.accept_rc == 0) {
        *ret_peer = core.next_peer++;
    }
    return core.accept_rc;
}

int kvf_core_lane_accept(struct kvf_core *c, uint64_t now_ns,
                         const struct kvf_wire_lane_hello *hello, uint32_t *ret_lane)
{
    (void)c;
    (void)now_ns;
    core.lane_accepts++;
    core.lane_hello = *hello;
    *ret_lane = 42;
    return core.lane_rc;
}

void kvf_core_frame(struct kvf_core *c, uint64_t now_ns, uint32_t peer, uint8_t type,
                    uint32_t seq, const unsigned char *payload, size_t bytes)
{
    (void)c;
    (void)now_ns;
    (void)peer;
    core.frames++;
    core.frame_bytes += bytes;
    core.wrong += seq != core.next_seq++ || type != KVF_WIRE_GRANT;
    for (size_t i = 0; i < bytes; i++) {
        core.wrong += payload[i] != (unsigned char)(seq + i);
    }
}

void kvf_core_peer_lost(struct kvf_core *c, uint64_t now_ns, uint32_t peer, int err)
{
    (void)c;
    (void)now_ns;
    (void)peer;
    core.lost++;
    core.lost_err = err;
}

void kvf_core_peer_connected(struct kvf_core *c, uint64_t now_ns, uint32_t peer)
{
    (void)c;
    (void)now_ns;
    (void)peer;
    core.connected++;
}

void kvf_core_peer_connect_failed(struct kvf_core *c, uint64_t now_ns, uint32_t peer, int err)
{
    (void)c;
    (void)now_ns;
    (void)peer;
    core.failed++;
    core.failed_err = err;
}

size_t kvf_core_emit(struct kvf_core *c, uint64_t now_ns, uint32_t peer, unsigned char *buf,
                     size_t cap)
{
    (void)c;
    (void)now_ns;
    (void)peer;
    size_t bytes = 0;
    cr_assert_geq(cap, KVF_WIRE_HEADER_BYTES + KVF_WIRE_PAYLOAD_MAX);
    core.emits++;
    while (bytes < cap && core.emitted_bytes < core.owed_bytes) {
        buf[bytes++] = (unsigned char)(core.emitted_bytes++ % 251);
    }
    return bytes;
}

size_t kvf_core_refusal(const struct kvf_core *c, uint32_t code, unsigned char *buf, size_t cap)
{
    struct kvf_wire_hello hello = {.version_major = 1, .code = code};
    (void)c;
    core.refusals++;
    core.refusal_code = code;
    return (size_t)kvf_wire_put_hello(buf, cap, 0, &hello);
}

/* ---- the bench ------------------------------------------------------------------------------------------ */

static struct kvf_control *control;
static int epoll_fd;
static int lane_fd = -1;
static uint32_t lane_lane, lane_epoch;
static uint64_t now_ns = 1000;
static uint32_t events_seen;

static void on_lane(void *ctx, uint64_t now, uint32_t lane, uint32_t epoch, int fd)
{
    (void)ctx;
    (void)now;
    lane_lane = lane;
    lane_epoch = epoch;
    lane_fd = fd;
}

static void start_on(uint8_t family, bool has_no_streams)
{
    struct kvf_control_config config = {
        .listen = {.family = family, .addr = {127, 0, 0, 1}},
        .peers_max = PEERS,
        .pending_max = PENDINGS,
        .pending_ns = 1000000,
        .has_no_streams = has_no_streams,
    };
    if (family == 6) {
        memset(config.listen.addr, 0, 16);
        config.listen.addr[15] = 1;
    }
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    int rc = kvf_control_create(&config, NULL, epoll_fd, on_lane, NULL, &control);
    if (family == 6 && rc == -EADDRNOTAVAIL) {
        cr_skip_test("no IPv6 loopback");
    }
    cr_assert_eq(rc, 0);
}

static void start(void)
{
    start_on(4, false);
}

static void start_without_streams(void)
{
    start_on(4, true);
}

static void stop(void)
{
    if (control != NULL) {
        kvf_control_destroy(control);
        close(epoll_fd);
    }
}

static void turns(uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct epoll_event events[16];
        int n = epoll_wait(epoll_fd, events, 16, 1);
        for (int k = 0; k < n; k++) {
            events_seen++;
            kvf_control_ready(control, now_ns, (uint32_t)(events[k].data.u64 >> 32),
                              (uint32_t)events[k].data.u64, events[k].events);
        }
    }
}

static struct kvf_addr_shm address(void)
{
    return (struct kvf_addr_shm){
        .family = 4, .port = kvf_control_port(control), .addr = {127, 0, 0, 1}};
}

static int dial(void)
{
    struct kvf_addr_shm addr = address();
    int fd = kvf_socket_stream(&addr);
    int rc = kvf_socket_connect(fd, &addr);
    cr_assert(rc == 0 || rc == -EINPROGRESS);
    turns(2);
    return fd;
}

static size_t make_hello(unsigned char *out)
{
    struct kvf_wire_hello hello = {.version_major = 1,
                                   .transport = KVF_WIRE_TCP,
                                   .placement = KVF_PLACEMENT_CHECKED,
                                   .lane_count = 1,
                                   .name = "gpu1"};
    return (size_t)kvf_wire_put_hello(out, 256, 0, &hello);
}

static size_t make_frame(unsigned char *out, uint32_t seq, uint32_t bytes)
{
    struct kvf_wire_header header = {.version_major = KVF_WIRE_VERSION_MAJOR,
                                     .type = KVF_WIRE_GRANT,
                                     .payload_bytes = bytes,
                                     .seq = seq};
    kvf_wire_put_header(out, &header);
    for (uint32_t i = 0; i < bytes; i++) {
        out[KVF_WIRE_HEADER_BYTES + i] = (unsigned char)(seq + i);
    }
    return KVF_WIRE_HEADER_BYTES + bytes;
}

static void say(int fd, const void *bytes, size_t count)
{
    size_t sent = 0;
    for (uint32_t i = 0; i < 100000 && sent < count; i++) {
        ssize_t n =
            send(fd, (const char *)bytes + sent, count - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        sent += n > 0 ? (size_t)n : 0;
        if (sent < count) {
            turns(1);
        }
    }
    cr_assert_eq(sent, count);
}

/* 0: closed. -1: still open, nothing to read. Else the bytes. */
static ssize_t hear(int fd, void *bytes, size_t count)
{
    ssize_t n = recv(fd, bytes, count, MSG_DONTWAIT);
    return n < 0 && errno != EAGAIN ? 0 : n;
}

static int dial_peer(void)
{
    unsigned char hello[256];
    int fd = dial();
    say(fd, hello, make_hello(hello));
    turns(2);
    return fd;
}

TestSuite(control, .init = start, .fini = stop);

/* ---- first frames ----------------------------------------------------------------------------------------- */

Test(control, a_hello_makes_a_peer_and_what_follows_in_the_same_breath_reaches_the_core)
{
    unsigned char bytes[4096];
    size_t count = make_hello(bytes);
    for (uint32_t seq = 0; seq < 10; seq++) {
        count += make_frame(bytes + count, seq, seq * 7);
    }
    int fd = dial();
    say(fd, bytes, count);
    turns(5);
    cr_assert_eq(core.accepts, 1);
    cr_assert_eq(core.frames, 10);
    cr_assert_eq(core.wrong, 0);
    close(fd);
}

Test(control, frames_split_at_every_byte_arrive_whole)
{
    unsigned char bytes[512];
    size_t count = make_hello(bytes);
    count += make_frame(bytes + count, 0, 0);
    count += make_frame(bytes + count, 1, 100);
    count += make_frame(bytes + count, 2, 1);
    int fd = dial();
    for (size_t i = 0; i < count; i++) {
        say(fd, bytes + i, 1);
        turns(1);
    }
    cr_assert_eq(core.accepts, 1);
    cr_assert_eq(core.frames, 3);
    cr_assert_eq(core.wrong, 0);
    close(fd);
}

Test(control, a_lane_hello_hands_the_stream_on_and_takes_no_byte_beyond_it)
{
    unsigned char bytes[256];
    struct kvf_wire_lane_hello hello = {.session = 7, .lane_idx = 3, .epoch = 99};
    size_t count = (size_t)kvf_wire_put_lane_hello(bytes, sizeof(bytes), 0, &hello);
    memcpy(bytes + count, "payload", 7);
    int fd = dial();
    say(fd, bytes, count + 7);
    turns(3);
    cr_assert_eq(core.lane_accepts, 1);
    cr_assert_eq(core.lane_hello.session, 7);
    cr_assert_eq(core.lane_hello.lane_idx, 3);
    cr_assert_eq(lane_lane, 42);
    cr_assert_eq(lane_epoch, 99);
    cr_assert_geq(lane_fd, 0);
    char rest[16] = {0};
    cr_assert_eq(hear(lane_fd, rest, sizeof(rest)), 7);
    cr_assert_str_eq(rest, "payload");
    events_seen = 0;
    say(fd, "more", 4);
    turns(3);
    cr_assert_eq(events_seen, 0, "it is watched by its new owner only");
    close(fd);
    close(lane_fd);
}

/* Where lanes are queue pairs, a stream that says it is a lane would be one beside all credits. */
Test(control_queue_pairs, a_stream_that_says_it_is_a_lane_is_turned_away_unasked,
     .init = start_without_streams, .fini = stop)
{
    unsigned char bytes[64];
    struct kvf_wire_lane_hello hello = {.session = 7, .lane_idx = 3, .epoch = 99};
    size_t count = (size_t)kvf_wire_put_lane_hello(bytes, sizeof(bytes), 0, &hello);
    int fd = dial();
    say(fd, bytes, count);
    turns(3);
    cr_assert_eq(core.lane_accepts, 0, "the core was asked");
    cr_assert_eq(lane_fd, -1);
    cr_assert_eq(hear(fd, bytes, sizeof(bytes)), 0);
    close(fd);
    /* And only that: a peer is a peer. */
    fd = dial_peer();
    cr_assert_eq(core.accepts, 1);
    close(fd);
}

Test(control, a_lane_of_nobody_is_closed)
{
    unsigned char bytes[64];
    struct kvf_wire_lane_hello hello = {.session = 7};
    size_t count = (size_t)kvf_wire_put_lane_hello(bytes, sizeof(bytes), 0, &hello);
    core.lane_rc = -KVF_E_PEER_REFUSED;
    int fd = dial();
    say(fd, bytes, count);
    turns(3);
    cr_assert_eq(lane_fd, -1);
    cr_assert_eq(hear(fd, bytes, sizeof(bytes)), 0);
    close(fd);
}

Test(control, a_refused_hello_hears_why_before_the_end)
{
    unsigned char bytes[256];
    struct kvf_wire_hello hello;
    core.accept_rc = -KVF_E_PEER_REFUSED;
    int fd = dial_peer();
    cr_assert_eq(core.accepts, 1);
    cr_assert_eq(hear(fd, bytes, sizeof(bytes)), KVF_WIRE_HEADER_BYTES + KVF_WIRE_HELLO_BYTES);
    cr_assert_eq(
        kvf_wire_get_hello(bytes + KVF_WIRE_HEADER_BYTES, KVF_WIRE_HELLO_BYTES, &hello), 0);
    cr_assert_eq(hello.code, KVF_E_PEER_REFUSED);
    cr_assert_eq(hear(fd, bytes, sizeof(bytes)), 0);
    close(fd);
}

Test(control, another_major_version_is_told_so)
{
    unsigned char bytes[256];
    size_t count = make_hello(bytes);
    bytes[4] = 9;
    int fd = dial();
    say(fd, bytes, count);
    turns(3);
    cr_assert_eq(core.accepts, 0);
    cr_assert_eq(core.refusals, 1);
    cr_assert_eq(core.refusal_code, ENOTSUP);
    close(fd);
}

Test(control, a_first_frame_of_another_kind_length_or_number_is_turned_away)
{
    unsigned char bytes[256];
    for (int i = 0; i < 6; i++) {
        size_t count = make_hello(bytes);
        switch (i) {
        case 0:
            bytes[0] ^= 1; /* magic */
            break;
        case 1:
            bytes[5] = KVF_WIRE_GRANT;
            break;
        case 2:
            bytes[8]++; /* longer than a HELLO */
            break;
        case 3:
            bytes[5] = KVF_WIRE_LANE_HELLO; /* of a HELLO's length */
            break;
        case 4:
            bytes[12] = 1; /* the second frame of its direction */
            break;
        case 5:
            bytes[7] = 1; /* reserved */
            break;
        }
        int fd = dial();
        say(fd, bytes, count);
        turns(3);
        cr_assert_eq(hear(fd, bytes, sizeof(bytes)), 0, "case %d", i);
        close(fd);
    }
    cr_assert_eq(core.accepts, 0);
    cr_assert_eq(core.lane_accepts, 0);
}

Test(control, the_oldest_silent_connection_makes_room_for_a_new_one)
{
    int fds[PENDINGS + 2];
    char byte;
    for (uint32_t i = 0; i < PENDINGS + 2; i++) {
        fds[i] = dial();
    }
    for (uint32_t i = 0; i < PENDINGS + 2; i++) {
        cr_assert_eq(hear(fds[i], &byte, 1), i < 2 ? 0 : -1, "connection %u", i);
    }
    unsigned char hello[256];
    say(fds[2], hello, make_hello(hello));
    turns(3);
    cr_assert_eq(core.accepts, 1);
    for (uint32_t i = 0; i < PENDINGS + 2; i++) {
        close(fds[i]);
    }
    turns(3);
    cr_assert_eq(kvf_control_deadline(control), KVF_NO_TIME, "all slots are free again");
}

Test(control, a_silent_connection_goes_after_its_time)
{
    char byte;
    cr_assert_eq(kvf_control_deadline(control), KVF_NO_TIME);
    int fd = dial();
    cr_assert_eq(kvf_control_deadline(control), now_ns + 1000000);
    kvf_control_tick(control, now_ns + 999999);
    cr_assert_eq(hear(fd, &byte, 1), -1);
    kvf_control_tick(control, now_ns + 1000000);
    cr_assert_eq(hear(fd, &byte, 1), 0);
    cr_assert_eq(kvf_control_deadline(control), KVF_NO_TIME);
    close(fd);
}

/* ---- peers ------------------------------------------------------------------------------------------------- */

Test(control, frames_of_the_largest_size_go_through)
{
    static unsigned char bytes[8 * (KVF_WIRE_HEADER_BYTES + KVF_WIRE_PAYLOAD_MAX)];
    size_t count = 0;
    for (uint32_t seq = 0; seq < 8; seq++) {
        count += make_frame(bytes + count, seq, KVF_WIRE_PAYLOAD_MAX - seq % 3);
    }
    int fd = dial_peer();
    say(fd, bytes, count);
    turns(10);
    cr_assert_eq(core.frames, 8);
    cr_assert_eq(core.wrong, 0);
    close(fd);
}

Test(control, bad_framing_ends_the_connection_once_and_nothing_behind_it_is_read)
{
    for (int i = 0; i < 4; i++) {
        static const int errs[] = {EPROTO, ENOTSUP, ENOTSUP, EPROTO};
        unsigned char bytes[256];
        memset(&core, 0, sizeof(core));
        core.next_peer = (uint32_t)i;
        size_t count = make_frame(bytes, 0, 4);
        size_t bad = count;
        count += make_frame(bytes + count, 1, 4);
        count += make_frame(bytes + count, 2, 4);
        switch (i) {
        case 0:
            bytes[bad] ^= 1; /* magic */
            break;
        case 1:
            bytes[bad + 4] = KVF_WIRE_VERSION_MAJOR + 1; /* version */
            break;
        case 2:
            bytes[bad + 5] = 200; /* type */
            break;
        case 3:
            bytes[bad + 11] = 1; /* more than a payload may have */
            break;
        }
        int fd = dial_peer();
        say(fd, bytes, count);
        turns(5);
        cr_assert_eq(core.frames, 1, "case %d", i);
        cr_assert_eq(core.lost, 1, "case %d", i);
        cr_assert_eq(core.lost_err, errs[i], "case %d", i);
        cr_assert_eq(hear(fd, bytes, sizeof(bytes)), 0);
        kvf_control_close(control, (uint32_t)i); /* the core's answer finds nothing to do */
        close(fd);
    }
}

Test(control, the_end_of_a_peer_is_told_after_its_last_frame)
{
    unsigned char bytes[256];
    int fd = dial_peer();
    size_t count = make_frame(bytes, 0, 20);
    count += make_frame(bytes + count, 1, 20);
    say(fd, bytes, count - 5);
    close(fd);
    turns(5);
    cr_assert_eq(core.frames, 1);
    cr_assert_eq(core.lost, 1);
    cr_assert_eq(core.lost_err, ECONNRESET);
}

Test(control, close_throws_unread_bytes_away)
{
    unsigned char bytes[256];
    int fd = dial_peer();
    say(fd, bytes, make_frame(bytes, 0, 20));
    usleep(1000);
    kvf_control_close(control, 0);
    turns(5);
    cr_assert_eq(core.frames, 0);
    cr_assert_eq(core.lost, 0, "the core asked for it");
    cr_assert_eq(hear(fd, bytes, sizeof(bytes)), 0);
    close(fd);
}

/* Output is pulled when the socket takes it. A peer that does not read costs one buffer, and its own frames
 * are read all the same. */
Test(control, a_peer_that_does_not_read_is_still_read_and_gets_every_byte_in_the_end)
{
    static unsigned char bytes[65536];
    unsigned char frame[256];
    int fd = dial_peer();
    core.owed_bytes = 64u << 20;
    kvf_control_write(control, now_ns, 0);
    turns(50);
    uint64_t stuck = core.emitted_bytes;
    cr_assert_lt(stuck, core.owed_bytes, "the peer's buffers never filled");
    for (uint32_t seq = 0; seq < 20; seq++) {
        say(fd, frame, make_frame(frame, seq, 30));
        kvf_control_write(control, now_ns, 0);
    }
    turns(5);
    cr_assert_eq(core.frames, 20);
    cr_assert_eq(core.wrong, 0);
    /* The kernel takes a little more when acknowledgements come with the frames, but never all. */
    cr_assert_lt(core.emitted_bytes, core.owed_bytes);
    uint64_t heard = 0;
    for (uint32_t i = 0; i < 1000000 && heard < core.owed_bytes; i++) {
        ssize_t n = hear(fd, bytes, sizeof(bytes));
        for (ssize_t k = 0; k < n; k++) {
            cr_assert_eq(bytes[k], (unsigned char)(heard++ % 251));
        }
        if (n <= 0) {
            turns(1);
        }
    }
    cr_assert_eq(heard, core.owed_bytes);
    turns(3);
    events_seen = 0;
    turns(5);
    cr_assert_eq(events_seen, 0, "no more EPOLLOUT once all is out");
    close(fd);
}

Test(control, connect_reaches_a_listener_and_writes_what_the_core_owes)
{
    struct kvf_addr_shm addr = address();
    core.next_peer = 1;
    core.owed_bytes = 0;
    kvf_control_connect(control, now_ns, 0, &addr);
    turns(5);
    cr_assert_eq(core.connected, 1);
    cr_assert_eq(core.failed, 0);
    cr_assert_geq(core.emits, 1, "connected: the core is asked at once");
    kvf_control_close(control, 0);
    turns(3);
}

Test(control, connect_to_nobody_fails_with_its_errno)
{
    struct kvf_addr_shm addr = address();
    struct kvf_addr_shm bad = {.family = 9};
    int fd = kvf_socket_stream(&addr);
    struct sockaddr_storage name;
    socklen_t bytes;
    addr.port = 0;
    kvf_socket_address(&addr, &name, &bytes);
    cr_assert_eq(bind(fd, (struct sockaddr *)&name, bytes), 0);
    cr_assert_eq(getsockname(fd, (struct sockaddr *)&name, &bytes), 0);
    addr.port = ntohs(((struct sockaddr_in *)(void *)&name)->sin_port);
    kvf_control_connect(control, now_ns, 0, &addr);
    turns(5);
    cr_assert_eq(core.connected, 0);
    cr_assert_eq(core.failed, 1);
    cr_assert_eq(core.failed_err, ECONNREFUSED);
    kvf_control_connect(control, now_ns, 0, &bad);
    cr_assert_eq(core.failed, 2);
    cr_assert_eq(core.failed_err, EAFNOSUPPORT);
    close(fd);
}

Test(control, a_connect_that_is_closed_before_it_ends_says_nothing_more)
{
    /* A full backlog of nobody: the connect stays under way. */
    struct kvf_addr_shm addr = {.family = 4, .port = 9, .addr = {192, 0, 2, 1}};
    kvf_control_connect(control, now_ns, 0, &addr);
    uint32_t answers = core.failed + core.connected;
    kvf_control_close(control, 0);
    turns(5);
    cr_assert_eq(core.failed + core.connected, answers);
    cr_assert_eq(core.lost, 0);
}

/* ---- the listener -------------------------------------------------------------------------------------------- */

Test(control, an_address_in_use_is_its_own_error)
{
    struct kvf_control_config config = {
        .listen = address(), .peers_max = 1, .pending_max = 1, .pending_ns = 1};
    struct kvf_control *second;
    cr_assert_eq(kvf_control_create(&config, NULL, epoll_fd, on_lane, NULL, &second),
                 -EADDRINUSE);
    config.listen = (struct kvf_addr_shm){.family = 4, .addr = {192, 0, 2, 1}};
    cr_assert_eq(kvf_control_create(&config, NULL, epoll_fd, on_lane, NULL, &second),
                 -EADDRNOTAVAIL);
}

Test(control, without_descriptors_left_callers_are_turned_away_and_the_loop_stays_quiet)
{
    struct rlimit limit = {.rlim_cur = 64, .rlim_max = 64};
    struct kvf_addr_shm addr = address();
    int fds[3];
    char byte;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    for (int i = 0; i < 3; i++) {
        fds[i] = kvf_socket_stream(&addr);
    }
    int fill[64];
    int filled = 0;
    while ((fill[filled] = dup(epoll_fd)) >= 0) {
        filled++;
    }
    for (int i = 0; i < 3; i++) {
        (void)kvf_socket_connect(fds[i], &addr);
    }
    turns(10);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(hear(fds[i], &byte, 1), 0);
    }
    events_seen = 0;
    turns(5);
    cr_assert_eq(events_seen, 0);
    while (filled > 0) {
        close(fill[--filled]);
    }
    int fd = dial_peer();
    cr_assert_eq(core.accepts, 1, "and serves again afterwards");
    close(fd);
    for (int i = 0; i < 3; i++) {
        close(fds[i]);
    }
}

Test(control_v6, listens_and_connects_over_ipv6, .fini = stop)
{
    start_on(6, false);
    struct kvf_addr_shm addr = {.family = 6, .port = kvf_control_port(control)};
    addr.addr[15] = 1;
    core.next_peer = 1;
    kvf_control_connect(control, now_ns, 0, &addr);
    turns(5);
    cr_assert_eq(core.connected, 1);
}
