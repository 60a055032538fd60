/* Which supervisors of a name wrote through no devices but ours: only for these does a flush over ours prove what they
 * left in memory of devices. */
#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sidecar/run_dir.h"

#define ID(n) ((UINT64_C(1) << 62) + ((uint64_t)(n) << 24))

static char folder[] = "/tmp/kvfence-run-dir-XXXXXX";
static char path[128];
static struct kvf_config config;
static struct kvf_run_dir dir;

static void setup(void)
{
    cr_assert_neq(mkdtemp(folder), NULL);
    (void)snprintf(config.name, sizeof config.name, "gpu0");
    (void)snprintf(config.run_dir, sizeof config.run_dir, "%s", folder);
    (void)snprintf(path, sizeof path, "%s/gpu0.rails", folder);
    cr_assert_eq(kvf_run_dir_open(&config, &dir), 0);
}

static void teardown(void)
{
    (void)unlink(path);
    (void)snprintf(path, sizeof path, "%s/gpu0.lock", folder);
    (void)unlink(path);
    (void)rmdir(folder);
}

/* names: "mlx5_0,mlx5_1" */
static struct kvf_covered start(uint32_t id, const char *names, uint32_t port)
{
    struct kvf_rails rails = {.memory_node = -1};
    char copy[256];
    char *save = NULL;
    (void)snprintf(copy, sizeof copy, "%s", names);
    for (char *name = strtok_r(copy, ",", &save); name != NULL;
         name = strtok_r(NULL, ",", &save)) {
        (void)snprintf(rails.at[rails.count].name, sizeof rails.at[0].name, "%s", name);
        rails.at[rails.count++].port = 1;
    }
    struct kvf_covered covered = {0};
    cr_assert_eq(kvf_run_dir_note_rails(&dir, ID(id), &rails, port, &covered), 0);
    cr_assert(kvf_covered_has(&covered, ID(id) | 5u), "its own workers write through its own");
    return covered;
}

Test(run_dir_rails, a_supervisor_with_fewer_devices_does_not_cover_one_with_more, .init = setup,
     .fini = teardown)
{
    (void)start(1, "mlx5_0,mlx5_1", 0);
    struct kvf_covered fewer = start(2, "mlx5_0", 0);
    cr_assert_not(kvf_covered_has(&fewer, ID(1) | 1u));
    struct kvf_covered others = start(3, "mlx5_2,mlx5_3", 0);
    cr_assert_not(kvf_covered_has(&others, ID(1)));
    cr_assert_not(kvf_covered_has(&others, ID(2)));
    struct kvf_covered all = start(4, "mlx5_1,mlx5_2,mlx5_0", 0);
    cr_assert(kvf_covered_has(&all, ID(1)), "it is remembered over those between");
    cr_assert(kvf_covered_has(&all, ID(2)));
    cr_assert_not(kvf_covered_has(&all, ID(3)));
}

Test(run_dir_rails, a_name_that_begins_another_or_has_another_port_is_another_device,
     .init = setup, .fini = teardown)
{
    (void)start(1, "mlx5_1", 1);
    struct kvf_covered longer = start(2, "mlx5_10,amlx5_1", 1);
    cr_assert_not(kvf_covered_has(&longer, ID(1)));
    struct kvf_covered port = start(3, "mlx5_1", 2);
    cr_assert_not(kvf_covered_has(&port, ID(1)));
    struct kvf_covered same = start(4, "mlx5_1", 1);
    cr_assert(kvf_covered_has(&same, ID(1)));
}

Test(run_dir_rails, one_that_nobody_remembers_is_not_covered, .init = setup, .fini = teardown)
{
    struct kvf_covered first = start(1, "mlx5_0", 0);
    cr_assert_not(kvf_covered_has(&first, ID(2)));
    cr_assert_not(kvf_covered_has(&first, 0));
    cr_assert_eq(unlink(path), 0);
    struct kvf_covered second = start(2, "mlx5_0", 0);
    cr_assert_not(kvf_covered_has(&second, ID(1)));
    for (uint32_t i = 3; i < 3 + KVF_COVERED_MAX; i++) {
        second = start(i, "mlx5_0", 0);
    }
    cr_assert_eq(second.count, KVF_COVERED_MAX);
    cr_assert_not(kvf_covered_has(&second, ID(2)), "the oldest is forgotten");
    cr_assert(kvf_covered_has(&second, ID(4)));
}

/* Names of devices are given anew at each boot, and no memory outlives it. */
Test(run_dir_rails, lines_of_another_boot_and_lines_that_are_none_cover_nobody, .init = setup,
     .fini = teardown)
{
    static const char *const lines[] = {
        "00000000-0000-0000-0000-000000000000 4000000001000000 mlx5_0/1 \n",
        "nobody\n",
        "\n\n\n",
        " 4000000001000000 mlx5_0/1",
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        FILE *file = fopen(path, "w");
        cr_assert_neq(file, NULL);
        cr_assert_geq(fputs(lines[i], file), 0);
        cr_assert_eq(fclose(file), 0);
        struct kvf_covered covered = start(2, "mlx5_0", 0);
        cr_assert_eq(covered.count, 1, "line %zu", i);
    }
}
