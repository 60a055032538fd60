#include <criterion/criterion.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sidecar/host/packet.h"

static int pair[2];

static void setup(void)
{
    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
}
TestSuite(host_packet, .init = setup);

static int open_fds(void)
{
    int count = 0;
    for (int fd = 0; fd < 256; fd++) {
        count += fcntl(fd, F_GETFD) >= 0;
    }
    return count;
}

Test(host_packet, descriptors_arrive_closed_on_exec)
{
    char bytes[16] = "hello";
    int fds[KVF_PACKET_FDS_MAX];
    int count = 0;
    cr_assert_eq(kvf_packet_send(pair[0], bytes, sizeof(bytes), pair, 2), 0);
    memset(bytes, 0, sizeof(bytes));
    cr_assert_eq(kvf_packet_receive(pair[1], bytes, sizeof(bytes), fds, &count), sizeof(bytes));
    cr_assert_str_eq(bytes, "hello");
    cr_assert_eq(count, 2);
    cr_assert_eq(fcntl(fds[0], F_GETFD), FD_CLOEXEC);
    kvf_close_fds(fds, count);
    cr_assert_eq(fds[1], -1);
}

Test(host_packet, nothing_yet_and_hung_up_are_different_answers)
{
    char byte;
    int fds[KVF_PACKET_FDS_MAX];
    int count = 0;
    cr_assert_eq(kvf_packet_receive(pair[1], &byte, 1, fds, &count), -EAGAIN);
    close(pair[0]);
    cr_assert_eq(kvf_packet_receive(pair[1], &byte, 1, fds, &count), 0);
}

Test(host_packet, what_is_too_long_or_empty_leaks_no_descriptor)
{
    char bytes[16] = {0};
    int fds[KVF_PACKET_FDS_MAX];
    int count = 0;
    int before = open_fds();
    cr_assert_eq(kvf_packet_send(pair[0], bytes, sizeof(bytes), pair, 2), 0);
    cr_assert_eq(kvf_packet_receive(pair[1], bytes, 4, fds, &count), -EPROTO);
    cr_assert_eq(kvf_packet_send(pair[0], bytes, 0, pair, 1), 0);
    cr_assert_eq(kvf_packet_receive(pair[1], bytes, sizeof(bytes), fds, &count), 0);
    cr_assert_eq(open_fds(), before);
}

Test(host_packet, a_reader_that_does_not_read_never_blocks_the_sender)
{
    char bytes[1024] = {0};
    int err = 0;
    int sent = 0;
    while (err == 0 && sent < 100000) {
        err = kvf_packet_send(pair[0], bytes, sizeof(bytes), NULL, 0);
        sent++;
    }
    cr_assert_eq(err, -EAGAIN);
}
