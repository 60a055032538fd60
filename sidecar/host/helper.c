#include "sidecar/host/helper.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct job_list {
    struct kvf_job *head;
    struct kvf_job **tail;
};

struct kvf_helper {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct job_list todo;          /* under lock */
    struct job_list back;          /* under lock */
    const struct kvf_job *at_work; /* under lock; NULL: none */
    uint64_t through_count;        /* under lock: jobs whose work_fn has returned */
    pthread_t thread;
    int event_fd;
    bool is_ending; /* under lock */
};

static void list_init(struct job_list *l)
{
    l->head = NULL;
    l->tail = &l->head;
}

static void list_push(struct job_list *l, struct kvf_job *job)
{
    job->next = NULL;
    *l->tail = job;
    l->tail = &job->next;
}

static struct kvf_job *list_pop(struct job_list *l)
{
    struct kvf_job *job = l->head;
    if (job != NULL) {
        l->head = job->next;
        if (l->head == NULL) {
            l->tail = &l->head;
        }
    }
    return job;
}

static void *run(void *arg)
{
    struct kvf_helper *h = arg;
    pthread_mutex_lock(&h->lock);
    for (;;) {
        struct kvf_job *job = list_pop(&h->todo);
        if (job == NULL && h->is_ending) {
            break;
        }
        if (job == NULL) {
            pthread_cond_wait(&h->wake, &h->lock);
            continue;
        }
        h->at_work = job;
        pthread_mutex_unlock(&h->lock);
        job->work_fn(job);
        pthread_mutex_lock(&h->lock);
        h->at_work = NULL;
        h->through_count++;
        list_push(&h->back, job);
        uint64_t one = 1;
        ssize_t put = write(h->event_fd, &one, sizeof(one));
        (void)put;
    }
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

int kvf_helper_create(struct kvf_helper **ret_helper)
{
    struct kvf_helper *h = calloc(1, sizeof(*h));
    if (h == NULL) {
        return -ENOMEM;
    }
    list_init(&h->todo);
    list_init(&h->back);
    h->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (h->event_fd < 0) {
        int err = -errno;
        free(h);
        return err;
    }
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->wake, NULL);
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int rc = pthread_create(&h->thread, NULL, run, h);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0) {
        close(h->event_fd);
        free(h);
        return -rc;
    }
    *ret_helper = h;
    return 0;
}

void kvf_helper_destroy(struct kvf_helper *helper)
{
    pthread_mutex_lock(&helper->lock);
    helper->is_ending = true;
    pthread_cond_signal(&helper->wake);
    pthread_mutex_unlock(&helper->lock);
    int rc = pthread_join(helper->thread, NULL);
    assert(rc == 0);
    close(helper->event_fd);
    pthread_cond_destroy(&helper->wake);
    pthread_mutex_destroy(&helper->lock);
    free(helper);
}

int kvf_helper_fd(const struct kvf_helper *helper)
{
    return helper->event_fd;
}

void kvf_helper_push(struct kvf_helper *helper, struct kvf_job *job)
{
    assert(job->work_fn != NULL);
    pthread_mutex_lock(&helper->lock);
    list_push(&helper->todo, job);
    pthread_cond_signal(&helper->wake);
    pthread_mutex_unlock(&helper->lock);
}

bool kvf_helper_cancel(struct kvf_helper *helper, struct kvf_job *job)
{
    pthread_mutex_lock(&helper->lock);
    struct job_list *todo = &helper->todo;
    struct kvf_job **at = &todo->head;
    while (*at != NULL && *at != job) {
        at = &(*at)->next;
    }
    bool waited = *at != NULL;
    if (waited) {
        *at = job->next;
        todo->tail = job->next == NULL ? at : todo->tail;
    }
    pthread_mutex_unlock(&helper->lock);
    return waited;
}

struct kvf_job *kvf_helper_take(struct kvf_helper *helper)
{
    pthread_mutex_lock(&helper->lock);
    struct kvf_job *job = list_pop(&helper->back);
    if (job == NULL) {
        uint64_t count;
        ssize_t got = read(helper->event_fd, &count, sizeof(count));
        (void)got;
    }
    pthread_mutex_unlock(&helper->lock);
    return job;
}

const struct kvf_job *kvf_helper_oldest(struct kvf_helper *helper, uint64_t *ret_seq)
{
    pthread_mutex_lock(&helper->lock);
    const struct kvf_job *job = helper->at_work != NULL ? helper->at_work : helper->todo.head;
    *ret_seq = helper->through_count + 1u;
    pthread_mutex_unlock(&helper->lock);
    return job;
}
