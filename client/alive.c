/* Who is alive, and what the end of a daemon proves.
 *
 * A hang-up on the socket says that no supervisor will speak any more; it does not say that the worker has
 * let go of memory. Only the worker's pidfd says that, and it speaks for one epoch: a room is judged by the
 * end of the worker that served it and by no other. While a supervisor lives the verdict is its own, stored
 * in the room's word; the library concludes only when nobody is left to store it. */
#include "client/internal.h"

#include <poll.h>
#include <unistd.h>

#define KVF_NOTICES_PER_LOOK 64u
#define KVF_LOOK_EVERY_NS (KVF_WAIT_SLICE_MS * UINT64_C(1000000))

static bool has_ended(int pidfd, int timeout_ms)
{
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    return poll(&p, 1, timeout_ms) == 1 && (p.revents & POLLIN) != 0;
}

void kvf_client_worker_add(kvf_client *client, uint64_t epoch, int pidfd)
{
    struct kvf_worker_seen *workers = client->cold.workers;
    pthread_mutex_lock(&client->cold.lock);
    uint32_t idx = 0;
    for (uint32_t i = 0; i < KVF_WORKERS_KNOWN_MAX; i++) {
        if (workers[i].epoch == epoch) {
            pthread_mutex_unlock(&client->cold.lock);
            close(pidfd);
            return;
        }
        if (workers[i].epoch == 0 || (workers[i].has_ended && workers[idx].epoch != 0)) {
            idx = i;
            if (workers[i].epoch == 0) {
                break;
            }
        }
    }
    if (workers[idx].epoch != 0 && !workers[idx].has_ended) {
        /* Forgetting one only means that its rooms are never judged here. */
        close(workers[idx].pidfd);
    }
    workers[idx] = (struct kvf_worker_seen){.epoch = epoch, .pidfd = pidfd};
    pthread_mutex_unlock(&client->cold.lock);
}

void kvf_client_workers_close(kvf_client *client)
{
    for (uint32_t i = 0; i < KVF_WORKERS_KNOWN_MAX; i++) {
        struct kvf_worker_seen *worker = &client->cold.workers[i];
        if (worker->epoch != 0 && !worker->has_ended) {
            close(worker->pidfd);
        }
        worker->epoch = 0;
    }
}

static void read_notices(kvf_client *client)
{
    struct kvf_cold *cold = &client->cold;
    if (atomic_load_explicit(&cold->is_supervisor_gone, memory_order_relaxed)) {
        return;
    }
    for (uint32_t i = 0; i < KVF_NOTICES_PER_LOOK; i++) {
        struct kvf_reply reply;
        int err = kvf_socket_receive(cold->socket_fd, &reply);
        if (err == 0) {
            kvf_socket_notice(client, &reply);
        } else if (err == -KVF_E_DAEMON_GONE) {
            atomic_store_explicit(&cold->is_supervisor_gone, true, memory_order_relaxed);
            return;
        } else if (err == -EAGAIN) {
            return;
        }
    }
}

/* Lock held. */
static void conclude(kvf_client *client, uint64_t epoch)
{
    struct kvf_cold *cold = &client->cold;
    if (kvf_client_epoch_has_ended(client, epoch)) {
        return;
    }
    uint32_t count = atomic_load_explicit(&cold->ended_count, memory_order_relaxed);
    uint32_t idx = count;
    if (count == KVF_WORKERS_KNOWN_MAX) {
        /* The oldest was concluded many daemons ago; a later one has stored its rooms' words since. */
        for (idx = 0; idx + 1u < count; idx++) {
            atomic_store_explicit(
                &cold->ended_epochs[idx],
                atomic_load_explicit(&cold->ended_epochs[idx + 1u], memory_order_relaxed),
                memory_order_relaxed);
        }
    } else {
        count++;
    }
    atomic_store_explicit(&cold->ended_epochs[idx], epoch, memory_order_relaxed);
    /* W1 (release): the worker of this epoch was reaped: the kernel let poll say so to this thread, and
     * readers of the count see every byte it placed. */
    atomic_store_explicit(&cold->ended_count, count, memory_order_release);
    if (kvf_client_rooms_conclude(client)) {
        atomic_store_explicit(&cold->must_scan, true, memory_order_relaxed);
    }
}

/* Lock held. */
static bool ask_workers(kvf_client *client)
{
    struct kvf_cold *cold = &client->cold;
    bool is_gone = atomic_load_explicit(&cold->is_supervisor_gone, memory_order_relaxed);
    bool is_any_alive = false;
    for (uint32_t i = 0; i < KVF_WORKERS_KNOWN_MAX; i++) {
        struct kvf_worker_seen *worker = &cold->workers[i];
        if (worker->epoch == 0) {
            continue;
        }
        if (!worker->has_ended && has_ended(worker->pidfd, 0)) {
            close(worker->pidfd);
            worker->pidfd = -1;
            worker->has_ended = true;
        }
        if (!worker->has_ended) {
            is_any_alive = true;
        } else if (is_gone) {
            conclude(client, worker->epoch);
        }
    }
    return is_any_alive;
}

static bool has_current_ended(const kvf_client *client, uint64_t epoch)
{
    for (uint32_t i = 0; i < KVF_WORKERS_KNOWN_MAX; i++) {
        const struct kvf_worker_seen *worker = &client->cold.workers[i];
        if (worker->epoch == epoch && worker->has_ended) {
            return true;
        }
    }
    return false;
}

int kvf_client_look(kvf_client *client)
{
    struct kvf_cold *cold = &client->cold;
    /* A thread that waits for a reply reads the notices itself. */
    if (pthread_mutex_trylock(&cold->socket_lock) == 0) {
        read_notices(client);
        pthread_mutex_unlock(&cold->socket_lock);
    }
    pthread_mutex_lock(&cold->lock);
    bool is_any_alive = ask_workers(client);
    int rc = 0;
    uint64_t epoch =
        atomic_load_explicit(&cold->segment.shm->worker_epoch, memory_order_acquire); /* E1 */
    if (atomic_load_explicit(&cold->is_supervisor_gone, memory_order_relaxed)) {
        uint32_t dropped = atomic_load_explicit(&cold->dropped_code, memory_order_relaxed);
        rc = !is_any_alive ? -KVF_E_DAEMON_GONE : dropped != 0 ? -(int)dropped : -EBUSY;
    } else if (atomic_load_explicit(&cold->segment.shm->stopping, memory_order_relaxed) != 0) {
        rc = -ESHUTDOWN;
    } else if (epoch == 0 || has_current_ended(client, epoch)) {
        rc = -KVF_E_WORKER_GONE;
    }
    pthread_mutex_unlock(&cold->lock);
    return rc;
}

void kvf_client_look_now_and_then(kvf_client *client)
{
    uint64_t now_ns = kvf_client_now_ns();
    uint64_t due_ns = atomic_load_explicit(&client->cold.next_look_ns, memory_order_relaxed);
    if (now_ns < due_ns) {
        return;
    }
    if (atomic_compare_exchange_strong_explicit(&client->cold.next_look_ns, &due_ns,
                                                now_ns + KVF_LOOK_EVERY_NS,
                                                memory_order_relaxed, memory_order_relaxed)) {
        (void)kvf_client_look(client);
    }
}

bool kvf_client_wait_workers(kvf_client *client, uint64_t deadline_ns)
{
    for (;;) {
        pthread_mutex_lock(&client->cold.lock);
        bool is_any_alive = ask_workers(client);
        pthread_mutex_unlock(&client->cold.lock);
        if (!is_any_alive) {
            return true;
        }
        int ms = kvf_client_ms_until(deadline_ns, KVF_ATTACH_RETRY_MS);
        if (ms == 0) {
            return false;
        }
        (void)poll(NULL, 0, ms);
    }
}

int kvf_daemon_check(kvf_client *client)
{
    int err = kvf_client_enter(client);
    return err != 0 ? err : kvf_client_look(client);
}

int kvf_daemon_info(kvf_client *client, struct kvf_daemon_info *ret_info)
{
    int err = kvf_client_enter(client);
    if (err != 0) {
        return err;
    }
    if (ret_info == NULL) {
        return -EINVAL;
    }
    const struct kvf_segment_shm *shm = client->cold.segment.shm;
    struct kvf_daemon_info info = {
        .lanes_per_peer = __atomic_load_n(&shm->lanes_per_peer, __ATOMIC_RELAXED),
        .worker_epoch = atomic_load_explicit(&shm->worker_epoch, memory_order_acquire), /* E1 */
        .bound_usual_us = __atomic_load_n(&shm->bound_usual_us, __ATOMIC_RELAXED),
        .bound_worst_us = __atomic_load_n(&shm->bound_worst_us, __ATOMIC_RELAXED),
        .loop_count = atomic_load_explicit(&shm->loop_count, memory_order_relaxed),
        .events_lost = atomic_load_explicit(&shm->events_lost, memory_order_relaxed)};
    return kvf_client_copy_out(ret_info, &info, sizeof info, sizeof info);
}
