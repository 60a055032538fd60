/* A thread for calls that can take long, beside the loop: one for mapping, unmapping and registration, and others
 * for queue pairs alone (transport/README.md), since a fence must not stand behind an 80 GB registration.
 *
 * A job belongs to exactly one side at a time: to the helper from push until take, or until a cancel that came in
 * time. */
#ifndef KVF_HOST_HELPER_H
#define KVF_HOST_HELPER_H

#include <stdbool.h>
#include <stdint.h>

struct kvf_helper;

struct kvf_job { /* first member of what the caller allocates */
    struct kvf_job *next;
    void (*work_fn)(struct kvf_job *job); /* helper thread */
};

/* Starts the thread; it keeps the processors that the caller may use now. 0 or -errno. */
int kvf_helper_create(struct kvf_helper **ret_helper);
/* Readable when a job may be taken. Owned by the helper. */
int kvf_helper_fd(const struct kvf_helper *helper);
void kvf_helper_push(struct kvf_helper *helper, struct kvf_job *job);
/* true: the job had not begun, and is the caller's again. false: it is at work or through, and take brings it.
 * Looks at every job that waits. */
bool kvf_helper_cancel(struct kvf_helper *helper, struct kvf_job *job);
/* A job whose work_fn has returned, in order of push; NULL: none. Clears the descriptor. */
struct kvf_job *kvf_helper_take(struct kvf_helper *helper);

/* Lets it do what it was given, ends the thread and frees the helper. Waits as long as that takes. Jobs stay
 * the caller's, taken or not. */
void kvf_helper_destroy(struct kvf_helper *helper);

/* The job that the others wait for: at work, or next. NULL: none. It stays the helper's: for comparing only.
 * ret_seq: its number, from 1; who finds the same number for long knows that the thread stands still. */
const struct kvf_job *kvf_helper_oldest(struct kvf_helper *helper, uint64_t *ret_seq);

#endif
