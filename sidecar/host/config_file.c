/* The configuration file. Whoever writes one may have copied it through any editor and any ticket, so each line
 * is judged by itself, every bad one is named, and nothing of a bad file is used. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sidecar/host/config_internal.h"

#define FILE_BYTES_MAX 65536u
#define LINE_BYTES_MAX 512u
#define SENTENCE_BYTES 768

struct reader {
    const char *path;
    struct kvf_config *config;
    struct kvf_config_origins *origins;
    char *error;
    size_t error_cap;
    size_t error_used;
    uint32_t faults;
};

__attribute__((format(printf, 4, 5))) static void
fault(struct reader *r, uint32_t line, const char *code, const char *format, ...)
{
    char sentence[SENTENCE_BYTES];
    char where[16] = "";
    if (++r->faults > KVF_CONFIG_FAULTS_MAX) {
        return;
    }
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof(sentence), format, args);
    va_end(args);
    if (line > 0) {
        snprintf(where, sizeof(where), ":%u", line);
    }
    int n = snprintf(r->error + r->error_used, r->error_cap - r->error_used, "%s%s%s: %s: %s",
                     r->error_used > 0 ? "\n" : "", r->path, where, code, sentence);
    size_t left = r->error_cap - r->error_used - 1u;
    r->error_used += (size_t)n < left ? (size_t)n : left;
}

/* ---- one line ---------------------------------------------------------------------------------------- */

static const char *skip_space(const char *at)
{
    return at + strspn(at, " \t");
}

/* Cuts the comment and the white space at the end; `line` is a string. */
static void cut(char *line)
{
    for (char *at = line; *at != '\0'; at++) {
        if (*at == '#' && (at == line || at[-1] == ' ' || at[-1] == '\t')) {
            *at = '\0';
            break;
        }
    }
    size_t bytes = strlen(line);
    while (bytes > 0 && (line[bytes - 1u] == ' ' || line[bytes - 1u] == '\t')) {
        line[--bytes] = '\0';
    }
}

/* The option that a key names, or NULL after saying what is wrong with it. */
static const struct option *find_key(struct reader *r, uint32_t line, const char *key,
                                     size_t key_bytes)
{
    const struct option *o = kvf_config_find(key, key_bytes);
    if (o == NULL) {
        const char *nearest = kvf_config_nearest(key, key_bytes);
        fault(r, line, "unknown-key", "'%.*s' is no option%s%s%s; kvfenced --help lists them",
              (int)(key_bytes < KVF_CONFIG_KEY_BYTES ? key_bytes : KVF_CONFIG_KEY_BYTES), key,
              nearest != NULL ? ", the nearest one is '" : "", nearest != NULL ? nearest : "",
              nearest != NULL ? "'" : "");
        return NULL;
    }
    if (kvf_config_is_action(o) || o->off == AT(config_file)) {
        fault(r, line, "not-in-a-file", "'%s' is for the command line alone", o->name);
        return NULL;
    }
    uint32_t first = r->origins->lines[kvf_config_option_idx(o)];
    if (first != 0) {
        fault(r, line, "duplicate-key", "'%s' stands in line %u already; once is allowed",
              o->name, first);
        return NULL;
    }
    return o;
}

static void take_line(struct reader *r, uint32_t line, char *text)
{
    cut(text);
    const char *key = skip_space(text);
    if (*key == '\0') {
        return;
    }
    const char *equals = strchr(key, '=');
    size_t key_bytes = equals == NULL ? 0 : (size_t)(equals - key);
    while (key_bytes > 0 && (key[key_bytes - 1u] == ' ' || key[key_bytes - 1u] == '\t')) {
        key_bytes--;
    }
    if (key_bytes == 0) {
        fault(r, line, "no-key",
              "must be \"name = value\", a comment that begins with #, or "
              "empty");
        return;
    }
    const struct option *o = find_key(r, line, key, key_bytes);
    if (o == NULL) {
        return;
    }
    r->origins->lines[kvf_config_option_idx(o)] = line;
    const char *value = skip_space(equals + 1);
    char why[SENTENCE_BYTES];
    if (*value == '\0') {
        fault(r, line, "no-value", "'%s' needs a value, %s; leave the line out for the default",
              o->name, o->kind == OPTION_FLAG ? "yes or no" : o->value);
    } else if (kvf_config_set(o, value, r->config, why, sizeof(why)) != 0) {
        fault(r, line, "bad-value", "%s", why + strlen("--"));
    }
}

/* Is there anything in these bytes that has no business in a line of text? */
static bool is_text(struct reader *r, uint32_t line, const char *text, size_t bytes)
{
    if (memchr(text, '\0', bytes) != NULL) {
        fault(r, line, "nul-byte", "holds a byte of value 0; must be plain text in UTF-8");
        return false;
    }
    for (size_t i = 0; i < bytes; i++) {
        unsigned char ch = (unsigned char)text[i];
        if ((ch < ' ' && ch != '\t') || ch == 0x7f) {
            fault(r, line, "control-byte",
                  "holds a control character of value %u; must be plain text in UTF-8",
                  (unsigned)ch);
            return false;
        }
    }
    return true;
}

/* ---- the file ---------------------------------------------------------------------------------------- */

static void take_lines(struct reader *r, const char *bytes, size_t count)
{
    static const char mark[] = "\xef\xbb\xbf"; /* some editors put it before UTF-8 */
    const char *at = bytes;
    const char *end = bytes + count;
    if (count >= 3 && memcmp(bytes, mark, 3) == 0) {
        at += 3;
    }
    for (uint32_t line = 1; at < end; line++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        const char *next = stop == NULL ? end : stop + 1;
        size_t line_bytes = (size_t)((stop == NULL ? end : stop) - at);
        if (line_bytes > 0 && at[line_bytes - 1u] == '\r') {
            line_bytes--;
        }
        if (line_bytes > LINE_BYTES_MAX) {
            fault(r, line, "line-too-long", "has %zu bytes; must be at most %u", line_bytes,
                  LINE_BYTES_MAX);
        } else if (is_text(r, line, at, line_bytes)) {
            char text[LINE_BYTES_MAX + 1u];
            memcpy(text, at, line_bytes);
            text[line_bytes] = '\0';
            take_line(r, line, text);
        }
        at = next;
    }
}

/* Reads at most one byte more than allowed. Returns how many, or -1 after saying why not. */
static ssize_t read_whole(struct reader *r, char *ret_bytes)
{
    /* Not blocking: a pipe of that name would otherwise hold the start up for ever. */
    int fd = open(r->path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0) {
        fault(r, 0, "unreadable", "%s", strerror(errno));
        if (fd >= 0) {
            close(fd);
        }
        return -1;
    }
    if (!S_ISREG(st.st_mode)) {
        fault(r, 0, "not-a-file", "is %s; must be a regular file",
              S_ISDIR(st.st_mode) ? "a directory" : "something else");
        close(fd);
        return -1;
    }
    size_t got = 0;
    ssize_t n = 1;
    while (n > 0 && got <= FILE_BYTES_MAX) {
        n = read(fd, ret_bytes + got, FILE_BYTES_MAX + 1u - got);
        got += n > 0 ? (size_t)n : 0;
    }
    int err = errno;
    close(fd);
    if (n < 0) {
        fault(r, 0, "unreadable", "%s", strerror(err));
        return -1;
    }
    if (got > FILE_BYTES_MAX) {
        fault(r, 0, "file-too-large", "must be at most %u bytes", FILE_BYTES_MAX);
        return -1;
    }
    return (ssize_t)got;
}

int kvf_config_read_file(const char *path, struct kvf_config *config,
                         struct kvf_config_origins *origins, char *ret_error, size_t cap)
{
    struct reader r = {.path = path,
                       .config = config,
                       .origins = origins,
                       .error = ret_error,
                       .error_cap = cap};
    char *bytes = malloc(FILE_BYTES_MAX + 1u);
    if (bytes == NULL) {
        return kvf_config_refuse(ret_error, cap, "%s: %s", path, strerror(ENOMEM));
    }
    ssize_t count = read_whole(&r, bytes);
    if (count > 0) {
        take_lines(&r, bytes, (size_t)count);
    }
    free(bytes);
    if (r.faults > KVF_CONFIG_FAULTS_MAX) {
        size_t left = cap - r.error_used;
        snprintf(ret_error + r.error_used, left, "\n%s: and %u more lines like these", path,
                 r.faults - KVF_CONFIG_FAULTS_MAX);
    }
    return r.faults == 0 ? 0 : -EINVAL;
}
