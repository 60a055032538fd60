/* Control connections of a daemon to itself, against a core that only keeps books. */
#include <criterion/criterion.h>

#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sidecar/control.h"
#include "sidecar/transport/tcp_socket.h"

#define PEERS 8u
#define NO_LIMIT UINT32_MAX

/* ---- the core ------------------------------------------------------------------------------------------- */

static struct {
    int accept_rc;
    uint32_t next_peer;
    uint32_t accepts;
    uint32_t connected;
    uint32_t failed;
    int failed_err;
    uint32_t emits;
    bool is_emitting;
    struct {
        uint32_t to_send; /* frames it owes, its HELLO apart */
        uint32_t seq;
        bool owes_hello;
        uint32_t got; /* frames */
        uint32_t got_hellos;
        uint32_t got_code; /* of the last HELLO */
        uint32_t next_seq; /* of what it gets */
        uint32_t wrong;
        uint32_t lost;
        int lost_err;
    } peers[PEERS];
} core;

int kvf_core_peer_accept(struct kvf_core *c, uint64_t now_ns, const unsigned char *payload,
                         size_t bytes, uint32_t *ret_peer)
{
    struct kvf_wire_hello hello;
    (void)c;
    (void)now_ns;
    cr_assert_not(core.is_emitting);
    cr_assert_eq(kvf_wire_get_hello(payload, bytes, &hello), 0);
    core.accepts++;
    if (core.accept_rc == 0) {
        *ret_peer = core.next_peer;
        core.peers[core.next_peer].owes_hello = true;
        core.peers[core.next_peer].next_seq = 1;
        core.next_peer++;
    }
    return core.accept_rc;
}

int kvf_core_lane_accept(struct kvf_core *c, uint64_t now_ns,
                         const struct kvf_wire_lane_hello *hello, uint32_t *ret_lane)
{
    (void)c;
    (void)now_ns;
    (void)hello;
    (void)ret_lane;
    return -1;
}

void kvf_core_frame(struct kvf_core *c, uint64_t now_ns, uint32_t peer, uint8_t type,
                    uint32_t seq, const unsigned char *payload, size_t bytes)
{
    (void)c;
    (void)now_ns;
    cr_assert_not(core.is_emitting, "the core is entered from within an emit");
    cr_assert_eq(core.peers[peer].lost, 0, "a frame behind the end");
    core.peers[peer].wrong += seq != core.peers[peer].next_seq++;
    if (type == KVF_WIRE_HELLO) {
        struct kvf_wire_hello hello;
        cr_assert_eq(kvf_wire_get_hello(payload, bytes, &hello), 0);
        core.peers[peer].got_hellos++;
        core.peers[peer].got_code = hello.code;
        return;
    }
    core.peers[peer].wrong += bytes != seq % 200;
    core.peers[peer].got++;
}

void kvf_core_peer_lost(struct kvf_core *c, uint64_t now_ns, uint32_t peer, int err)
{
    (void)c;
    (void)now_ns;
    core.peers[peer].lost++;
    core.peers[peer].lost_err = err;
}

void kvf_core_peer_connected(struct kvf_core *c, uint64_t now_ns, uint32_t peer)
{
    (void)c;
    (void)now_ns;
    core.connected++;
    core.peers[peer].owes_hello = true;
}

void kvf_core_peer_connect_failed(struct kvf_core *c, uint64_t now_ns, uint32_t peer, int err)
{
    (void)c;
    (void)now_ns;
    (void)peer;
    core.failed++;
    core.failed_err = err;
}

/* Two frames at a time, so that a turn's bound shows. */
size_t kvf_core_emit(struct kvf_core *c, uint64_t now_ns, uint32_t peer, unsigned char *buf,
                     size_t cap)
{
    (void)c;
    (void)now_ns;
    size_t bytes = 0;
    cr_assert_geq(cap, KVF_WIRE_HEADER_BYTES + KVF_WIRE_PAYLOAD_MAX);
    core.emits++;
    core.is_emitting = true;
    if (core.peers[peer].owes_hello) {
        struct kvf_wire_hello hello = {.version_major = 1,
                                       .transport = KVF_WIRE_LOCAL,
                                       .placement = KVF_PLACEMENT_CHECKED,
                                       .lane_count = 1,
                                       .name = "gpu1"};
        core.peers[peer].owes_hello = false;
        bytes += (size_t)kvf_wire_put_hello(buf, cap, core.peers[peer].seq++, &hello);
    }
    for (uint32_t i = 0; i < 2 && core.peers[peer].to_send > 0; i++) {
        uint32_t seq = core.peers[peer].seq++;
        struct kvf_wire_header header = {.version_major = KVF_WIRE_VERSION_MAJOR,
                                         .type = KVF_WIRE_PING,
                                         .payload_bytes = seq % 200,
                                         .seq = seq};
        core.peers[peer].to_send -= core.peers[peer].to_send == NO_LIMIT ? 0 : 1;
        kvf_wire_put_header(buf + bytes, &header);
        memset(buf + bytes + KVF_WIRE_HEADER_BYTES, 1, header.payload_bytes);
        bytes += KVF_WIRE_HEADER_BYTES + header.payload_bytes;
    }
    core.is_emitting = false;
    return bytes;
}

size_t kvf_core_refusal(const struct kvf_core *c, uint32_t code, unsigned char *buf, size_t cap)
{
    struct kvf_wire_hello hello = {.version_major = 1, .code = code};
    (void)c;
    return (size_t)kvf_wire_put_hello(buf, cap, 0, &hello);
}

/* ---- the bench ------------------------------------------------------------------------------------------ */

static struct kvf_control *control;
static int epoll_fd;

static int create_on(const struct kvf_addr_shm *listen, bool is_alone)
{
    struct kvf_control_config config = {.listen = *listen,
                                        .peers_max = PEERS,
                                        .pending_max = 4,
                                        .pending_ns = 1000000,
                                        .is_loop_used = true,
                                        .is_alone = is_alone};
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    core.next_peer = 4;
    return kvf_control_create(&config, NULL, epoll_fd, NULL, NULL, &control);
}

static void start(void)
{
    struct kvf_addr_shm listen = {.family = 4, .addr = {127, 0, 0, 1}};
    cr_assert_eq(create_on(&listen, false), 0);
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
        kvf_control_turn(control, 1000);
    }
}

static struct kvf_addr_shm address(void)
{
    return (struct kvf_addr_shm){
        .family = 4, .port = kvf_control_port(control), .addr = {127, 0, 0, 1}};
}

static void connect_0(void)
{
    struct kvf_addr_shm addr = address();
    kvf_control_connect(control, 1000, 0, &addr);
    kvf_control_write(control, 1000, 0);
}

static uint32_t descriptors(void)
{
    DIR *dir = opendir("/proc/self/fd");
    uint32_t count = 0;
    cr_assert(dir != NULL);
    while (readdir(dir) != NULL) {
        count++;
    }
    closedir(dir);
    return count;
}

TestSuite(control_loop, .init = start, .fini = stop);

/* ---- two ends -------------------------------------------------------------------------------------------- */

Test(control_loop, a_connection_to_ourselves_carries_frames_both_ways_without_a_socket)
{
    uint32_t before = descriptors();
    connect_0();
    cr_assert_eq(core.connected, 1);
    cr_assert(kvf_control_is_loop(control, 0));
    core.peers[0].to_send = 100;
    core.peers[4].to_send = 300;
    for (uint32_t i = 0; i < 100 && kvf_control_has_work(control); i++) {
        turns(1);
    }
    cr_assert_eq(core.accepts, 1);
    cr_assert(kvf_control_is_loop(control, 4));
    cr_assert_eq(core.peers[0].got_hellos, 1);
    cr_assert_eq(core.peers[4].got, 100);
    cr_assert_eq(core.peers[0].got, 300);
    cr_assert_eq(core.peers[0].wrong + core.peers[4].wrong, 0);
    cr_assert_eq(core.peers[0].lost + core.peers[4].lost, 0);
    cr_assert_eq(descriptors(), before);
    cr_assert_not(kvf_control_has_sockets(control));
    /* And again, once there is something new. */
    core.peers[4].to_send = 1;
    kvf_control_write(control, 1000, 4);
    cr_assert(kvf_control_has_work(control));
    turns(2);
    cr_assert_eq(core.peers[0].got, 301);
    cr_assert_not(kvf_control_has_work(control));
}

Test(control_loop, a_turn_ends_whatever_an_end_owes)
{
    connect_0();
    core.peers[0].to_send = NO_LIMIT;
    for (uint32_t i = 0; i < 10; i++) {
        uint32_t emits = core.emits;
        turns(1);
        cr_assert_leq(core.emits - emits, 2u * 9u, "two ends, eight buffers each and a look");
        cr_assert(kvf_control_has_work(control));
    }
    cr_assert_gt(core.peers[4].got, 100);
    cr_assert_eq(core.peers[4].wrong, 0);
}

/* What one end owed is lost with it, and the other hears of the end once, from a turn. */
Test(control_loop, the_end_of_one_end_is_told_to_the_other_and_nothing_follows)
{
    for (uint32_t closes_accepted = 0; closes_accepted < 2; closes_accepted++) {
        memset(&core, 0, sizeof(core));
        core.next_peer = 4 + closes_accepted;
        uint32_t accepted = core.next_peer;
        connect_0();
        turns(5);
        uint32_t ended = closes_accepted ? accepted : 0;
        uint32_t other = closes_accepted ? 0 : accepted;
        core.peers[0].to_send = 10;
        core.peers[accepted].to_send = 10;
        kvf_control_write(control, 1000, 0);
        kvf_control_write(control, 1000, accepted);
        kvf_control_close(control, ended);
        cr_assert_eq(core.peers[other].lost, 0, "not from within the close");
        cr_assert(kvf_control_has_work(control));
        turns(5);
        cr_assert_eq(core.peers[ended].lost, 0, "who closes is not told");
        cr_assert_eq(core.peers[other].lost, 1);
        cr_assert_eq(core.peers[other].lost_err, ECONNRESET);
        cr_assert_eq(core.peers[ended].got + core.peers[other].got, 0);
        cr_assert_not(kvf_control_is_loop(control, 0));
        cr_assert_not(kvf_control_is_loop(control, accepted));
        cr_assert_not(kvf_control_has_work(control));
    }
}

Test(control_loop, a_refused_hello_hears_why_and_then_of_the_end)
{
    core.accept_rc = -KVF_E_RESOURCES;
    connect_0();
    core.peers[0].to_send = 1; /* in the same breath: nobody hears it */
    turns(5);
    cr_assert_eq(core.accepts, 1);
    cr_assert_eq(core.peers[0].got_hellos, 1);
    cr_assert_eq(core.peers[0].got_code, KVF_E_RESOURCES);
    cr_assert_eq(core.peers[0].lost, 1);
    cr_assert_not(kvf_control_is_loop(control, 0));
    /* The place is as good as new. */
    memset(&core, 0, sizeof(core));
    core.next_peer = 5;
    connect_0();
    turns(5);
    cr_assert_eq(core.peers[0].got_hellos, 1);
    cr_assert_eq(core.peers[0].got_code, 0);
}

/* A peer's place goes from a loop to a socket and back: neither end of the former is touched again. */
Test(control_loop, a_place_that_a_loop_left_takes_a_socket)
{
    connect_0();
    turns(5);
    struct kvf_addr_shm elsewhere = address();
    elsewhere.addr[3] = 2; /* somebody else's, though of this host */
    kvf_control_connect(control, 1000, 0, &elsewhere);
    cr_assert_not(kvf_control_is_loop(control, 0));
    turns(5);
    cr_assert_eq(core.peers[4].lost, 1);
    kvf_control_close(control, 0);
    core.next_peer = 6;
    core.peers[0].seq = 0;
    core.peers[0].next_seq = 0;
    connect_0();
    turns(5);
    cr_assert(kvf_control_is_loop(control, 0) && kvf_control_is_loop(control, 6));
}

/* ---- whose address ---------------------------------------------------------------------------------------- */

static bool is_taken_for_own(struct kvf_addr_shm addr)
{
    kvf_control_connect(control, 1000, 1, &addr);
    bool is_own = kvf_control_is_loop(control, 1);
    kvf_control_close(control, 1);
    return is_own;
}

Test(control_loop, an_address_is_ours_only_if_nobody_else_can_have_it)
{
    struct kvf_addr_shm addr = address();
    cr_assert(is_taken_for_own(addr));
    addr.port++;
    cr_assert_not(is_taken_for_own(addr));
    addr.port--;
    addr.addr[3] = 3; /* 127.0.0.3: another daemon may listen there at the same port */
    cr_assert_not(is_taken_for_own(addr));
    memset(addr.addr, 0, sizeof(addr.addr));
    addr.family = 6;
    addr.addr[15] = 1;
    cr_assert_not(is_taken_for_own(addr));
}

Test(control_loop_any, who_listens_everywhere_owns_the_loopback_addresses_at_its_port,
     .fini = stop)
{
    struct kvf_addr_shm any = {.family = 4};
    cr_assert_eq(create_on(&any, false), 0);
    struct kvf_addr_shm addr = address();
    cr_assert(is_taken_for_own(addr));
    addr.addr[3] = 3;
    cr_assert(is_taken_for_own(addr));
    memset(addr.addr, 0, sizeof(addr.addr));
    cr_assert(is_taken_for_own(addr));
    addr.addr[0] = 10; /* may be a relay's */
    cr_assert_not(is_taken_for_own(addr));
}

Test(control_loop_alone, who_is_alone_holds_its_port_listens_to_nobody_and_dials_nobody,
     .fini = stop)
{
    struct kvf_addr_shm listen_at = {.family = 4, .addr = {127, 0, 0, 1}};
    cr_assert_eq(create_on(&listen_at, true), 0);
    struct kvf_addr_shm addr = address();
    struct sockaddr_storage name;
    socklen_t bytes;
    kvf_socket_address(&addr, &name, &bytes);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(connect(fd, (struct sockaddr *)&name, bytes), -1);
    cr_assert_eq(errno, ECONNREFUSED);
    close(fd);
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    cr_assert_eq(bind(fd, (struct sockaddr *)&name, bytes), -1);
    cr_assert_eq(errno, EADDRINUSE);
    close(fd);
    cr_assert(is_taken_for_own(addr));
    addr.port++;
    kvf_control_connect(control, 1000, 0, &addr);
    cr_assert_eq(core.failed, 1);
    cr_assert_eq(core.failed_err, ENETUNREACH);
}
