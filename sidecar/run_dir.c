#include "sidecar/run_dir.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "ring/segment.h"
#include "sidecar/daemon_stats.h"
#include "sidecar/host/log.h"
#include "sidecar/host/numa.h"
#include "sidecar/host/packet.h"

#define FILE_NAME_BYTES (KVF_CONFIG_NAME_BYTES + 32)
#define LISTEN_BACKLOG 64
#define ORPHAN_WAIT_MS 1000

static const char *file_name(const struct kvf_run_dir *dir, const char *suffix, char *ret_name)
{
    snprintf(ret_name, FILE_NAME_BYTES, "%s%s", dir->config->name, suffix);
    return ret_name;
}

static int refuse(const struct kvf_run_dir *dir, const char *name, int err, const char *why)
{
    kvf_log(KVF_LOG_ERROR, "%s/%s: %s", dir->config->run_dir, name, why);
    return err;
}

static int refuse_errno(const struct kvf_run_dir *dir, const char *name)
{
    int err = -errno;
    return refuse(dir, name, err, strerror(-err));
}

/* A file of the directory could not be made or opened. */
static int refuse_file(const struct kvf_run_dir *dir, const char *name, int err)
{
    if (err == -EACCES || err == -EPERM || err == -EROFS) {
        kvf_log(KVF_LOG_ERROR,
                "the run directory %s is not writable (%s: %s); choose another --run-dir",
                dir->config->run_dir, name, strerror(-err));
        return err;
    }
    return refuse(dir, name, err, strerror(-err));
}

/* ---- the directory ----------------------------------------------------------------------------------------- */

static int refuse_dir(const struct kvf_config *config, const char *what, int err)
{
    const char *hint = err == -ENOENT    ? " (its parent must exist)"
                       : err == -EACCES  ? "; choose another --run-dir"
                       : err == -ENOTDIR ? " (a symbolic link is not followed)"
                                         : "";
    kvf_log(KVF_LOG_ERROR, "cannot %s the run directory %s: %s%s", what, config->run_dir,
            strerror(-err), hint);
    return err;
}

/* An existing directory in which nobody else can put files in our place. */
static int open_existing(const struct kvf_config *config, int *ret_fd)
{
    int fd = open(config->run_dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0) {
        int err = -errno;
        kvf_close_fd(&fd);
        return refuse_dir(config, "open", err);
    }
    const char *why = NULL;
    if (st.st_uid != geteuid() && st.st_uid != 0) {
        why = "belongs to another user";
    } else if ((st.st_mode & S_IWOTH) != 0 && (st.st_mode & S_ISVTX) == 0) {
        why = "lets anybody replace files in it";
    }
    if (why != NULL) {
        kvf_log(KVF_LOG_ERROR, "the run directory %s %s; choose another --run-dir",
                config->run_dir, why);
        close(fd);
        return -EPERM;
    }
    *ret_fd = fd;
    return 0;
}

static int open_dir(struct kvf_run_dir *dir)
{
    const char *path = dir->config->run_dir;
    mode_t mode = geteuid() == 0 ? 0755 : 0700;
    bool is_new = mkdir(path, mode) == 0;
    if (!is_new && errno != EEXIST) {
        return refuse_dir(dir->config, "create", -errno);
    }
    int err = open_existing(dir->config, &dir->dir_fd);
    if (err == 0 && is_new && fchmod(dir->dir_fd, mode) != 0) {
        err = refuse_dir(dir->config, "open", -errno);
    }
    return err;
}

/* The directory that `path` would be made in. */
static void parent_of(const char *path, char ret_parent[KVF_CONFIG_DIR_BYTES])
{
    snprintf(ret_parent, KVF_CONFIG_DIR_BYTES, "%s", path);
    size_t bytes = strlen(ret_parent);
    while (bytes > 1 && ret_parent[bytes - 1] == '/') {
        ret_parent[--bytes] = '\0';
    }
    char *slash = strrchr(ret_parent, '/');
    if (slash == NULL) {
        snprintf(ret_parent, KVF_CONFIG_DIR_BYTES, ".");
    } else {
        slash[slash == ret_parent ? 1 : 0] = '\0';
    }
}

static int check_dir(const struct kvf_config *config)
{
    struct stat st;
    if (lstat(config->run_dir, &st) != 0) {
        char parent[KVF_CONFIG_DIR_BYTES];
        parent_of(config->run_dir, parent);
        bool can_make =
            errno == ENOENT && faccessat(AT_FDCWD, parent, W_OK | X_OK, AT_EACCESS) == 0;
        return can_make ? 0 : refuse_dir(config, "create", -errno);
    }
    int fd = -1;
    int err = open_existing(config, &fd);
    if (err == 0 && faccessat(AT_FDCWD, config->run_dir, W_OK | X_OK, AT_EACCESS) != 0) {
        err = refuse_dir(config, "write to", -errno);
    }
    kvf_close_fd(&fd);
    return err;
}

/* Opens a lock file and tries to take it. The descriptor is held until the process ends. */
static int take_lock(struct kvf_run_dir *dir, const char *name, int *ret_fd)
{
    int fd =
        openat(dir->dir_fd, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600);
    if (fd < 0) {
        return -errno;
    }
    struct stat st;
    int err = 0;
    if (fstat(fd, &st) != 0) {
        err = -errno;
    } else if (!S_ISREG(st.st_mode) || st.st_uid != geteuid()) {
        err = -EPERM;
    } else if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        err = errno == EWOULDBLOCK ? -EBUSY : -errno;
    }
    if (err != 0) {
        close(fd);
        return err;
    }
    *ret_fd = fd;
    return 0;
}

int kvf_run_dir_open(const struct kvf_config *config, struct kvf_run_dir *ret_dir)
{
    *ret_dir = (struct kvf_run_dir){
        .config = config, .dir_fd = -1, .lock_fd = -1, .cpu_lock_fd = -1, .listener_fd = -1};
    int err = open_dir(ret_dir);
    if (err != 0) {
        return err;
    }
    char name[FILE_NAME_BYTES];
    file_name(ret_dir, ".lock", name);
    err = take_lock(ret_dir, name, &ret_dir->lock_fd);
    if (err == -EBUSY) {
        return refuse(ret_dir, name, err,
                      "a daemon of this name is running; choose another --name or --run-dir");
    }
    if (err == -EPERM) {
        return refuse(ret_dir, name, err, "not a regular file of ours; it is left alone");
    }
    return err == 0 ? 0 : refuse_file(ret_dir, name, err);
}

/* ---- the worker's name -------------------------------------------------------------------------------------- */

/* 0; -ENOENT: there is none. What cannot be read as one names no process. */
static int read_worker(struct kvf_run_dir *dir, struct kvf_process_id *ret_id)
{
    char name[FILE_NAME_BYTES];
    int fd = openat(dir->dir_fd, file_name(dir, ".worker", name),
                    O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return -errno;
    }
    char text[256];
    ssize_t got = read(fd, text, sizeof(text) - 1u);
    int err = got < 0 ? -errno : 0;
    close(fd);
    if (err != 0) {
        return err;
    }
    text[got] = '\0';
    struct kvf_process_id id = {0};
    if (sscanf(text, "%d %" SCNu64 " %39s", &id.pid, &id.start_ticks, id.boot_id) != 3 ||
        id.pid <= 1) {
        return -ENOENT;
    }
    *ret_id = id;
    return 0;
}

/* A descriptor of exactly that process, or -ESRCH. The pid may be recycled at any moment, so it is
 * identified again after the descriptor has pinned it. */
static int open_exactly(const struct kvf_process_id *wanted, int *ret_pidfd)
{
    int pidfd = -1;
    int err = kvf_pidfd_open(wanted->pid, &pidfd);
    if (err != 0) {
        return err;
    }
    struct kvf_process_id now;
    err = kvf_process_identify(wanted->pid, &now);
    if (err != 0 && kvf_pidfd_wait(pidfd, 0) == 1) {
        err = -ESRCH; /* it ended meanwhile */
    }
    if (err == 0 &&
        (now.start_ticks != wanted->start_ticks || strcmp(now.boot_id, wanted->boot_id) != 0)) {
        err = -ESRCH;
    }
    if (err != 0) {
        close(pidfd);
        return err;
    }
    *ret_pidfd = pidfd;
    return 0;
}

int kvf_run_dir_await_worker(struct kvf_run_dir *dir)
{
    struct kvf_process_id id;
    int pidfd = -1;
    int err = read_worker(dir, &id);
    if (err == 0) {
        err = open_exactly(&id, &pidfd);
    }
    if (err == -ENOENT || err == -ESRCH) {
        return 0; /* none was named, or exactly that process has ended */
    }
    if (err != 0) { /* not knowing is no proof */
        kvf_log(
            KVF_LOG_ERROR,
            "cannot tell whether the worker of an earlier daemon has ended (%s): its memory "
            "may still be written, so nothing is registered before",
            strerror(-err));
        return err;
    }
    int timeout_ms = (int)dir->config->kill_ms;
    /* It dies with its supervisor; taking it apart may need a moment. */
    int ended = kvf_pidfd_wait(pidfd, ORPHAN_WAIT_MS);
    if (ended == 0) {
        kvf_log(KVF_LOG_WARN, "worker %d of an earlier daemon of this name lives on; ending it",
                id.pid);
        (void)kvf_pidfd_kill(pidfd);
        ended = kvf_pidfd_wait(pidfd, timeout_ms);
    }
    close(pidfd);
    if (ended != 1) {
        kvf_log(
            KVF_LOG_ERROR,
            "worker %d of an earlier daemon did not end within %d ms: its memory may still be "
            "written, so nothing is registered before",
            id.pid, timeout_ms);
        return -ETIMEDOUT;
    }
    return 0;
}

int kvf_run_dir_write_worker(struct kvf_run_dir *dir, const struct kvf_process_id *id)
{
    char name[FILE_NAME_BYTES];
    char fresh[FILE_NAME_BYTES];
    file_name(dir, ".worker", name);
    file_name(dir, ".worker.new", fresh);
    (void)unlinkat(dir->dir_fd, fresh, 0);
    int fd =
        openat(dir->dir_fd, fresh, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) {
        return refuse_file(dir, fresh, -errno);
    }
    char text[256];
    int bytes = snprintf(text, sizeof(text), "%d %" PRIu64 " %s\n", id->pid, id->start_ticks,
                         id->boot_id);
    ssize_t put = write(fd, text, (size_t)bytes);
    int err = put == bytes ? 0 : put < 0 ? -errno : -ENOSPC;
    close(fd);
    if (err != 0) {
        return refuse(dir, fresh, err, strerror(-err));
    }
    return renameat(dir->dir_fd, fresh, dir->dir_fd, name) == 0 ? 0 : refuse_errno(dir, name);
}

void kvf_run_dir_remove_worker(struct kvf_run_dir *dir)
{
    char name[FILE_NAME_BYTES];
    (void)unlinkat(dir->dir_fd, file_name(dir, ".worker", name), 0);
}

/* ---- the devices that supervisors wrote through ---------------------------------------------------------------- */

#define RAILS_NAMES_BYTES (KVF_PLACEMENT_RAILS_MAX * (KVF_RAIL_NAME_BYTES + 12u) + 2u)
#define RAILS_LINE_BYTES (40u + 17u + RAILS_NAMES_BYTES)
#define RAILS_FILE_BYTES (KVF_COVERED_MAX * RAILS_LINE_BYTES)

/* " mlx5_0/1 mlx5_1/1 ": each name between spaces. */
static void name_rails(const struct kvf_rails *rails, uint32_t port,
                       char ret_names[RAILS_NAMES_BYTES])
{
    size_t used = 0;
    ret_names[0] = '\0';
    for (uint32_t i = 0; i < rails->count; i++) {
        int bytes = snprintf(ret_names + used, RAILS_NAMES_BYTES - used, " %s/%u",
                             rails->at[i].name, port != 0 ? port : rails->at[i].port);
        assert(bytes > 0 && (size_t)bytes < RAILS_NAMES_BYTES - used - 1u);
        used += (size_t)bytes;
    }
    ret_names[used] = ' ';
    ret_names[used + 1u] = '\0';
}

/* Every one of the names, in a line of the file, is among these. A line without any says nothing. */
static bool are_among(const char *line_names, const char *names)
{
    char name[KVF_RAIL_NAME_BYTES + 14u];
    uint32_t count = 0;
    for (const char *at = line_names; strcspn(at, "\n") > 1u; count++) {
        size_t bytes = strcspn(at + 1, " \n");
        if (*at != ' ' || bytes == 0 || bytes + 3u > sizeof(name)) {
            return false;
        }
        (void)snprintf(name, sizeof(name), " %.*s ", (int)bytes, at + 1);
        if (strstr(names, name) == NULL) {
            return false;
        }
        at += 1u + bytes;
    }
    return count > 0;
}

/* The file's text; empty: there is none, or nothing in it can be believed. */
static void read_rails(struct kvf_run_dir *dir, char ret_text[RAILS_FILE_BYTES])
{
    char name[FILE_NAME_BYTES];
    ret_text[0] = '\0';
    int fd = openat(dir->dir_fd, file_name(dir, ".rails", name),
                    O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT) {
        return;
    }
    struct stat st;
    ssize_t got = -1;
    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid()) {
        got = read(fd, ret_text, RAILS_FILE_BYTES - 1u);
    }
    if (got < 0) {
        kvf_log(KVF_LOG_WARN,
                "%s/%s cannot be read: memory of devices that an earlier daemon of this name "
                "left is not proven here",
                dir->config->run_dir, name);
    }
    ret_text[got > 0 ? got : 0] = '\0';
    kvf_close_fd(&fd);
}

static int write_rails(struct kvf_run_dir *dir, const char *text)
{
    char name[FILE_NAME_BYTES];
    char fresh[FILE_NAME_BYTES];
    file_name(dir, ".rails", name);
    file_name(dir, ".rails.new", fresh);
    (void)unlinkat(dir->dir_fd, fresh, 0);
    int fd =
        openat(dir->dir_fd, fresh, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) {
        return refuse_file(dir, fresh, -errno);
    }
    size_t bytes = strlen(text);
    ssize_t put = write(fd, text, bytes);
    int err = put == (ssize_t)bytes ? 0 : put < 0 ? -errno : -ENOSPC;
    close(fd);
    if (err != 0) {
        return refuse(dir, fresh, err, strerror(-err));
    }
    return renameat(dir->dir_fd, fresh, dir->dir_fd, name) == 0 ? 0 : refuse_errno(dir, name);
}

int kvf_run_dir_note_rails(struct kvf_run_dir *dir, uint64_t supervisor_id,
                           const struct kvf_rails *rails, uint32_t port,
                           struct kvf_covered *ret_covered)
{
    static char before[RAILS_FILE_BYTES];
    static char after[RAILS_FILE_BYTES];
    char own[RAILS_NAMES_BYTES];
    struct kvf_process_id self;
    int err = kvf_process_identify(getpid(), &self);
    if (err != 0) {
        return refuse(dir, "", err, strerror(-err));
    }
    struct kvf_covered covered = {.count = 1, .ids = {supervisor_id}};
    name_rails(rails, port, own);
    read_rails(dir, before);
    size_t used = (size_t)snprintf(after, sizeof(after), "%s %016" PRIx64 "%s\n", self.boot_id,
                                   supervisor_id, own);
    uint32_t lines = 1;
    size_t boot_bytes = strlen(self.boot_id);
    for (char *at = before; *at != '\0' && lines < KVF_COVERED_MAX; lines++) {
        size_t bytes = strcspn(at, "\n");
        uint64_t id = 0;
        int names_at = 0;
        bool is_ours = strncmp(at, self.boot_id, boot_bytes) == 0 && at[boot_bytes] == ' ' &&
                       sscanf(at + boot_bytes, " %16" SCNx64 "%n", &id, &names_at) == 1 &&
                       used + bytes + 2u <= sizeof(after);
        if (is_ours) { /* what this boot has not seen, no memory outlived */
            memcpy(after + used, at, bytes);
            used += bytes;
            after[used++] = '\n';
            after[used] = '\0';
        }
        if (is_ours && are_among(at + boot_bytes + names_at, own)) {
            covered.ids[covered.count++] = id;
        }
        at += bytes + (at[bytes] == '\n' ? 1u : 0);
    }
    err = write_rails(dir, after);
    if (err == 0) {
        *ret_covered = covered;
    }
    return err;
}

bool kvf_covered_has(const struct kvf_covered *covered, uint64_t epoch)
{
    for (uint32_t i = 0; i < covered->count; i++) {
        if (covered->ids[i] == (epoch & ~UINT64_C(0xffffff))) {
            return true;
        }
    }
    return false;
}

/* ---- stats ---------------------------------------------------------------------------------------------------- */

/* 0: nothing is there, or something of ours of this kind that may be replaced. */
static int check_replaceable(struct kvf_run_dir *dir, const char *name, mode_t kind)
{
    struct stat st;
    if (fstatat(dir->dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) != 0) {
        return errno == ENOENT ? 0 : refuse_errno(dir, name);
    }
    if ((st.st_mode & S_IFMT) != kind || st.st_uid != geteuid()) {
        return refuse(dir, name, -EEXIST,
                      "exists and is not ours to replace; it is left alone");
    }
    return 0;
}

static int fill_stats(struct kvf_run_dir *dir, int fd, struct kvf_stats_shm **ret_shm)
{
    uint32_t def_count = 0;
    const struct kvf_stats_def *defs = kvf_daemon_stats_defs(&def_count);
    uint64_t bytes = kvf_stats_bytes(defs, def_count);
    if (fchmod(fd, 0644) != 0) {
        return -errno;
    }
    /* Reserved, so that a full file system is an error here and no signal later. */
    int err = -posix_fallocate(fd, 0, (off_t)bytes);
    void *addr = NULL;
    if (err == 0) {
        err = kvf_memory_map(fd, 0, bytes, true, true, &addr);
    }
    if (err == 0) {
        err = kvf_stats_format(addr, dir->config->name, KVF_VERSION, defs, def_count);
        *ret_shm = addr;
    }
    return err;
}

int kvf_run_dir_create_stats(struct kvf_run_dir *dir, int *ret_fd, int *ret_read_only_fd,
                             struct kvf_stats_shm **ret_shm)
{
    char name[FILE_NAME_BYTES];
    char fresh[FILE_NAME_BYTES];
    file_name(dir, ".stats", name);
    file_name(dir, ".stats.new", fresh);
    int err = check_replaceable(dir, name, S_IFREG);
    if (err != 0) {
        return err;
    }
    (void)unlinkat(dir->dir_fd, fresh, 0);
    int fd =
        openat(dir->dir_fd, fresh, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) {
        return refuse_file(dir, fresh, -errno);
    }
    struct kvf_stats_shm *shm = NULL;
    err = fill_stats(dir, fd, &shm);
    int read_fd = err == 0 ? openat(dir->dir_fd, fresh, O_RDONLY | O_NOFOLLOW | O_CLOEXEC) : -1;
    if (err == 0 && (read_fd < 0 || renameat(dir->dir_fd, fresh, dir->dir_fd, name) != 0)) {
        err = -errno;
    }
    if (err != 0) {
        kvf_close_fd(&read_fd);
        close(fd);
        return refuse(dir, name, err, strerror(-err));
    }
    *ret_fd = fd;
    *ret_read_only_fd = read_fd;
    *ret_shm = shm;
    return 0;
}

void kvf_run_dir_remove_stats(struct kvf_run_dir *dir)
{
    char name[FILE_NAME_BYTES];
    (void)unlinkat(dir->dir_fd, file_name(dir, ".stats", name), 0);
}

/* ---- the socket ------------------------------------------------------------------------------------------------- */

int kvf_run_dir_listen(struct kvf_run_dir *dir)
{
    char name[FILE_NAME_BYTES];
    file_name(dir, ".sock", name);
    int err = check_replaceable(dir, name, S_IFSOCK);
    if (err != 0) {
        return err;
    }
    (void)unlinkat(dir->dir_fd, name, 0);
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int bytes =
        snprintf(addr.sun_path, sizeof(addr.sun_path), "%s/%s", dir->config->run_dir, name);
    if (bytes < 0 || (size_t)bytes >= sizeof(addr.sun_path)) {
        return refuse(dir, name, -ENAMETOOLONG, "too long for a Unix socket");
    }
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return refuse_errno(dir, name);
    }
    /* The mode must be right from the first moment on. */
    mode_t before = umask(0117);
    int rc = bind(fd, (const struct sockaddr *)&addr, sizeof(addr));
    umask(before);
    if (rc != 0 || listen(fd, LISTEN_BACKLOG) != 0) {
        err = refuse_errno(dir, name);
        close(fd);
        return err;
    }
    dir->listener_fd = fd;
    return 0;
}

void kvf_run_dir_unlisten(struct kvf_run_dir *dir)
{
    char name[FILE_NAME_BYTES];
    if (dir->listener_fd >= 0) {
        (void)unlinkat(dir->dir_fd, file_name(dir, ".sock", name), 0);
        kvf_close_fd(&dir->listener_fd);
    }
}

/* ---- processors ---------------------------------------------------------------------------------------------------- */

static int lock_cpu(struct kvf_run_dir *dir, int cpu)
{
    char name[FILE_NAME_BYTES];
    snprintf(name, sizeof(name), ".cpu-%d.lock", cpu);
    return take_lock(dir, name, &dir->cpu_lock_fd);
}

/* The first that nobody else of this run directory has. */
static int lock_first(struct kvf_run_dir *dir, const uint16_t *cpus, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (lock_cpu(dir, cpus[i]) == 0) {
            return cpus[i];
        }
    }
    kvf_log(KVF_LOG_INFO, "the worker runs unpinned: %s",
            count == 0
                ? "only one processor is allowed"
                : "other daemons of this run directory hold all processors but the first");
    return KVF_CPU_NONE;
}

/* The last one first, and never the first: interrupts and everybody else are there. */
static uint32_t order_plainly(const int *allowed, int allowed_count, uint16_t *ret_cpus)
{
    uint32_t count = 0;
    for (int i = allowed_count - 1; i >= 1; i--) {
        ret_cpus[count++] = (uint16_t)allowed[i];
    }
    return count;
}

/* A number that --cpu asks for: is it one of those that this process may use? */
static int check_cpu(int wanted, const int *cpus, int count)
{
    for (int i = 0; i < count; i++) {
        if (cpus[i] == wanted) {
            return 0;
        }
    }
    kvf_log(KVF_LOG_ERROR,
            "--cpu %d: not among the %d processors that this process may use (%d to %d)",
            wanted, count, cpus[0], cpus[count - 1]);
    return -EINVAL;
}

/* Without verbs, or without a device that verbs could choose, no rail: what then becomes of verbs is for its
 * transport to say. */
static int choose_rails(const struct kvf_config *config, const int *allowed, int allowed_count,
                        struct kvf_placed *ret, char *ret_why)
{
    memset(ret, 0, sizeof(*ret));
    ret->rails.memory_node = -1;
    if (config->transport != KVF_CONFIG_VERBS) {
        return 0;
    }
    struct kvf_placement_ask ask = {.sysfs = config->sysfs,
                                    .dev_dir = "/dev/infiniband",
                                    .devices = config->rdma_devices,
                                    .near = config->rdma_near,
                                    .rails_max = config->rdma_rails,
                                    .cpu = config->cpu,
                                    .allowed = allowed,
                                    .allowed_count = allowed_count > 0 ? allowed_count : 0};
    int err = kvf_placement_choose(&ask, ret, ret_why, KVF_PLACEMENT_WHY_BYTES);
    if (err != 0) {
        kvf_log(err == -ENODEV ? KVF_LOG_WARN : KVF_LOG_ERROR, "%s", ret_why);
    }
    return err == -ENODEV ? 0 : err;
}

static int place(const struct kvf_config *config, int *ret_allowed, int *ret_count,
                 struct kvf_placed *ret, char *ret_why)
{
    int count = kvf_cpu_allowed(ret_allowed, KVF_CPUS_MAX);
    int err = config->cpu >= 0 && count > 0 ? check_cpu(config->cpu, ret_allowed, count) : 0;
    *ret_count = count;
    return err == 0 ? choose_rails(config, ret_allowed, count, ret, ret_why) : err;
}

int kvf_run_dir_check(const struct kvf_config *config)
{
    static int allowed[KVF_CPUS_MAX];
    static struct kvf_placed placement;
    char why[KVF_PLACEMENT_WHY_BYTES];
    int count = 0;
    int err = place(config, allowed, &count, &placement, why);
    return err == 0 ? check_dir(config) : err;
}

int kvf_run_dir_place(struct kvf_run_dir *dir, struct kvf_rails *ret_rails, int *ret_cpu)
{
    static int allowed[KVF_CPUS_MAX];
    static struct kvf_placed placement;
    char why[KVF_PLACEMENT_WHY_BYTES];
    char line[KVF_PLACEMENT_WHY_BYTES];
    const struct kvf_config *config = dir->config;
    int count = 0;
    int err = place(config, allowed, &count, &placement, why);
    if (err != 0) {
        return err;
    }
    int cpu = KVF_CPU_NONE;
    bool is_far = false;
    if (config->cpu == KVF_CPU_AUTO && count > 0) {
        if (placement.rails.count == 0) {
            placement.cpu_count = order_plainly(allowed, count, placement.cpus);
        }
        cpu = lock_first(dir, placement.cpus, placement.cpu_count);
        is_far = placement.near_cpu_count > 0;
        for (uint32_t i = 0; i < placement.near_cpu_count; i++) {
            is_far = is_far && placement.cpus[i] != cpu;
        }
    } else if (config->cpu >= 0 && count > 0) {
        cpu = config->cpu;
        if (lock_cpu(dir, cpu) == -EBUSY) {
            kvf_log(KVF_LOG_WARN, "processor %d is also another daemon's of this run directory",
                    cpu);
        }
    }
    if (is_far) {
        kvf_log(KVF_LOG_WARN,
                "other daemons of this run directory hold all processors near %s; --cpu N "
                "shares one",
                placement.rails.at[0].name);
    }
    if (placement.rails.count > 0) {
        kvf_log(KVF_LOG_INFO, "placed: %s",
                kvf_placement_line(&placement.rails, cpu, line, sizeof(line)));
        kvf_log(KVF_LOG_INFO, "placed so: %s", why);
    }
    *ret_rails = placement.rails;
    *ret_cpu = cpu;
    return 0;
}
