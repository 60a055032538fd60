#include "tests/torture/fleet.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

const char *kvf_tally_name(enum kvf_tally tally)
{
#define KVF_TALLY_TEXT(id, name) name,
    static const char *const names[KVF_TALLY_COUNT] = {KVF_TALLIES(KVF_TALLY_TEXT)};
#undef KVF_TALLY_TEXT
    return names[tally];
}

static size_t lines(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

static size_t fleet_bytes(const struct kvf_fleet_plan *plan)
{
    return lines(sizeof(struct kvf_fleet_shm)) +
           lines(plan->request_count * sizeof(struct kvf_request)) +
           lines(plan->request_count * sizeof(struct kvf_progress_shm)) +
           (size_t)plan->decode_count * plan->samples_max * sizeof(struct kvf_sample_shm);
}

static void fleet_point(struct kvf_fleet *fleet, const struct kvf_fleet_plan *plan, void *base)
{
    unsigned char *at = base;
    fleet->shm = base;
    at += lines(sizeof(struct kvf_fleet_shm));
    fleet->requests = (struct kvf_request *)(void *)at;
    at += lines(plan->request_count * sizeof(struct kvf_request));
    fleet->progress = (struct kvf_progress_shm *)(void *)at;
    at += lines(plan->request_count * sizeof(struct kvf_progress_shm));
    fleet->samples = (struct kvf_sample_shm *)(void *)at;
}

int kvf_fleet_create(const struct kvf_fleet_plan *plan, struct kvf_fleet *ret_fleet)
{
    struct kvf_fleet fleet = {.bytes = fleet_bytes(plan)};
    int rc;
    fleet.fd = memfd_create("kvfence-torture", MFD_CLOEXEC);
    if (fleet.fd < 0) {
        return -errno;
    }
    if (ftruncate(fleet.fd, (off_t)fleet.bytes) != 0) {
        goto close_fd;
    }
    void *base = mmap(NULL, fleet.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fleet.fd, 0);
    if (base == MAP_FAILED) {
        goto close_fd;
    }
    fleet_point(&fleet, plan, base);
    fleet.shm->plan = *plan;
    *ret_fleet = fleet;
    return 0;

close_fd:
    rc = -errno;
    close(fleet.fd);
    return rc;
}

int kvf_fleet_open(int fd, struct kvf_fleet *ret_fleet)
{
    struct kvf_fleet fleet = {.fd = fd};
    struct stat st;
    if (fstat(fd, &st) != 0) {
        return -errno;
    }
    fleet.bytes = (size_t)st.st_size;
    if (fleet.bytes < sizeof(struct kvf_fleet_shm)) {
        return -EINVAL;
    }
    void *base = mmap(NULL, fleet.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
        return -errno;
    }
    const struct kvf_fleet_shm *shm = base;
    if (fleet_bytes(&shm->plan) != fleet.bytes) {
        munmap(base, fleet.bytes);
        return -EINVAL;
    }
    fleet_point(&fleet, &shm->plan, base);
    *ret_fleet = fleet;
    return 0;
}

void kvf_fleet_close(struct kvf_fleet *fleet)
{
    munmap(fleet->shm, fleet->bytes);
    close(fleet->fd);
    memset(fleet, 0, sizeof(*fleet));
    fleet->fd = -1;
}

uint64_t kvf_fleet_sum(const struct kvf_fleet *fleet, enum kvf_tally tally)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < KVF_ENGINES_OF_KIND_MAX; i++) {
        sum +=
            atomic_load_explicit(&fleet->shm->prefill[i].tallies[tally], memory_order_relaxed);
        sum +=
            atomic_load_explicit(&fleet->shm->decode[i].tallies[tally], memory_order_relaxed);
    }
    return sum;
}
