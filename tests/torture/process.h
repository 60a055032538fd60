/* Child processes and the private run directory of a run. Nothing of either survives the coordinator:
 * children end with it (parent-death signal, also across exec), and the directory goes in every exit
 * path, interrupts included. */
#ifndef KVF_TORTURE_PROCESS_H
#define KVF_TORTURE_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Where a child finds the descriptor that it was handed. */
#define KVF_HANDED_FD 3

struct kvf_child {
    pid_t pid;  /* 0: none */
    int out_fd; /* its standard output, owned; -1 */
    int status; /* of waitpid, once it was reaped */
    bool is_reaped;
    char name[24];
};

struct kvf_spawn {
    const char *path;
    char *const *argv;
    int handed_fd;        /* becomes KVF_HANDED_FD; -1: none */
    const char *log_path; /* standard error; NULL: ours */
    bool has_output;      /* standard output goes to a pipe, child->out_fd */
};

/* Every signal that would end us is noted instead; children start with the usual dispositions. */
void kvf_process_catch_signals(void);
/* The signal that asked us to stop, or 0. */
int kvf_process_signal(void);

/* 0 or -errno. */
int kvf_child_spawn(struct kvf_child *child, const struct kvf_spawn *spawn);
/* True once it has ended; reaps it. Does not block. */
bool kvf_child_has_ended(struct kvf_child *child);
/* Waits for it; kills it after timeout_ms. True if it ended by itself. */
bool kvf_child_wait(struct kvf_child *child, uint32_t timeout_ms);
/* Reads one line of its output, at most timeout_ms. Bytes, or -ETIMEDOUT, -EPIPE (it ended). */
int kvf_child_read_line(struct kvf_child *child, uint32_t timeout_ms, char *ret_line,
                        size_t cap);
/* Reads all of its output. Bytes (0-terminated, cut at cap), or -errno. */
int kvf_child_read_all(struct kvf_child *child, uint32_t timeout_ms, char *ret_text,
                       size_t cap);

/* In a child, before its work: ends it with its parent, and does so at once if that is gone already. */
int kvf_process_tie_to_parent(pid_t parent, int signal_number);

/* A fresh directory of mode 0700. 0 or -errno. */
int kvf_run_dir_create(char *ret_path, size_t cap);
/* Copies its logs to keep_logs (NULL: no), prefixed; then removes it with everything in it. */
void kvf_run_dir_remove(const char *path, const char *keep_logs, const char *prefix);
/* Path of this program's own file, or of a program beside it, built or installed. 0 or -errno. */
int kvf_program_path(const char *beside, char *ret_path, size_t cap);

/* CLOCK_MONOTONIC, the same for every process of the machine. */
uint64_t kvf_torture_now_ns(void);

#endif
