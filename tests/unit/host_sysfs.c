/* Small files as the world writes them. */
#include <fcntl.h>

#include "sidecar/host/sysfs.h"
#include "tests/unit/sysfs_tree.h"

TestSuite(host_sysfs, .init = tree_open, .fini = tree_close);

static uint32_t count_of(const struct kvf_cpus *cpus)
{
    uint32_t count = 0;
    for (uint32_t cpu = 0; cpu < KVF_CPUS_MAX; cpu++) {
        count += kvf_cpus_has(cpus, cpu);
    }
    return count;
}

Test(host_sysfs, lists_of_processors_are_read_as_the_kernel_writes_them)
{
    static const struct {
        const char *text;
        uint32_t count;
        uint32_t has;
    } good[] = {{"0", 1, 0},       {"0-3", 4, 3},           {"0-55,112-167", 112, 167},
                {"1,3,5-6", 4, 6}, {"4095", 1, 4095},       {"0-4096", 4096, 4095},
                {"7,7,7-7", 1, 7}, {"0,4000-65535", 97, 0}, {"00-01", 2, 1}};
    struct kvf_cpus cpus;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        cr_assert_eq(kvf_cpus_parse(good[i].text, &cpus), 0, "%s", good[i].text);
        cr_assert_eq(count_of(&cpus), good[i].count, "%s", good[i].text);
        cr_assert(kvf_cpus_has(&cpus, good[i].has), "%s", good[i].text);
    }
    cr_assert_eq(kvf_cpus_parse("", &cpus), 0);
    cr_assert_eq(count_of(&cpus), 0);
    cr_assert_not(kvf_cpus_has(&cpus, KVF_CPUS_MAX));
}

Test(host_sysfs, what_is_no_list_is_refused_and_the_output_untouched)
{
    static const char *const bad[] = {
        ",",   "1,",      ",1",  "1,,2", "3-1",   "-1",      "1-",
        "a",   "1 ",      " 1",  "0x3",  "1-2-3", "0-65536", "99999999999999999999",
        "1;2", "0-3:1/2", "1\t2"};
    struct kvf_cpus cpus;
    struct kvf_cpus before;
    memset(&cpus, 0x5a, sizeof(cpus));
    before = cpus;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        cr_assert_eq(kvf_cpus_parse(bad[i], &cpus), -EINVAL, "'%s' was taken", bad[i]);
        cr_assert_eq(memcmp(&cpus, &before, sizeof(cpus)), 0, "'%s'", bad[i]);
    }
}

Test(host_sysfs, names_are_ordered_by_their_numbers)
{
    static const char *const names[] = {"",       "mlx5",    "mlx5_0",  "mlx5_00",
                                        "mlx5_1", "mlx5_2",  "mlx5_10", "mlx5_10a",
                                        "mlx6_0", "mlx10_0", "rocep1s0"};
    int count = (int)(sizeof(names) / sizeof(names[0]));
    for (int i = 0; i < count; i++) {
        for (int k = 0; k < count; k++) {
            int order = kvf_sysfs_compare(names[i], names[k]);
            cr_assert_eq((order > 0) - (order < 0), (i > k) - (i < k), "%s, %s", names[i],
                         names[k]);
        }
    }
}

Test(host_sysfs, numbers_are_whole_within_bounds_and_alone)
{
    static const struct {
        const char *text;
        int rc;
        int value;
    } cases[] = {{"0\n", 0, 0},
                 {"-1\n", 0, -1},
                 {"1023", 0, 1023},
                 {"1024", -EINVAL, 0},
                 {"-2", -EINVAL, 0},
                 {"", -EINVAL, 0},
                 {"-", -EINVAL, 0},
                 {"1 ", -EINVAL, 0},
                 {"+1", -EINVAL, 0},
                 {"1\n1", -EINVAL, 0},
                 {"0x1", -EINVAL, 0},
                 {"9999999999", -EINVAL, 0},
                 {"99999999999999999999", -EFBIG, 0}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int value = 77;
        tree_file("number", "%s", cases[i].text);
        cr_assert_eq(kvf_sysfs_int(tree_root, "number", -1, 1023, &value), cases[i].rc, "'%s'",
                     cases[i].text);
        cr_assert_eq(value, cases[i].rc == 0 ? cases[i].value : 77, "'%s'", cases[i].text);
    }
}

Test(host_sysfs, only_regular_files_of_printable_text_and_bounded_length_are_read)
{
    char path[1024];
    char text[8] = "before";
    tree_folder("folder");
    cr_assert_eq(kvf_sysfs_text(tree_root, "folder", text, sizeof(text)), -EINVAL);
    tree_path(path, "pipe");
    cr_assert_eq(mkfifo(path, 0600), 0);
    cr_assert_eq(kvf_sysfs_text(tree_root, "pipe", text, sizeof(text)), -EINVAL);
    tree_file("escape", "\033[31m");
    cr_assert_eq(kvf_sysfs_text(tree_root, "escape", text, sizeof(text)), -EINVAL);
    tree_file("nul", "a%cb", 0);
    cr_assert_eq(kvf_sysfs_text(tree_root, "nul", text, sizeof(text)), -EINVAL);
    tree_file("long", "12345678");
    cr_assert_eq(kvf_sysfs_text(tree_root, "long", text, sizeof(text)), -EFBIG);
    tree_path(path, "endless");
    cr_assert_eq(symlink("/dev/zero", path), 0);
    cr_assert_eq(kvf_sysfs_text(tree_root, "endless", text, sizeof(text)), -EINVAL);
    tree_file("huge", "%s", "");
    tree_path(path, "huge");
    cr_assert_eq(truncate(path, (off_t)1 << 40), 0);
    cr_assert_eq(kvf_sysfs_text(tree_root, "huge", text, sizeof(text)), -EFBIG);
    cr_assert_eq(kvf_sysfs_text(tree_root, "nothing", text, sizeof(text)), -ENOENT);
    cr_assert_str_eq(text, "before");
    tree_file("fits", "1234567\n");
    cr_assert_eq(kvf_sysfs_text(tree_root, "fits", text, sizeof(text)), 0);
    cr_assert_str_eq(text, "1234567");
}

Test(host_sysfs, links_are_followed_within_the_root_and_round_in_circles_never)
{
    char path[1024];
    char real[KVF_SYSFS_PATH_BYTES] = "before";
    tree_path(path, "a");
    cr_assert_eq(symlink("b", path), 0);
    tree_path(path, "b");
    cr_assert_eq(symlink("a", path), 0);
    cr_assert_eq(kvf_sysfs_resolve(tree_root, "a", real, sizeof(real)), -ELOOP);
    tree_path(path, "out");
    cr_assert_eq(symlink("/etc", path), 0);
    cr_assert_eq(kvf_sysfs_resolve(tree_root, "out", real, sizeof(real)), -EXDEV);
    cr_assert_eq(kvf_sysfs_resolve(tree_root, "..", real, sizeof(real)), -EXDEV);
    cr_assert_eq(kvf_sysfs_resolve(tree_root, "none", real, sizeof(real)), -ENOENT);
    tree_folder("devices/pci0000:00/0000:00:01.0");
    tree_link("class/x", "devices/pci0000:00/0000:00:01.0");
    cr_assert_eq(kvf_sysfs_resolve(tree_root, "class/x", real, 8), -ENAMETOOLONG);
    cr_assert_str_eq(real, "before");
    cr_assert_eq(kvf_sysfs_resolve(tree_root, "class/x", real, sizeof(real)), 0);
    cr_assert_str_eq(real, "devices/pci0000:00/0000:00:01.0");
}

Test(host_sysfs, of_more_names_than_wanted_the_first_ones_are_kept)
{
    struct kvf_sysfs_name names[3];
    for (int i = 40; i >= 0; i--) {
        char path[64];
        snprintf(path, sizeof(path), "list/n%d", i * 7 % 41);
        tree_folder(path);
    }
    tree_folder("list/other");
    tree_folder("list/n1\nn2"); /* would be two lines of a log */
    cr_assert_eq(kvf_sysfs_list(tree_root, "list", "n", names, 3), 41);
    cr_assert_str_eq(names[0].text, "n0");
    cr_assert_str_eq(names[1].text, "n1");
    cr_assert_str_eq(names[2].text, "n2");
    cr_assert_eq(kvf_sysfs_list(tree_root, "nothing", "", names, 3), -ENOENT);
}
