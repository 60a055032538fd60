/* What a peer, a network or a wrong address can do to tcp: the test speaks raw bytes on the other side.
 * Built once per engine; KVF_RIG_KIND is its rig. */
#include <criterion/criterion.h>

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "sidecar/transport/tcp_socket.h"
#include "tests/contract/rig.h"

#define PAGE_BYTES (4u * 4096u)

static void skip_unless_allowed(void)
{
    const struct rig_kind *kind = &KVF_RIG_KIND;
    const char *reason = kind->refused_because == NULL ? NULL : kind->refused_because();
    if (reason != NULL) {
        cr_skip_test("%s", reason);
    }
}

TestSuite(tcp_wire, .init = skip_unless_allowed);

/* The rig's own source end stays unused: `fd` is the writer. */
struct raw {
    struct rig *rig;
    int listen_fd;
    int fd;
    struct kvf_addr_shm addr;
    unsigned char greeting[64];
    ssize_t greeting_bytes;
};

static struct kvf_addr_shm listen_somewhere(int *ret_fd)
{
    struct kvf_addr_shm addr = {.family = 4, .addr = {127, 0, 0, 1}};
    struct sockaddr_storage address;
    socklen_t bytes;
    int fd = kvf_socket_stream(&addr);
    kvf_socket_address(&addr, &address, &bytes);
    cr_assert_eq(bind(fd, (struct sockaddr *)&address, bytes), 0);
    cr_assert_eq(listen(fd, 4), 0);
    cr_assert_eq(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
    addr.port = ntohs(((struct sockaddr_in *)(void *)&address)->sin_port);
    *ret_fd = fd;
    return addr;
}

static void raw_turns(struct raw *raw, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct epoll_event events[4];
        int n = epoll_wait(raw->rig->sink.epoll_fd, events, 4, 1);
        for (int k = 0; k < n; k++) {
            kvf_tcp_ready(raw->rig->sink.transport, (uint32_t)events[k].data.u64,
                          events[k].events);
        }
        kvf_tcp_ops.poll(raw->rig->sink.transport);
    }
}

/* A sink lane (lane 2, epoch 7) whose writer is the test; 8 pages of 4 planes, handle 1. */
static void raw_open(struct raw *raw)
{
    static const uint32_t plane_bytes[] = {4096};
    struct rig_options options = rig_defaults();
    raw->rig = rig_create(&KVF_RIG_KIND, &options);
    rig_region(raw->rig, 0, 8, 4, plane_bytes, 1, 0);
    rig_grant(raw->rig, 1, 0, 0, 8);
    raw->addr = listen_somewhere(&raw->listen_fd);
    struct kvf_lane_open open = {.lane = 2,
                                 .epoch = 7,
                                 .addr = raw->addr,
                                 .session = UINT64_C(0x1122334455667788),
                                 .lane_idx = 3,
                                 .accepted_fd = -1};
    cr_assert_eq(kvf_tcp_ops.open(raw->rig->sink.transport, &open), 0);
    cr_assert_eq(raw->rig->sink.up_count, 0, "up comes from poll");
    raw_turns(raw, 5);
    cr_assert_eq(raw->rig->sink.up_count, 1);
    raw->fd = accept4(raw->listen_fd, NULL, NULL, SOCK_CLOEXEC);
    cr_assert_geq(raw->fd, 0);
    raw->greeting_bytes = recv(raw->fd, raw->greeting, sizeof(raw->greeting), MSG_DONTWAIT);
}

static void raw_close(struct raw *raw)
{
    close(raw->fd);
    close(raw->listen_fd);
    rig_destroy(raw->rig);
}

static void raw_send(struct raw *raw, const void *bytes, size_t count)
{
    cr_assert_eq(send(raw->fd, bytes, count, MSG_NOSIGNAL), (ssize_t)count);
    raw_turns(raw, 5);
}

static struct kvf_lane_frame data_frame(uint32_t position, uint32_t pages, uint32_t seq)
{
    return (struct kvf_lane_frame){.kind = KVF_LANE_DATA,
                                   .plane_count = 4,
                                   .handle = 1,
                                   .position = position,
                                   .page_count = pages,
                                   .payload_bytes = pages * PAGE_BYTES,
                                   .seq = seq};
}

static void raw_send_frame(struct raw *raw, const struct kvf_lane_frame *frame)
{
    static unsigned char payload[8 * PAGE_BYTES];
    unsigned char header[KVF_LANE_HEADER_BYTES];
    memset(payload, 0x77, sizeof(payload));
    kvf_wire_put_lane_frame(header, frame);
    raw_send(raw, header, sizeof(header));
    if (frame->payload_bytes <= sizeof(payload)) {
        (void)send(raw->fd, payload, frame->payload_bytes, MSG_NOSIGNAL);
    }
    raw_turns(raw, 10);
}

Test(tcp_wire, a_sink_greets_with_exactly_one_lane_hello)
{
    struct raw raw;
    raw_open(&raw);
    struct kvf_wire_header header;
    struct kvf_wire_lane_hello hello;
    cr_assert_eq(raw.greeting_bytes, KVF_WIRE_HEADER_BYTES + KVF_WIRE_LANE_HELLO_BYTES);
    cr_assert_eq(kvf_wire_get_header(raw.greeting, &header), 0);
    cr_assert_eq(header.type, KVF_WIRE_LANE_HELLO);
    cr_assert_eq(header.seq, 0);
    cr_assert_eq(kvf_wire_get_lane_hello(raw.greeting + KVF_WIRE_HEADER_BYTES,
                                         header.payload_bytes, &hello),
                 0);
    cr_assert_eq(hello.session, UINT64_C(0x1122334455667788));
    cr_assert_eq(hello.lane_idx, 3);
    cr_assert_eq(hello.epoch, 7);
    raw_close(&raw);
}

Test(tcp_wire, good_frames_are_placed_and_counted)
{
    struct raw raw;
    raw_open(&raw);
    struct kvf_lane_frame frame = data_frame(0, 2, 0);
    raw_send_frame(&raw, &frame);
    frame = data_frame(5, 1, 1);
    raw_send_frame(&raw, &frame);
    frame = (struct kvf_lane_frame){.kind = KVF_LANE_END, .handle = 1, .seq = 2};
    raw_send_frame(&raw, &frame);
    cr_assert_eq(raw.rig->sink.lost_count, 0);
    cr_assert_eq(rig_count(&raw.rig->sink, RIG_MARKER), 1);
    cr_assert_eq(rig_touched_bytes(raw.rig, 0, 0, 2), 2 * PAGE_BYTES);
    cr_assert_eq(rig_touched_bytes(raw.rig, 0, 2, 3), 0);
    cr_assert_eq(rig_touched_bytes(raw.rig, 0, 5, 1), PAGE_BYTES);
    raw_close(&raw);
}

/* Each of these is the second frame; the first is good. It must end the stream and touch nothing. */
Test(tcp_wire, a_hostile_frame_ends_the_stream_and_touches_nothing)
{
    enum { CASES = 13 };
    for (int i = 0; i < CASES; i++) {
        struct raw raw;
        raw_open(&raw);
        struct kvf_lane_frame frame = data_frame(0, 1, 0);
        raw_send_frame(&raw, &frame);
        cr_assert_eq(raw.rig->sink.lost_count, 0);
        uint64_t placed = raw.rig->sink.grants[1].placed_bytes;
        frame = data_frame(4, 1, 1);
        switch (i) {
        case 0: /* a frame once more */
            frame.seq = 0;
            break;
        case 1: /* one left out */
            frame.seq = 2;
            break;
        case 2: /* unknown handle */
            frame.handle = 9;
            break;
        case 3: /* outside the list */
            frame.position = 8;
            break;
        case 4: /* across its end */
            frame = data_frame(6, 3, 1);
            break;
        case 5: /* a byte short */
            frame.payload_bytes--;
            break;
        case 6: /* a byte long */
            frame.payload_bytes++;
            break;
        case 7: /* planes that are not there */
            frame.plane_first = 2;
            break;
        case 8: /* two pages of fewer planes */
            frame.page_count = 2;
            frame.plane_count = 2;
            break;
        case 9: /* unknown kind */
            frame.kind = 4;
            break;
        case 10: /* a marker with payload */
            frame = (struct kvf_lane_frame){
                .kind = KVF_LANE_END, .handle = 1, .payload_bytes = 16, .seq = 1};
            break;
        case 11: /* a marker of nobody */
            frame = (struct kvf_lane_frame){.kind = KVF_LANE_DRAIN, .handle = 9, .seq = 1};
            break;
        case 12: /* more than a stream may ask for, of a grant that goes to scratch */
            raw.rig->sink.grants[1].mode = RIG_SCRATCH;
            frame.payload_bytes = (64u << 20) + 1;
            break;
        }
        raw_send_frame(&raw, &frame);
        cr_assert_eq(raw.rig->sink.lost_count, 1, "case %d", i);
        cr_assert_eq(rig_last(&raw.rig->sink, RIG_LOST)->value, EPROTO, "case %d", i);
        cr_assert_eq(rig_last(&raw.rig->sink, RIG_LOST)->epoch, 7);
        cr_assert_eq(raw.rig->sink.grants[1].placed_bytes, placed, "case %d", i);
        cr_assert_eq(rig_touched_bytes(raw.rig, 0, 1, 7), 0, "case %d", i);
        struct epoll_event event;
        shutdown(raw.fd, SHUT_RDWR);
        cr_assert_eq(epoll_wait(raw.rig->sink.epoll_fd, &event, 1, 5), 0,
                     "a lost lane keeps the loop awake");
        kvf_tcp_ops.fence(raw.rig->sink.transport, 2, 7);
        cr_assert_eq(raw.rig->sink.fenced_count, 1);
        raw_close(&raw);
    }
}

Test(tcp_wire, random_bytes_never_touch_a_page)
{
    for (uint32_t seed = 1; seed < 60; seed++) {
        struct raw raw;
        raw_open(&raw);
        unsigned char bytes[512];
        raw.rig->random = seed * UINT64_C(0x9e3779b97f4a7c15);
        for (size_t i = 0; i < sizeof(bytes); i++) {
            bytes[i] = (unsigned char)(rig_random(raw.rig) >> 40);
        }
        if (seed % 2 == 0) { /* a header but for one byte */
            struct kvf_lane_frame frame = data_frame(0, 1, 0);
            unsigned char wrong = bytes[40] | 1u;
            kvf_wire_put_lane_frame(bytes, &frame);
            bytes[seed / 2 % 32] ^= wrong;
            if (seed / 2 % 32 >= 16 && seed / 2 % 32 < 20) {
                bytes[16] = 0xff; /* another position could be a good one */
            }
        }
        raw_send(&raw, bytes, sizeof(bytes));
        cr_assert_eq(raw.rig->sink.lost_count, 1, "seed %u", seed);
        cr_assert_eq(rig_touched_bytes(raw.rig, 0, 0, 8), 0);
        raw_close(&raw);
    }
}

/* All that came before the end counts, byte by byte, and the end is told once and last. */
Test(tcp_wire, a_stream_cut_anywhere_is_handled_up_to_the_cut)
{
    unsigned char stream[2 * (KVF_LANE_HEADER_BYTES + PAGE_BYTES) + KVF_LANE_HEADER_BYTES];
    memset(stream, 0x77, sizeof(stream));
    struct kvf_lane_frame frame = data_frame(0, 1, 0);
    kvf_wire_put_lane_frame(stream, &frame);
    frame = data_frame(1, 1, 1);
    kvf_wire_put_lane_frame(stream + KVF_LANE_HEADER_BYTES + PAGE_BYTES, &frame);
    frame = (struct kvf_lane_frame){.kind = KVF_LANE_END, .handle = 1, .seq = 2};
    kvf_wire_put_lane_frame(stream + 2 * (KVF_LANE_HEADER_BYTES + PAGE_BYTES), &frame);
    static const size_t cuts[] = {0,     1,     31,    32,    33,    32 + 4096, 16415, 16416,
                                  16417, 16447, 16448, 16449, 32831, 32832,     32863, 32864};
    for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
        struct raw raw;
        raw_open(&raw);
        size_t cut = cuts[i];
        cr_assert_eq(send(raw.fd, stream, cut, MSG_NOSIGNAL), (ssize_t)cut);
        shutdown(raw.fd, SHUT_WR);
        raw_turns(&raw, 10);
        size_t page = KVF_LANE_HEADER_BYTES + PAGE_BYTES;
        size_t want = cut < page ? (cut < 32 ? 0 : cut - 32) : PAGE_BYTES;
        if (cut > page + 32) {
            want += cut - page - 32 < PAGE_BYTES ? cut - page - 32 : PAGE_BYTES;
        }
        cr_assert_eq(raw.rig->sink.grants[1].placed_bytes, want, "cut %zu", cut);
        cr_assert_eq(rig_touched_bytes(raw.rig, 0, 0, 8), want, "cut %zu", cut);
        cr_assert_eq(rig_count(&raw.rig->sink, RIG_MARKER), cut == sizeof(stream));
        cr_assert_eq(raw.rig->sink.lost_count, 1);
        cr_assert_eq(raw.rig->sink.log[raw.rig->sink.log_count - 1].kind, RIG_LOST);
        raw_close(&raw);
    }
}

static void assert_lost_soon(struct raw *raw, int err)
{
    for (uint32_t i = 0; i < 200 && raw->rig->sink.lost_count == 0; i++) {
        raw_turns(raw, 10);
    }
    cr_assert_eq(raw->rig->sink.lost_count, 1);
    cr_assert_eq(rig_last(&raw->rig->sink, RIG_LOST)->value, err);
    cr_assert_eq(raw->rig->sink.up_count, 0);
}

Test(tcp_wire, nobody_listening_is_lost_and_not_an_error_of_open)
{
    struct rig_options options = rig_defaults();
    struct raw raw = {.rig = rig_create(&KVF_RIG_KIND, &options)};
    raw.addr = listen_somewhere(&raw.listen_fd);
    close(raw.listen_fd);
    struct kvf_lane_open open = {.lane = 0, .epoch = 1, .addr = raw.addr, .accepted_fd = -1};
    cr_assert_eq(kvf_tcp_ops.open(raw.rig->sink.transport, &open), 0);
    cr_assert_eq(raw.rig->sink.lost_count, 0, "not from within open");
    cr_assert_eq(kvf_tcp_ops.open(raw.rig->sink.transport, &open), -EBUSY);
    assert_lost_soon(&raw, ECONNREFUSED);
    raw_turns(&raw, 20);
    cr_assert_eq(raw.rig->sink.lost_count, 1);
    kvf_tcp_ops.fence(raw.rig->sink.transport, 0, 1);
    cr_assert_eq(raw.rig->sink.fenced_count, 1);
    rig_destroy(raw.rig);
}

Test(tcp_wire, bad_arguments_of_open_are_refused_and_own_the_descriptor)
{
    struct rig_options options = rig_defaults();
    struct rig *rig = rig_create(&KVF_RIG_KIND, &options);
    int fds[2];
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    struct kvf_lane_open open = {.lane = RIG_LANES, .epoch = 1, .accepted_fd = fds[0]};
    cr_assert_eq(kvf_tcp_ops.open(rig->source.transport, &open), -EINVAL);
    char byte;
    cr_assert_eq(recv(fds[1], &byte, 1, 0), 0, "the descriptor was closed");
    open.lane = 0;
    open.accepted_fd = -1;
    open.addr.family = 9;
    cr_assert_eq(kvf_tcp_ops.open(rig->sink.transport, &open), -EAFNOSUPPORT);
    close(fds[1]);
    rig_destroy(rig);
}

/* A sink says nothing after its LANE_HELLO; a peer that does is not one of ours. */
Test(tcp_wire, bytes_towards_the_source_end_its_stream)
{
    struct rig_options options = rig_defaults();
    struct rig *rig = rig_create(&KVF_RIG_KIND, &options);
    int listen_fd;
    struct kvf_addr_shm addr = listen_somewhere(&listen_fd);
    int fd = kvf_socket_stream(&addr);
    (void)kvf_socket_connect(fd, &addr);
    usleep(10000);
    struct kvf_lane_open open = {
        .lane = 0, .epoch = 1, .accepted_fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC)};
    cr_assert_eq(kvf_tcp_ops.open(rig->source.transport, &open), 0);
    rig->is_sink_stopped = true;
    rig_turns(rig, 5);
    cr_assert_eq(rig->source.up_count, 1);
    cr_assert_eq(send(fd, "x", 1, MSG_NOSIGNAL), 1);
    cr_assert(rig_until(rig, rig_is_lost, 1));
    cr_assert_eq(rig_last(&rig->source, RIG_LOST)->value, EPROTO);
    close(fd);
    close(listen_fd);
    rig_destroy(rig);
}

/* An idle source hears of its sink's end without having anything to send. */
Test(tcp_wire, an_idle_source_notices_that_its_sink_went)
{
    struct rig_options options = rig_defaults();
    struct rig *rig = rig_create(&KVF_RIG_KIND, &options);
    cr_assert_eq(KVF_RIG_KIND.lane_open(rig, 0, 5), 0);
    kvf_tcp_ops.fence(rig->sink.transport, 0, 5);
    cr_assert(rig_until(rig, rig_is_lost, 1));
    cr_assert_eq(rig_last(&rig->source, RIG_LOST)->value, ECONNRESET);
    rig_destroy(rig);
}

static double seconds(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

Test(tcp_wire, a_paced_lane_keeps_its_rate_and_holds_little)
{
    static const uint32_t plane_bytes[] = {4096};
    struct rig_options options = rig_defaults();
    options.config.lane_rate_bytes = 10000000; /* any machine is faster than that */
    struct rig *rig = rig_create(&KVF_RIG_KIND, &options);
    rig_region(rig, 0, 64, 16, plane_bytes, 1, 0);
    rig_grant(rig, 1, 0, 0, 64);
    cr_assert_eq(KVF_RIG_KIND.lane_open(rig, 0, 5), 0);
    double begin = seconds();
    for (uint32_t i = 0; i < 64; i++) {
        rig_post(rig, 0, 9, 1, 0, i, i, 1);
    }
    rig_mark(rig, 0, 9, 1, KVF_LANE_END);
    uint64_t held_max = 0;
    while (!rig_markers_seen(rig, 1) && seconds() - begin < 10) {
        rig_turn(rig, true);
        uint64_t taken = (uint64_t)rig->source.completed_count * 65536u;
        uint64_t held = taken - rig->sink.grants[1].placed_bytes;
        held_max =
            taken > rig->sink.grants[1].placed_bytes && held > held_max ? held : held_max;
    }
    double took = seconds() - begin;
    double rate = 64 * 65536.0 / took;
    cr_log_info("paced at 10 MB/s: %.1f MB/s, at most %lu bytes in the kernel\n", rate / 1e6,
                (unsigned long)held_max);
    cr_assert_eq(rig_wrong_bytes(rig, 0, 0, 0, 64), 0);
    cr_assert_lt(rate, 14e6);
    cr_assert_lt(held_max, 600000);
    rig_destroy(rig);
}
