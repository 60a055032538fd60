/* Rails and processors on the shapes of real servers. Every tree is made by the test that reads it. */
#include "tests/unit/sysfs_tree.h"

TestSuite(host_placement, .init = tree_open, .fini = tree_close);

static void expect_said(const char *sentence)
{
    cr_assert_neq(strstr(why, sentence), NULL, "said \"%s\"", why);
}

/* ---- rails ------------------------------------------------------------------------------------------- */

Test(host_placement, a_gpu_gets_the_nic_behind_its_own_switch)
{
    tree_hgx(1, true);
    for (int i = 0; i < 8; i++) {
        char name[24];
        snprintf(name, sizeof(name), "mlx5_%d", i);
        cr_assert_eq(ask("auto", hgx_gpu(i, 1), KVF_CPU_AUTO, 0, 224), 0, "%s", why);
        cr_assert_str_eq(rails(), name);
        cr_assert_eq(placed.rails.at[0].near, KVF_NEAR_SWITCH);
        cr_assert_eq(placed.rails.memory_node, i / 4);
        cr_assert(!placed.rails.at[0].is_ethernet && !placed.rails.at[0].is_vf);
        cr_assert_eq(placed.rails.at[0].port, 1);
    }
    cr_assert_str_eq(placed.rails.at[0].netdev, "ibs7");
    expect_said("mlx5_7 port 1 (ibs7) behind the same PCI bridge as 0000:83:00.0");
    expect_said("mlx5_4 (on the node of 0000:83:00.0)");
    expect_said("mlx5_0 (on another node than 0000:83:00.0)");
}

Test(host_placement, two_nics_behind_the_switch_of_two_gpus_are_both_rails)
{
    tree_hgx(2, true);
    cr_assert_eq(ask("auto", hgx_gpu(4, 2), KVF_CPU_AUTO, 0, 224), 0, "%s", why);
    cr_assert_str_eq(rails(), "mlx5_4 mlx5_5");
    cr_assert_eq(ask("auto", hgx_gpu(5, 2), KVF_CPU_AUTO, 0, 224), 0, "%s", why);
    cr_assert_str_eq(rails(), "mlx5_4 mlx5_5");
    tree_port_state("mlx5_4", 1, "1: DOWN");
    cr_assert_eq(ask("auto", hgx_gpu(4, 2), KVF_CPU_AUTO, 0, 224), 0, "%s", why);
    cr_assert_str_eq(rails(), "mlx5_5");
    expect_said("mlx5_4 (port 1 is DOWN)");
    /* Both down: the next nearest are those of the node. */
    tree_port_state("mlx5_5", 1, "2: INIT");
    cr_assert_eq(ask("auto", hgx_gpu(4, 2), KVF_CPU_AUTO, 0, 224), 0, "%s", why);
    cr_assert_str_eq(rails(), "mlx5_6 mlx5_7");
    cr_assert_eq(placed.rails.at[0].near, KVF_NEAR_NODE);
}

Test(host_placement, a_node_as_the_memory_gets_all_nics_of_that_node)
{
    tree_hgx(1, true);
    cr_assert_eq(ask("auto", "node1", KVF_CPU_AUTO, 0, 224), 0, "%s", why);
    cr_assert_str_eq(rails(), "mlx5_4 mlx5_5 mlx5_6 mlx5_7");
    cr_assert_eq(placed.rails.memory_node, 1);
    cr_assert_eq(ask("auto", "node2", KVF_CPU_AUTO, 0, 224), -EINVAL);
    expect_said("--rdma-near node2: this host has no such node");
}

Test(host_placement, the_host_bridge_is_nearer_than_the_node)
{
    tree_node(0, "0-7", "10");
    tree_pci("devices/pci0000:40/0000:40:01.0/0000:41:00.0", 0, "0-7");
    tree_pci("devices/pci0000:40/0000:40:02.0/0000:42:00.0", 0, "0-7");
    tree_nic("devices/pci0000:40/0000:40:02.0/0000:42:00.0", "mlx5_1", NULL);
    tree_pci("devices/pci0000:80/0000:80:02.0/0000:82:00.0", 0, "0-7");
    tree_nic("devices/pci0000:80/0000:80:02.0/0000:82:00.0", "mlx5_0", NULL);
    cr_assert_eq(ask("auto", "41:00.0", KVF_CPU_AUTO, 0, 8), 0, "%s", why);
    cr_assert_str_eq(rails(), "mlx5_1");
    cr_assert_eq(placed.rails.at[0].near, KVF_NEAR_ROOT);
}

Test(host_placement, of_two_bridges_in_a_row_the_deeper_common_one_is_nearer)
{
    static const char upper[] = "devices/pci0000:40/0000:40:01.0/0000:41:00.0/0000:42:00.0";
    char path[256];
    tree_node(0, "0-7", "10");
    snprintf(path, sizeof(path), "%s/0000:43:00.0/0000:44:00.0", upper);
    tree_pci(path, 0, "0-7");
    snprintf(path, sizeof(path), "%s/0000:43:00.0/0000:45:00.0/0000:46:00.0", upper);
    tree_pci(path, 0, "0-7");
    tree_nic(path, "mlx5_9", NULL); /* one step more, below the same bridge */
    snprintf(path, sizeof(path), "%s/0000:50:00.0", upper);
    tree_pci(path, 0, "0-7");
    tree_nic(path, "mlx5_0", NULL);
    cr_assert_eq(ask("auto", "0000:44:00.0", KVF_CPU_AUTO, 0, 8), 0, "%s", why);
    cr_assert_str_eq(rails(), "mlx5_9");
}

Test(host_placement, of_other_nodes_the_nearer_one_is_taken)
{
    tree_node(0, "0-3", "10 32 12 32");
    tree_node(1, "4-7", "32 10 32 12");
    tree_node(2, "8-11", "12 32 10 32");
    tree_node(
        4, "12-15",
        "32 12 32 10"); /* numbers have gaps: the list has an entry per node that exists */
    tree_pci("devices/pci0000:40/0000:41:00.0", 1, "4-7");
    tree_nic("devices/pci0000:40/0000:41:00.0", "mlx5_0", NULL);
    tree_pci("devices/pci0000:60/0000:61:00.0", 2, "8-11");
    tree_nic("devices/pci0000:60/0000:61:00.0", "mlx5_1", NULL);
    cr_assert_eq(ask("auto", "node0", KVF_CPU_AUTO, 0, 16), 0, "%s", why);
    cr_assert_str_eq(rails(), "mlx5_1");
    cr_assert_eq(ask("auto", "node4", KVF_CPU_AUTO, 0, 16), 0, "%s", why);
    cr_assert_str_eq(rails(), "mlx5_0");
    cr_assert_eq(placed.rails.at[0].near, KVF_NEAR_OTHER_NODE);
}

Test(host_placement, ties_go_by_name_and_2_comes_before_10)
{
    char path[128];
    char name[24];
    tree_node(0, "0-7", "10");
    for (int i = 11; i >= 0;
         i--) { /* folders list their entries in no order: neither may that matter */
        snprintf(path, sizeof(path), "devices/pci0000:40/0000:40:%02x.0/0000:%02x:00.0", i,
                 0x41 + i);
        snprintf(name, sizeof(name), "mlx5_%d", i);
        tree_pci(path, 0, "0-7");
        tree_nic(path, name, NULL);
    }
    cr_assert_eq(ask("auto", "auto", KVF_CPU_AUTO, 0, 8), 0, "%s", why);
    cr_assert_str_eq(rails(), "mlx5_0 mlx5_1 mlx5_2 mlx5_3 mlx5_4 mlx5_5 mlx5_6 mlx5_7");
    expect_said("left out: mlx5_8 (on the node of");
    struct kvf_placement_ask a = {.sysfs = tree_root,
                                  .devices = "auto",
                                  .near = "auto",
                                  .rails_max = 3,
                                  .cpu = KVF_CPU_NONE};
    cr_assert_eq(kvf_placement_choose(&a, &placed, why, sizeof(why)), 0, "%s", why);
    cr_assert_str_eq(rails(), "mlx5_0 mlx5_1 mlx5_2");
}

/* ---- the memory without a word of it ----------------------------------------------------------------- */

Test(host_placement, the_allowed_processors_of_one_node_are_where_the_memory_is)
{
    tree_hgx(1, true);
    cr_assert_eq(ask("auto", "auto", KVF_CPU_AUTO, 60, 70), 0, "%s", why);
    cr_assert_str_eq(rails(), "mlx5_4 mlx5_5 mlx5_6 mlx5_7");
    expect_said("on the node of the allowed processors");
    cr_assert_eq(placed.rails.memory_node, 1);
}

Test(host_placement, the_processor_asked_for_is_where_the_memory_is)
{
    tree_hgx(1, true);
    cr_assert_eq(ask("auto", "auto", 57, 0, 224), 0, "%s", why);
    cr_assert_str_eq(rails(), "mlx5_4 mlx5_5 mlx5_6 mlx5_7");
    cr_assert_eq(placed.cpu_count, 0, "a processor was named and others are offered");
    cr_assert_eq(ask("auto", "auto", 3, 0, 224), 0, "%s", why);
    cr_assert_str_eq(rails(), "mlx5_0 mlx5_1 mlx5_2 mlx5_3");
}

Test(host_placement, with_processors_of_all_nodes_the_first_active_device_decides)
{
    tree_hgx(1, true);
    for (int i = 0; i < 4; i++) {
        char name[24];
        cr_assert_eq(ask("auto", "auto", KVF_CPU_AUTO, 0, 224), 0, "%s", why);
        cr_assert_eq(placed.rails.memory_node, 0);
        snprintf(name, sizeof(name), "mlx5_%d", i);
        tree_port_state(name, 1, "1: DOWN");
    }
    cr_assert_eq(ask("auto", "auto", KVF_CPU_AUTO, 0, 224), 0, "%s", why);
    cr_assert_str_eq(rails(), "mlx5_4 mlx5_5 mlx5_6 mlx5_7");
    cr_assert_eq(placed.rails.memory_node, 1);
}

/* ---- what is unknown --------------------------------------------------------------------------------- */

Test(host_placement, an_unknown_node_is_not_node_0)
{
    tree_node(0, "0-3", "10 20");
    tree_node(1, "4-7", "20 10");
    tree_pci("devices/pci0000:40/0000:41:00.0", -1, "0-7");
    tree_nic("devices/pci0000:40/0000:41:00.0", "mlx5_0", NULL);
    tree_pci("devices/pci0000:80/0000:81:00.0", 0, "0-3");
    tree_nic("devices/pci0000:80/0000:81:00.0", "mlx5_1", NULL);
    cr_assert_eq(ask("auto", "node0", KVF_CPU_AUTO, 0, 8), 0, "%s", why);
    cr_assert_str_eq(rails(), "mlx5_1");
    /* Even the far node is better than none. */
    cr_assert_eq(ask("auto", "node1", KVF_CPU_AUTO, 0, 8), 0, "%s", why);
    cr_assert_str_eq(rails(), "mlx5_1");
    expect_said("mlx5_0 (how near is unknown)");
}

Test(host_placement, with_numa_off_the_pci_tree_still_decides)
{
    tree_hgx(2, false);
    cr_assert_eq(ask("auto", hgx_gpu(6, 2), KVF_CPU_AUTO, 0, 224), 0, "%s", why);
    cr_assert_str_eq(rails(), "mlx5_6 mlx5_7");
    cr_assert_eq(placed.rails.at[0].near, KVF_NEAR_SWITCH);
    cr_assert_eq(placed.rails.at[0].node, -1);
    cr_assert_eq(placed.rails.memory_node, -1);
    cr_assert_eq(placed.near_cpu_count, 0);
    expect_said("its node is unknown");
    cr_assert_eq(placed.cpus[0], 223);
    cr_assert_eq(placed.cpu_count, 223); /* all but processor 0 */
}

Test(host_placement, with_nothing_known_all_devices_are_equally_near)
{
    tree_node(0, "0-3", "10");
    for (int i = 0; i < 3; i++) {
        char path[64];
        char name[24];
        snprintf(path, sizeof(path), "devices/pci0000:00/0000:00:%02x.0", i + 3);
        snprintf(name, sizeof(name), "mlx5_%d", i);
        tree_pci(path, -1, "0-3");
        tree_nic(path, name, NULL);
    }
    cr_assert_eq(ask("auto", "auto", KVF_CPU_AUTO, 0, 4), 0, "%s", why);
    cr_assert_str_eq(rails(), "mlx5_0 mlx5_1 mlx5_2");
    cr_assert_eq(placed.rails.memory_node, 0, "all allowed processors are of node 0");
    cr_assert_eq(placed.cpus[0], 3);
}

/* ---- rxe, ports, virtual functions -------------------------------------------------------------------- */

Test(host_placement, rxe_on_a_veth_is_a_rail_of_unknown_node)
{
    tree_node(0, "0", "10 20");
    tree_node(1, "1", "20 10");
    tree_veth("veth0");
    tree_veth("veth1");
    tree_rxe("rxe1", "veth1");
    tree_rxe("rxe0", "veth0");
    cr_assert_eq(ask("auto", "auto", KVF_CPU_AUTO, 0, 2), 0, "%s", why);
    cr_assert_str_eq(rails(), "rxe0 rxe1");
    cr_assert_str_eq(placed.rails.at[0].netdev, "veth0");
    cr_assert_str_eq(placed.rails.at[1].netdev, "veth1");
    cr_assert(placed.rails.at[0].is_ethernet);
    cr_assert_eq(placed.rails.memory_node, -1);
    cr_assert_eq(placed.cpu_count, 1);
    cr_assert_eq(placed.cpus[0], 1); /* as without verbs: the last, never the first */
    cr_assert_eq(ask("auto", "node1", KVF_CPU_AUTO, 0, 2), 0, "%s", why);
    cr_assert_eq(placed.rails.memory_node, 1, "the hint is what is known");
    cr_assert_eq(placed.near_cpu_count, 1);
    cr_assert_eq(placed.cpus[0], 1);
}

Test(host_placement, rxe_over_a_card_is_as_near_as_the_card)
{
    tree_node(0, "0-3", "10 20");
    tree_node(1, "4-7", "20 10");
    static const char card[] = "devices/pci0000:80/0000:80:01.0/0000:81:00.0";
    tree_pci(card, 1, "4-7");
    tree_folder("devices/pci0000:80/0000:80:01.0/0000:81:00.0/net/eth0");
    tree_link("devices/pci0000:80/0000:80:01.0/0000:81:00.0/net/eth0/device", card);
    tree_link("class/net/eth0", "devices/pci0000:80/0000:80:01.0/0000:81:00.0/net/eth0");
    tree_rxe("rxe0", "eth0");
    cr_assert_eq(ask("auto", "auto", KVF_CPU_AUTO, 0, 8), 0, "%s", why);
    cr_assert_eq(placed.rails.at[0].node, 1);
    cr_assert_eq(placed.rails.memory_node, 1);
    cr_assert_eq(placed.near_cpu_count, 4);
    cr_assert_eq(placed.cpus[0], 7);
}

Test(host_placement, a_second_port_that_is_active_will_do)
{
    tree_node(0, "0-3", "10");
    tree_pci("devices/pci0000:40/0000:41:00.0", 0, "0-3");
    tree_nic("devices/pci0000:40/0000:41:00.0", "mlx4_0", NULL);
    tree_port_state("mlx4_0", 1, "1: DOWN");
    cr_assert_eq(ask("auto", "auto", KVF_CPU_AUTO, 0, 4), -ENODEV);
    expect_said("no RDMA device has an active port: there are mlx4_0 (port 1 is DOWN)");
    tree_port("devices/pci0000:40/0000:41:00.0/infiniband/mlx4_0", 2, "4: ACTIVE", "Ethernet");
    cr_assert_eq(ask("auto", "auto", KVF_CPU_AUTO, 0, 4), 0, "%s", why);
    cr_assert_eq(placed.rails.at[0].port, 2);
    cr_assert(placed.rails.at[0].is_ethernet);
}

/* A pod with one virtual function and four processors of one node; sysfs shows it the whole host. */
Test(host_placement, a_container_uses_the_function_whose_file_it_was_given)
{
    char dev[128];
    tree_hgx(1, true);
    for (int i = 0; i < 2; i++) {
        char path[256];
        char link[320];
        char name[24];
        snprintf(path, sizeof(path),
                 "devices/pci0000:50/0000:50:01.0/0000:51:00.0/0000:52:01.0/0000:54:00.%d",
                 i + 1);
        snprintf(link, sizeof(link), "%s/physfn", path);
        snprintf(name, sizeof(name), "mlx5_%d", 8 + i);
        tree_pci(path, 1, HGX_NODE1);
        tree_link(link,
                  "devices/pci0000:50/0000:50:01.0/0000:51:00.0/0000:52:01.0/0000:54:00.0");
        tree_nic(path, name, NULL);
    }
    for (int i = 0; i < 10; i++) {
        char path[64];
        snprintf(path, sizeof(path), "class/infiniband_verbs/uverbs%d/ibdev", i);
        tree_file(path, "mlx5_%d\n", i);
    }
    tree_file("files/uverbs9", "%s", "");
    snprintf(dev, sizeof(dev), "%s/files", tree_root);
    for (int i = 0; i < 4; i++) {
        allowed[i] = 60 + i;
    }
    struct kvf_placement_ask a = {.sysfs = tree_root,
                                  .dev_dir = dev,
                                  .devices = "auto",
                                  .near = hgx_gpu(4, 1),
                                  .rails_max = KVF_PLACEMENT_RAILS_MAX,
                                  .cpu = KVF_CPU_AUTO,
                                  .allowed = allowed,
                                  .allowed_count = 4};
    cr_assert_eq(kvf_placement_choose(&a, &placed, why, sizeof(why)), 0, "%s", why);
    cr_assert_str_eq(rails(), "mlx5_9");
    cr_assert(placed.rails.at[0].is_vf);
    cr_assert_eq(placed.rails.at[0].near, KVF_NEAR_SWITCH);
    cr_assert_eq(placed.cpu_count, 4);
    cr_assert_eq(placed.cpus[0], 63);
    expect_said("uverbs0 may not be opened: No such file or directory");
    a.devices = "mlx5_8";
    cr_assert_eq(kvf_placement_choose(&a, &placed, why, sizeof(why)), -EINVAL);
    expect_said("--rdma-devices mlx5_8: ");
    expect_said("uverbs8 may not be opened");
}

/* ---- names ------------------------------------------------------------------------------------------- */

Test(host_placement, named_devices_keep_their_order_and_the_first_one_decides_the_place)
{
    tree_hgx(1, true);
    cr_assert_eq(ask("mlx5_6,mlx5_1", "auto", KVF_CPU_AUTO, 0, 224), 0, "%s", why);
    cr_assert_str_eq(rails(), "mlx5_6 mlx5_1");
    cr_assert_eq(placed.rails.memory_node, 1);
    cr_assert_eq(placed.cpus[0], 223);
    cr_assert_eq(ask("mlx5_1,mlx5_6", "auto", KVF_CPU_AUTO, 0, 224), 0, "%s", why);
    cr_assert_eq(placed.rails.memory_node, 0);
    cr_assert_eq(placed.cpus[0], 167);
    /* Also where the memory that is served is said to be elsewhere: queues lie where the device writes them. */
    cr_assert_eq(ask("mlx5_6", "node0", KVF_CPU_AUTO, 0, 224), 0, "%s", why);
    cr_assert_eq(placed.rails.memory_node, 1);
    cr_assert_eq(placed.cpus[0], 223);
    cr_assert_eq(strstr(why, "left out"), NULL, "%s", why);
}

Test(host_placement, a_named_device_that_is_not_there_is_refused_with_what_is)
{
    tree_hgx(1, true);
    cr_assert_eq(ask("mlx5_1,mlx5_8", "auto", KVF_CPU_AUTO, 0, 224), -EINVAL);
    expect_said(
        "--rdma-devices mlx5_8: there is no such RDMA device; there are mlx5_0, mlx5_1,");
    cr_assert_eq(placed.rails.count, 0, "the output was touched");
    tree_port_state("mlx5_3", 1, "0: NOP");
    cr_assert_eq(ask("mlx5_3", "auto", KVF_CPU_AUTO, 0, 224), -EINVAL);
    expect_said(
        "--rdma-devices mlx5_3: port 1 is NOP; there are mlx5_0, mlx5_1, mlx5_2, mlx5_3 "
        "(port 1 is NOP), mlx5_4");
}

/* A daemon that is started while one of its cables is out has the other one, and that one too when it is in. */
Test(host_placement, a_named_device_whose_link_is_down_is_taken_and_named)
{
    tree_hgx(1, true);
    tree_port_state("mlx5_3", 1, "1: DOWN");
    cr_assert_eq(ask("mlx5_3,mlx5_1", "auto", KVF_CPU_AUTO, 0, 224), 0, "%s", why);
    cr_assert_str_eq(rails(), "mlx5_3 mlx5_1");
    cr_assert_eq(placed.rails.at[0].port, 1);
    expect_said("(port 1 is DOWN)");
}

Test(host_placement, a_host_without_devices_says_so)
{
    cr_assert_eq(ask("auto", "auto", KVF_CPU_AUTO, 0, 2), -ENODEV);
    cr_assert_str_eq(why, "no RDMA device has an active port: this host has no RDMA device");
    cr_assert_eq(ask("mlx5_0", "auto", KVF_CPU_AUTO, 0, 2), -EINVAL);
    expect_said("there is no such RDMA device; this host has no RDMA device");
    cr_assert_eq(ask("auto", "0000:3b:00.0", KVF_CPU_AUTO, 0, 2), -EINVAL);
    expect_said("there is no PCI device 0000:3b:00.0 here");
}

Test(host_placement, addresses_are_read_as_tools_write_them)
{
    tree_hgx(1, true);
    static const char *const ways[] = {"0000:43:00.0", "43:00.0", "00000000:43:00.0"};
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        cr_assert_eq(ask("auto", ways[i], KVF_CPU_AUTO, 0, 224), 0, "%s", why);
        cr_assert_str_eq(rails(), "mlx5_3", "%s", ways[i]);
    }
    tree_pci("devices/pci10000:e0/10000:e0:1c.4/10000:E1:00.0", 1, HGX_NODE1);
    tree_link("bus/pci/devices/10000:e1:00.0",
              "devices/pci10000:e0/10000:e0:1c.4/10000:E1:00.0");
    cr_assert_eq(ask("auto", "10000:E1:00.0", KVF_CPU_AUTO, 0, 224), 0, "%s", why);
    static const char *const bad[] = {
        "",       "0000:43:00", "0000:43:00.8", "43:20.0",       "node",       "node1024",
        "node-1", "node 1",     "3b:00.0.0",    "0000::43:00.0", "../43:00.0", "0:43:00.0"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        cr_assert_eq(kvf_placement_check_near(bad[i], why, sizeof(why)), -EINVAL, "'%s'",
                     bad[i]);
    }
}

/* ---- processors -------------------------------------------------------------------------------------- */

Test(host_placement, processors_are_near_the_first_rail_and_one_of_each_core_comes_first)
{
    tree_hgx(1, true);
    tree_cores(0, 112, 112);
    cr_assert_eq(ask("auto", hgx_gpu(0, 1), KVF_CPU_AUTO, 0, 224), 0, "%s", why);
    cr_assert_eq(placed.near_cpu_count, 111); /* all of node 0 but processor 0 */
    cr_assert_eq(placed.cpu_count, 223);
    for (int i = 0; i < 55; i++) { /* the second thread of each core but the first */
        cr_assert_eq(placed.cpus[i], 167 - i);
        cr_assert_eq(placed.cpus[55 + i], 55 - i);
    }
    cr_assert_eq(placed.cpus[110], 112, "the sibling of processor 0 comes last");
    cr_assert_eq(placed.cpus[111], 223, "then those of the other node");
    cr_assert_eq(placed.cpus[222], 56);
}

Test(host_placement, siblings_that_stand_next_to_each_other_are_told_apart_too)
{
    tree_node(0, "0-7", "10");
    for (int cpu = 0; cpu < 8; cpu += 2) {
        tree_cores(cpu, cpu + 1, 1);
    }
    tree_pci("devices/pci0000:40/0000:41:00.0", 0, "0-7");
    tree_nic("devices/pci0000:40/0000:41:00.0", "mlx5_0", NULL);
    cr_assert_eq(ask("auto", "auto", KVF_CPU_AUTO, 0, 8), 0, "%s", why);
    static const uint16_t order[] = {7, 5, 3, 6, 4, 2, 1};
    cr_assert_eq(placed.cpu_count, 7);
    cr_assert_eq(memcmp(placed.cpus, order, sizeof(order)), 0);
}

Test(host_placement, processor_0_is_taken_where_it_is_the_only_near_one)
{
    tree_hgx(1, true);
    for (int i = 0; i < 3; i++) {
        allowed[i] = i == 0 ? 0 : 60 + i;
    }
    struct kvf_placement_ask a = {.sysfs = tree_root,
                                  .devices = "mlx5_0",
                                  .near = "auto",
                                  .rails_max = 1,
                                  .cpu = KVF_CPU_AUTO,
                                  .allowed = allowed,
                                  .allowed_count = 3};
    cr_assert_eq(kvf_placement_choose(&a, &placed, why, sizeof(why)), 0, "%s", why);
    cr_assert_eq(placed.near_cpu_count, 1);
    cr_assert_eq(placed.cpu_count, 3);
    cr_assert_eq(placed.cpus[0], 0);
    cr_assert_eq(placed.cpus[1], 62);
}

Test(host_placement, where_no_near_processor_is_allowed_another_one_is_taken_and_it_is_said)
{
    tree_hgx(1, true);
    cr_assert_eq(ask("auto", hgx_gpu(1, 1), KVF_CPU_AUTO, 60, 64), 0, "%s", why);
    cr_assert_str_eq(rails(), "mlx5_1");
    cr_assert_eq(placed.rails.memory_node, 0);
    cr_assert_eq(placed.near_cpu_count, 0);
    cr_assert_eq(placed.cpu_count, 3);
    cr_assert_eq(placed.cpus[0], 63);
    expect_said("no processor of node 0 is allowed here: another one is taken");
}

Test(host_placement, one_allowed_processor_is_shared_and_nothing_is_pinned_to_it)
{
    tree_hgx(1, true);
    cr_assert_eq(ask("auto", "auto", KVF_CPU_AUTO, 60, 61), 0, "%s", why);
    cr_assert_eq(placed.cpu_count, 0);
    expect_said("at most one processor is allowed here");
    cr_assert_eq(ask("auto", "auto", KVF_CPU_NONE, 60, 70), 0, "%s", why);
    cr_assert_eq(placed.cpu_count, 0);
}

/* Whatever mask a container has: only its processors, each once. */
Test(host_placement, no_processor_outside_the_mask_is_ever_offered)
{
    tree_hgx(1, true);
    uint32_t seed = 12345;
    for (int round = 0; round < 60; round++) {
        bool is_allowed[224] = {false};
        int count = 0;
        uint32_t share = 1u + (uint32_t)round % 16u;
        for (int cpu = 0; cpu < 224; cpu++) {
            seed = seed * 1664525u + 1013904223u;
            if ((seed >> 16) % 16u < share) {
                is_allowed[cpu] = true;
                allowed[count++] = cpu;
            }
        }
        struct kvf_placement_ask a = {.sysfs = tree_root,
                                      .devices = "auto",
                                      .near = hgx_gpu(round % 8, 1),
                                      .rails_max = KVF_PLACEMENT_RAILS_MAX,
                                      .cpu = KVF_CPU_AUTO,
                                      .allowed = allowed,
                                      .allowed_count = count};
        cr_assert_eq(kvf_placement_choose(&a, &placed, why, sizeof(why)), 0, "%s", why);
        cr_assert_leq(placed.near_cpu_count, placed.cpu_count);
        for (uint32_t i = 0; i < placed.cpu_count; i++) {
            cr_assert(is_allowed[placed.cpus[i]], "round %d: processor %d", round,
                      placed.cpus[i]);
            is_allowed[placed.cpus[i]] = false;
            int node = placed.cpus[i] % 112 / 56;
            cr_assert_eq(node == placed.rails.memory_node, i < placed.near_cpu_count);
        }
    }
}

Test(host_placement, the_line_names_rails_processor_and_node)
{
    char line[256];
    tree_hgx(2, true);
    cr_assert_eq(ask("auto", hgx_gpu(4, 2), KVF_CPU_AUTO, 0, 224), 0, "%s", why);
    cr_assert_str_eq(kvf_placement_line(&placed.rails, 223, line, sizeof(line)),
                     "rails mlx5_4 node 1, mlx5_5 node 1, cpu 223, memory node 1");
    tree_hgx(2, false);
    cr_assert_eq(ask("mlx5_0", "auto", KVF_CPU_NONE, 0, 0), 0, "%s", why);
    cr_assert_str_eq(kvf_placement_line(&placed.rails, KVF_CPU_NONE, line, sizeof(line)),
                     "rail mlx5_0 node unknown, unpinned, memory near the processor");
}
