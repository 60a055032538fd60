/* Which processor and which rails a daemon takes: by what is allowed here and now, what its run directory's other
 * daemons have, and, for transport verbs alone, where the devices are. */
#include "sidecar/run_dir.h"
#include "tests/unit/sysfs_tree.h"

static char folder[72];
static struct kvf_config config;
static struct kvf_run_dir dirs[3];
static struct kvf_rails rails_of[3];
static int cpus[KVF_CPUS_MAX];
static int cpu_count;

/* A tree of two nodes over the processors that this test may really use: the last one is alone on node 1, and a card
 * of each node. */
static void setup(void)
{
    char list[64];
    tree_open();
    snprintf(folder, sizeof(folder), "%s/run", tree_root);
    tree_folder("run");
    cpu_count = kvf_cpu_allowed(cpus, KVF_CPUS_MAX);
    snprintf(list, sizeof(list), "%d", cpus[cpu_count - 1]);
    tree_node(1, list, "20 10");
    tree_pci("devices/pci0000:80/0000:81:00.0", 1, list);
    tree_nic("devices/pci0000:80/0000:81:00.0", "mlx5_1", NULL);
    if (cpu_count > 1) {
        snprintf(list, sizeof(list), "0-%d", cpus[cpu_count - 2]);
    }
    tree_node(0, list, "10 20");
    tree_pci("devices/pci0000:40/0000:41:00.0", 0, list);
    tree_nic("devices/pci0000:40/0000:41:00.0", "mlx5_0", NULL);
    memset(&config, 0, sizeof(config));
    snprintf(config.run_dir, sizeof(config.run_dir), "%s", folder);
    snprintf(config.sysfs, sizeof(config.sysfs), "%s", tree_root);
    snprintf(config.rdma_devices, sizeof(config.rdma_devices), "auto");
    snprintf(config.rdma_near, sizeof(config.rdma_near), "auto");
    config.rdma_rails = KVF_PLACEMENT_RAILS_MAX;
    config.cpu = KVF_CPU_AUTO;
    config.transport = KVF_CONFIG_VERBS;
}
TestSuite(run_dir_place, .init = setup, .fini = tree_close);

/* Daemon `i` of the run directory, which lives on until the test ends. */
static int place(int i, int *ret_cpu)
{
    static struct kvf_config configs[3];
    snprintf(config.name, sizeof(config.name), "gpu%d", i);
    configs[i] = config;
    cr_assert_eq(kvf_run_dir_open(&configs[i], &dirs[i]), 0);
    return kvf_run_dir_place(&dirs[i], &rails_of[i], ret_cpu);
}

static void need_cpus(int count)
{
    if (cpu_count < count) {
        cr_skip_test("needs %d allowed processors, has %d", count, cpu_count);
    }
}

Test(run_dir_place, without_verbs_no_device_is_looked_at)
{
    need_cpus(2);
    int cpu = 77;
    config.transport = KVF_CONFIG_TCP;
    snprintf(config.rdma_devices, sizeof(config.rdma_devices), "nothing");
    cr_assert_eq(place(0, &cpu), 0);
    cr_assert_eq(cpu, cpus[cpu_count - 1]);
    cr_assert_eq(rails_of[0].count, 0);
    cr_assert_eq(rails_of[0].memory_node, -1);
    /* The last is taken now. */
    cr_assert_eq(place(1, &cpu), 0);
    cr_assert_eq(cpu, cpu_count > 2 ? cpus[cpu_count - 2] : KVF_CPU_NONE);
}

Test(run_dir_place, verbs_runs_near_its_first_rail)
{
    need_cpus(2);
    int cpu = 77;
    snprintf(config.rdma_devices, sizeof(config.rdma_devices), "mlx5_1,mlx5_0");
    cr_assert_eq(place(0, &cpu), 0);
    cr_assert_eq(cpu, cpus[cpu_count - 1]);
    cr_assert_eq(rails_of[0].count, 2);
    cr_assert_eq(rails_of[0].memory_node, 1);
    cr_assert_str_eq(rails_of[0].at[0].name, "mlx5_1");
    /* The near one is another daemon's: rails and node stay, the processor is another one, or none is left. */
    cr_assert_eq(place(1, &cpu), 0);
    cr_assert_eq(rails_of[1].memory_node, 1);
    cr_assert_neq(cpu, cpus[cpu_count - 1]);
}

Test(run_dir_place, the_node_comes_before_the_highest_number)
{
    need_cpus(2);
    int cpu = 77;
    snprintf(config.rdma_devices, sizeof(config.rdma_devices), "mlx5_0");
    cr_assert_eq(place(0, &cpu), 0);
    cr_assert_eq(cpu, cpus[cpu_count - 2]);
    cr_assert_eq(rails_of[0].memory_node, 0);
}

Test(run_dir_place, a_processor_that_was_asked_for_is_taken_wherever_it_is)
{
    int cpu = 77;
    config.cpu = cpus[0];
    snprintf(config.rdma_devices, sizeof(config.rdma_devices), "mlx5_1");
    cr_assert_eq(place(0, &cpu), 0);
    cr_assert_eq(cpu, cpus[0]);
    cr_assert_eq(rails_of[0].memory_node, 1);
    config.cpu = KVF_CPU_NONE;
    cr_assert_eq(place(1, &cpu), 0);
    cr_assert_eq(cpu, KVF_CPU_NONE);
    cr_assert_eq(rails_of[1].count, 1);
}

Test(run_dir_place, a_name_that_is_not_there_is_no_start_and_auto_without_devices_is_one)
{
    need_cpus(2);
    int cpu = 77;
    snprintf(config.rdma_devices, sizeof(config.rdma_devices), "mlx5_7");
    cr_assert_eq(place(0, &cpu), -EINVAL);
    cr_assert_eq(cpu, 77);
    cr_assert_eq(kvf_run_dir_check(&config), -EINVAL);
    snprintf(config.rdma_devices, sizeof(config.rdma_devices), "auto");
    cr_assert_eq(kvf_run_dir_check(&config), 0);
    tree_remove("class/infiniband");
    cr_assert_eq(place(1, &cpu), 0);
    cr_assert_eq(rails_of[1].count, 0);
    cr_assert_eq(rails_of[1].memory_node, -1);
    cr_assert_eq(cpu, cpus[cpu_count - 1], "as with any transport");
    cr_assert_eq(kvf_run_dir_check(&config), 0);
}
