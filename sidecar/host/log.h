/* One line per rare event on stderr, each written by a single call so that lines of supervisor and
 * worker never mix. Nothing on the path of a transfer logs. */
#ifndef KVF_HOST_LOG_H
#define KVF_HOST_LOG_H

enum kvf_log_level {
    KVF_LOG_ERROR = 0, /* something was lost or refused that an operator must look at */
    KVF_LOG_WARN = 1,  /* it works, but not as configured */
    KVF_LOG_INFO = 2,  /* starts, ends, attaches */
    KVF_LOG_DEBUG = 3,
};

/* Who speaks ("gpu0/worker") and what is let through. Before any thread is started. */
void kvf_log_init(const char *who, enum kvf_log_level level);
/* From now on, for all threads. */
void kvf_log_set_level(enum kvf_log_level level);
void kvf_log(enum kvf_log_level level, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
