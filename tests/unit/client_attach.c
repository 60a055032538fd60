#include "client_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static struct kvf_attach_opts good(const struct fake_daemon *fake)
{
    return (struct kvf_attach_opts){.size_bytes = sizeof(struct kvf_attach_opts),
                                    .socket_path = fake->path};
}

static void expect(const struct kvf_attach_opts *opts, int code)
{
    kvf_client *client = NULL;
    int err = kvf_attach(opts, &client);
    cr_assert_eq(err, code, "%s and not %s", kvf_code_name(err), kvf_code_name(code));
    if (err == 0) {
        cr_assert_eq(kvf_detach(client, 1000, NULL), 0);
    } else {
        cr_assert_null(client);
    }
}

Test(client_attach, limits_out_of_range_are_refused_without_a_daemon)
{
    struct fake_daemon fake;
    fake_start(&fake);
    struct kvf_attach_opts o = good(&fake);
    o.rooms_max = 65537;
    expect(&o, -KVF_E_LIMIT_RANGE);
    o = good(&fake);
    o.cmd_slots = 1000;
    expect(&o, -KVF_E_LIMIT_RANGE);
    o.cmd_slots = 131072;
    expect(&o, -KVF_E_LIMIT_RANGE);
    o = good(&fake);
    o.event_slots = 1;
    expect(&o, -KVF_E_LIMIT_RANGE);
    o = good(&fake);
    o.arena_bytes = 2048;
    expect(&o, -KVF_E_LIMIT_RANGE);
    o.arena_bytes = 1u << 29;
    expect(&o, -KVF_E_LIMIT_RANGE);
    o = good(&fake);
    o.size_bytes = 4;
    expect(&o, -KVF_E_OPTION);
    o = good(&fake);
    o.pad_[3] = 1;
    expect(&o, -KVF_E_OPTION);
    o = good(&fake);
    o.client_name = "a name that is longer than the sixty-three bytes the daemon keeps of it";
    expect(&o, -KVF_E_OPTION);
    o = good(&fake);
    kvf_client *client;
    cr_assert_eq(kvf_attach(NULL, &client), -EINVAL);
    cr_assert_eq(kvf_attach(&o, NULL), -EINVAL);
    expect(&o, 0);
    cr_assert_eq(atomic_load(&fake.attached_count), 1);
    fake_stop(&fake);
}

Test(client_attach, nobody_there_is_said_at_the_deadline)
{
    struct fake_daemon fake;
    fake_start(&fake);
    fake_supervisor_kill(&fake);
    struct kvf_attach_opts o = good(&fake);
    expect(&o, -KVF_E_NO_DAEMON);
    o.timeout_ms = 100;
    uint64_t begin_ns = kvf_client_now_ns();
    expect(&o, -KVF_E_NO_DAEMON);
    cr_assert_geq(kvf_client_now_ns() - begin_ns, UINT64_C(100000000));
    fake_stop(&fake);
}

static void *start_later(void *arg)
{
    usleep(100000);
    fake_supervisor_start(arg);
    return NULL;
}

Test(client_attach, daemon_that_starts_later_is_joined)
{
    struct fake_daemon fake;
    fake_start(&fake);
    fake_supervisor_kill(&fake);
    pthread_t thread;
    pthread_create(&thread, NULL, start_later, &fake);
    struct kvf_attach_opts o = good(&fake);
    o.timeout_ms = 10000;
    expect(&o, 0);
    pthread_join(thread, NULL);
    fake_stop(&fake);
}

Test(client_attach, refusals_come_back_as_codes)
{
    struct fake_daemon fake;
    fake_start(&fake);
    struct kvf_attach_opts o = good(&fake);
    fake.refuse_op = KVF_REQ_ATTACH;
    fake.refuse_code = KVF_E_CLIENTS_FULL;
    expect(&o, -KVF_E_CLIENTS_FULL);
    fake.refuse_code = ESHUTDOWN;
    expect(&o, -ESHUTDOWN);
    fake.refuse_code = KVF_E_LAYOUT;
    expect(&o, -KVF_E_LAYOUT);
    fake.refuse_op = 0;
    fake.layout_major = KVF_LAYOUT_MAJOR + 1;
    expect(&o, -KVF_E_LAYOUT);
    fake.layout_major = KVF_LAYOUT_MAJOR;
    fake.is_garbled = true;
    expect(&o, -KVF_E_PROTOCOL);
    fake_stop(&fake);
}

Test(client_attach, socket_is_found_by_option_then_environment_then_run_directory)
{
    struct fake_daemon fake;
    fake_start(&fake);
    struct kvf_attach_opts o = {.size_bytes = sizeof o};
    unsetenv("KVFENCE_SOCKET");
    setenv("KVFENCE_RUN_DIR", fake.dir, 1);
    expect(&o, 0);
    o.daemon_name = "gpu1";
    expect(&o, -KVF_E_NO_DAEMON);
    o.daemon_name = "../gpu0";
    expect(&o, -KVF_E_OPTION);
    o.daemon_name = "";
    expect(&o, -KVF_E_OPTION);
    o.daemon_name = NULL;
    setenv("KVFENCE_SOCKET", "/nowhere/at.all", 1);
    expect(&o, -KVF_E_NO_DAEMON);
    o.socket_path = fake.path;
    expect(&o, 0);
    char longer[200];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    o.socket_path = longer;
    expect(&o, -KVF_E_OPTION);
    fake_stop(&fake);
}

static uint32_t count_fds(void)
{
    uint32_t count = 0;
    for (int fd = 0; fd < 1024; fd++) {
        count += dup2(fd, fd) >= 0;
    }
    return count;
}

static uint32_t count_maps(void)
{
    uint32_t count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    while (fgets(line, sizeof line, maps) != NULL) {
        count += strstr(line, "memfd") != NULL;
    }
    fclose(maps);
    return count;
}

Test(client_attach, leaves_no_descriptor_and_no_mapping_behind)
{
    struct world w;
    uint32_t fds = count_fds();
    for (int i = 0; i < 20; i++) {
        world_begin(&w);
        world_sink(&w, 0, 4);
        kvf_room room = world_source(&w);
        cr_assert_eq(world_submit(&w, room, 10, 3, 0, 0), 0);
        if (i % 2 == 0) {
            fake_supervisor_kill(&w.fake);
            fake_worker_kill(&w.fake);
            (void)kvf_daemon_check(w.client);
        }
        world_end(&w);
    }
    cr_assert_eq(count_fds(), fds);
    cr_assert_eq(count_maps(), 0);
}
