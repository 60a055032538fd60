/* A sysfs that lies, is broken, or changes while it is read: an answer or a refusal, each time, and nothing
 * else. */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "tests/unit/sysfs_tree.h"

TestSuite(host_placement_world, .init = tree_open, .fini = tree_close);

#define CARD "devices/pci0000:40/0000:40:01.0/0000:41:00.0"
#define OTHER "devices/pci0000:80/0000:80:01.0/0000:81:00.0"

static void two_cards(void)
{
    tree_node(0, "0-3", "10 20");
    tree_node(1, "4-7", "20 10");
    tree_cores(0, 4, 4);
    tree_pci(CARD, 0, "0-3");
    tree_nic(CARD, "mlx5_0", "eth0");
    tree_pci(OTHER, 1, "4-7");
    tree_nic(OTHER, "mlx5_1", "eth1");
}

/* What must hold of any answer. */
static void expect_sound(int rc)
{
    cr_assert(rc == 0 || rc == -ENODEV || rc == -EINVAL, "%d", rc);
    cr_assert_lt(strlen(why), sizeof(why));
    cr_assert_eq(why[strcspn(why, "\n\r\033")], '\0');
    if (rc != 0) {
        cr_assert_neq(why[0], '\0');
        cr_assert_eq(placed.rails.count, 0);
        return;
    }
    cr_assert(placed.rails.count >= 1 && placed.rails.count <= KVF_PLACEMENT_RAILS_MAX);
    cr_assert(placed.rails.memory_node >= -1 && placed.rails.memory_node <= 1023);
    cr_assert_leq(placed.near_cpu_count, placed.cpu_count);
    for (uint32_t i = 0; i < placed.cpu_count; i++) {
        cr_assert_lt(placed.cpus[i], 8);
    }
}

Test(host_placement_world, a_node_that_is_garbage_is_unknown)
{
    static const char *const garbage[] = {"banana", "",    "-7",   "99999999999999999999",
                                          "1\n2",   "0x0", "1024", "\001"};
    two_cards();
    for (size_t i = 0; i < sizeof(garbage) / sizeof(garbage[0]); i++) {
        tree_file(CARD "/numa_node", "%s", garbage[i]);
        cr_assert_eq(ask("mlx5_0", "auto", KVF_CPU_AUTO, 0, 8), 0, "%s", why);
        cr_assert_eq(placed.rails.at[0].node, -1, "'%s'", garbage[i]);
        expect_sound(0);
        cr_assert_eq(ask("auto", "node0", KVF_CPU_AUTO, 0, 8), 0, "%s", why);
        cr_assert_str_eq(rails(), "mlx5_1", "'%s' was taken for a node", garbage[i]);
    }
}

Test(host_placement_world, a_list_of_processors_that_is_garbage_gives_way_to_the_nodes)
{
    static const char *const garbage[] = {"banana", "", "3-1", "0-99999999", "8-900"};
    two_cards();
    for (size_t i = 0; i < sizeof(garbage) / sizeof(garbage[0]); i++) {
        tree_file(OTHER "/local_cpulist", "%s\n", garbage[i]);
        cr_assert_eq(ask("mlx5_1", "auto", KVF_CPU_AUTO, 0, 8), 0, "%s", why);
        cr_assert_eq(placed.near_cpu_count, 4, "'%s'", garbage[i]);
        cr_assert_eq(placed.cpus[0], 7);
    }
    tree_file("devices/system/node/node1/cpulist", "banana\n");
    cr_assert_eq(ask("mlx5_1", "auto", KVF_CPU_AUTO, 0, 8), 0, "%s", why);
    cr_assert_eq(placed.near_cpu_count, 0);
    cr_assert_eq(placed.cpu_count, 7);
    expect_sound(0);
}

Test(host_placement_world, a_state_that_is_garbage_is_no_active_port)
{
    static const char *const garbage[] = {"",
                                          "ACTIVE",
                                          "4",
                                          "44: ACTIVE",
                                          "4 ACTIVE",
                                          ": 4",
                                          "5: ACTIVE_DEFER",
                                          "-4: ACTIVE",
                                          "99999999999999999999: ACTIVE"};
    two_cards();
    for (size_t i = 0; i < sizeof(garbage) / sizeof(garbage[0]); i++) {
        tree_port_state("mlx5_0", 1, garbage[i]);
        cr_assert_eq(ask("auto", "node0", KVF_CPU_AUTO, 0, 8), 0, "%s", why);
        cr_assert_str_eq(rails(), "mlx5_1", "'%s' was taken for active", garbage[i]);
        expect_sound(0);
    }
}

Test(host_placement_world, entries_that_lead_nowhere_or_in_circles_are_left_out)
{
    char path[1024];
    two_cards();
    tree_link("class/infiniband/mlx5_2", "devices/gone");
    tree_path(path, "class/infiniband/mlx5_3");
    cr_assert_eq(symlink("mlx5_3", path), 0);
    tree_file("class/infiniband/mlx5_4", "a file\n");
    tree_folder("class/infiniband/mlx5_5/ports/0");
    tree_folder("class/infiniband/mlx5_6/ports/256");
    tree_folder("class/infiniband/mlx5_7/ports/1x");
    tree_folder("class/infiniband/mlx5_8/ports/99999999999999999999");
    tree_port("class/infiniband/mlx5_9", 1, "4: ACTIVE", "Ethernet");
    tree_path(path, "class/infiniband/mlx5_9/device");
    cr_assert_eq(symlink("device", path), 0);
    cr_assert_eq(ask("auto", "auto", KVF_CPU_AUTO, 0, 8), 0, "%s", why);
    cr_assert_str_eq(rails(), "mlx5_0");
    for (int i = 2; i <= 8; i++) {
        char name[32];
        snprintf(name, sizeof(name), "mlx5_%d (it", i);
        cr_assert_neq(strstr(why, name), NULL, "%s: %s", name, why);
    }
    cr_assert_neq(strstr(why, "mlx5_9 (how near is unknown)"), NULL, "%s", why);
    cr_assert_eq(ask("mlx5_9", "auto", KVF_CPU_AUTO, 0, 8), 0, "%s", why);
    cr_assert_eq(placed.rails.at[0].node, -1);
}

Test(host_placement_world, a_device_that_leads_out_of_the_tree_is_as_one_of_software)
{
    char path[1024];
    two_cards();
    tree_path(path, CARD "/infiniband/mlx5_0/device");
    cr_assert_eq(unlink(path), 0);
    cr_assert_eq(symlink("/", path), 0);
    cr_assert_eq(ask("mlx5_0", "node0", KVF_CPU_AUTO, 0, 8), 0, "%s", why);
    /* The network device still tells where the card is, if there is one. */
    tree_remove(CARD "/net");
    cr_assert_eq(ask("mlx5_0", "auto", KVF_CPU_AUTO, 0, 8), 0, "%s", why);
    cr_assert_eq(placed.rails.at[0].node, -1);
    expect_sound(0);
}

Test(host_placement_world, more_devices_than_anybody_has_are_bounded)
{
    tree_node(0, "0-7", "10");
    for (int i = 0; i < 400; i++) {
        char path[64];
        snprintf(path, sizeof(path), "class/infiniband/mlx5_%d", i);
        tree_port(path, 1, i == 255 ? "4: ACTIVE" : "1: DOWN", "InfiniBand");
    }
    cr_assert_eq(ask("auto", "auto", KVF_CPU_AUTO, 0, 8), 0, "%s", why);
    cr_assert_str_eq(rails(), "mlx5_255");
    expect_sound(0);
    cr_assert_neq(strstr(why, " more"), NULL, "%s", why);
    tree_port_state("mlx5_255", 1, "1: DOWN");
    cr_assert_eq(ask("auto", "auto", KVF_CPU_AUTO, 0, 8), -ENODEV);
    expect_sound(-ENODEV);
    cr_assert_neq(strstr(why, " more"), NULL, "%s", why);
}

/* ---- while it is read ---------------------------------------------------------------------------------- */

static _Atomic uint32_t is_over;

/* A device that goes and comes, at every moment between two reads sooner or later. */
static void *come_and_go(void *arg)
{
    char here[1024];
    char away[1024];
    (void)arg;
    tree_path(here, OTHER);
    tree_path(away, "away");
    while (atomic_load(&is_over) == 0) {
        (void)rename(here, away);
        (void)rename(away, here);
    }
    return NULL;
}

Test(host_placement_world, a_device_that_vanishes_and_returns_is_there_or_not)
{
    pthread_t thread;
    uint32_t seen[2] = {0, 0};
    two_cards();
    cr_assert_eq(pthread_create(&thread, NULL, come_and_go, NULL), 0);
    for (int i = 0; i < 1500; i++) {
        int rc = ask("mlx5_1", i % 2 == 0 ? "auto" : "0000:41:00.0", KVF_CPU_AUTO, 0, 8);
        expect_sound(rc);
        seen[rc == 0]++;
    }
    atomic_store(&is_over, 1);
    pthread_join(thread, NULL);
    cr_assert_eq(ask("mlx5_1", "auto", KVF_CPU_AUTO, 0, 8), 0, "%s", why);
    printf("there %u times, away %u times\n", seen[1], seen[0]);
}

static uint32_t seed = 20260401;

static uint32_t draw(uint32_t below)
{
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % below;
}

static char files[256][256];
static uint32_t file_count;

static int note_file(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)ftw;
    if ((kind == FTW_F || kind == FTW_SL) && file_count < 256) {
        snprintf(files[file_count++], sizeof(files[0]), "%s", path + strlen(tree_root) + 1);
    }
    return 0;
}

/* Spoils one file or link after another in random ways; whatever is left of the tree has a sound answer. */
Test(host_placement_world, random_bytes_anywhere_have_a_sound_answer)
{
    static const char *const hints[] = {"auto", "node1", "0000:41:00.0"};
    for (int round = 0; round < 40; round++) {
        two_cards();
        file_count = 0;
        (void)nftw(tree_root, note_file, 16, FTW_PHYS);
        cr_assert_geq(file_count, 25);
        for (int step = 0; step < 25; step++) {
            char full[1024];
            char bytes[64];
            tree_path(full, files[draw(file_count)]);
            uint32_t count = draw(sizeof(bytes));
            for (uint32_t i = 0; i < count; i++) {
                bytes[i] = draw(3) == 0 ? (char)draw(256) : "0123456789-,: AE\n"[draw(17)];
            }
            bool was_link = unlink(full) == 0 && draw(4) == 0;
            if (was_link) {
                (void)symlink(draw(2) == 0 ? "." : "../..", full);
            } else if (draw(8) != 0) {
                FILE *f = fopen(full, "w");
                if (f != NULL) {
                    (void)fwrite(bytes, 1, count, f);
                    (void)fclose(f);
                }
            }
            expect_sound(ask("auto", hints[draw(3)], KVF_CPU_AUTO, 0, 8));
        }
        tree_close();
        cr_assert_eq(mkdir(tree_root, 0700), 0);
    }
}
