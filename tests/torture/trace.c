#include "tests/torture/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum trace_field { FIELD_TIME = 0, FIELD_INPUT, FIELD_OUTPUT, FIELD_COUNT, FIELD_OTHER };

static const char *const field_names[FIELD_COUNT][2] = {
    {"timestamp_ms", "timestamp"},
    {"input_tokens", "input_length"},
    {"output_tokens", "output_length"},
};

/* A table wider than this is not a request trace. */
#define COLUMNS_MAX 16u

struct text {
    const char *at;
    const char *end;
};

struct parser {
    struct kvf_trace trace;
    uint32_t rows_cap;
    uint32_t line;
    enum trace_field columns[COLUMNS_MAX];
    uint32_t column_count;
    struct kvf_trace_fault *fault;
};

static int fail(struct parser *p, enum kvf_trace_fault_code code, const char *field)
{
    memset(p->fault, 0, sizeof(*p->fault));
    p->fault->code = code;
    p->fault->line = p->line;
    snprintf(p->fault->field, sizeof(p->fault->field), "%s", field);
    return -1;
}

static enum trace_field field_of(struct text name)
{
    size_t count = (size_t)(name.end - name.at);
    for (enum trace_field f = FIELD_TIME; f < FIELD_COUNT; f++) {
        for (unsigned int form = 0; form < 2; form++) {
            const char *known = field_names[f][form];
            if (strlen(known) == count && memcmp(known, name.at, count) == 0) {
                return f;
            }
        }
    }
    return FIELD_OTHER;
}

/* A plain decimal number of at most 18 digits. Times may have a fraction, which is dropped: some
 * published traces write 27482.0. */
static bool parse_number(struct text t, bool may_have_fraction, uint64_t *ret_value)
{
    uint64_t value = 0;
    unsigned int digits = 0;
    while (t.at < t.end && *t.at >= '0' && *t.at <= '9' && digits < 18) {
        value = value * 10 + (uint64_t)(*t.at - '0');
        t.at++;
        digits++;
    }
    if (digits > 0 && may_have_fraction && t.end - t.at >= 2 && *t.at == '.') {
        t.at++;
        while (t.at < t.end && *t.at >= '0' && *t.at <= '9') {
            t.at++;
        }
    }
    if (digits == 0 || t.at != t.end) {
        return false;
    }
    *ret_value = value;
    return true;
}

static int add_value(struct parser *p, enum trace_field field, struct text t, uint64_t *values)
{
    if (!parse_number(t, field == FIELD_TIME, &values[field])) {
        return fail(p, KVF_TRACE_NUMBER, field_names[field][0]);
    }
    return 0;
}

static int add_row(struct parser *p, const uint64_t values[FIELD_COUNT])
{
    if (values[FIELD_TIME] > KVF_TRACE_TIMESTAMP_MAX) {
        return fail(p, KVF_TRACE_TIME_RANGE, field_names[FIELD_TIME][0]);
    }
    if (values[FIELD_INPUT] == 0 || values[FIELD_INPUT] > KVF_TRACE_TOKENS_MAX) {
        return fail(p, KVF_TRACE_TOKENS_RANGE, field_names[FIELD_INPUT][0]);
    }
    if (values[FIELD_OUTPUT] > KVF_TRACE_TOKENS_MAX) {
        return fail(p, KVF_TRACE_TOKENS_RANGE, field_names[FIELD_OUTPUT][0]);
    }
    if (p->trace.row_count == KVF_TRACE_ROWS_MAX) {
        return fail(p, KVF_TRACE_ROWS, "");
    }
    if (p->trace.row_count == p->rows_cap) {
        uint32_t cap = p->rows_cap == 0 ? 4096 : p->rows_cap * 2;
        struct kvf_trace_row *rows = realloc(p->trace.rows, cap * sizeof(*rows));
        if (rows == NULL) {
            return fail(p, KVF_TRACE_MEMORY, "");
        }
        p->trace.rows = rows;
        p->rows_cap = cap;
    }
    p->trace.rows[p->trace.row_count++] =
        (struct kvf_trace_row){.timestamp_ms = values[FIELD_TIME],
                               .input_tokens = (uint32_t)values[FIELD_INPUT],
                               .output_tokens = (uint32_t)values[FIELD_OUTPUT]};
    return 0;
}

/* ---- tables ------------------------------------------------------------------------------------- */

static struct text trim(struct text t)
{
    while (t.at < t.end && (*t.at == ' ' || *t.at == '\t')) {
        t.at++;
    }
    while (t.at < t.end && (t.end[-1] == ' ' || t.end[-1] == '\t' || t.end[-1] == '\r')) {
        t.end--;
    }
    return t;
}

/* Takes the text up to the next comma off *rest. */
static struct text next_cell(struct text *rest, bool *ret_is_last)
{
    const char *comma = memchr(rest->at, ',', (size_t)(rest->end - rest->at));
    struct text cell = {rest->at, comma == NULL ? rest->end : comma};
    *ret_is_last = comma == NULL;
    rest->at = comma == NULL ? rest->end : comma + 1;
    return trim(cell);
}

static int parse_header(struct parser *p, struct text line)
{
    bool is_there[FIELD_COUNT] = {false};
    bool is_last = false;
    while (!is_last) {
        struct text cell = next_cell(&line, &is_last);
        enum trace_field field = field_of(cell);
        if (p->column_count == COLUMNS_MAX) {
            return fail(p, KVF_TRACE_HEADER, "");
        }
        if (field < FIELD_COUNT && is_there[field]) {
            return fail(p, KVF_TRACE_KEY_TWICE, field_names[field][0]);
        }
        if (field < FIELD_COUNT) {
            is_there[field] = true;
        }
        p->columns[p->column_count++] = field;
    }
    for (unsigned int f = 0; f < FIELD_COUNT; f++) {
        if (!is_there[f]) {
            return fail(p, KVF_TRACE_HEADER, field_names[f][0]);
        }
    }
    return 0;
}

static int parse_table_row(struct parser *p, struct text line)
{
    uint64_t values[FIELD_COUNT] = {0};
    uint32_t column = 0;
    bool is_last = false;
    while (!is_last) {
        struct text cell = next_cell(&line, &is_last);
        if (column == p->column_count) {
            return fail(p, KVF_TRACE_FIELDS, "");
        }
        enum trace_field field = p->columns[column++];
        if (field < FIELD_COUNT && add_value(p, field, cell, values) != 0) {
            return -1;
        }
    }
    if (column != p->column_count) {
        return fail(p, KVF_TRACE_FIELDS, "");
    }
    return add_row(p, values);
}

/* ---- JSON lines --------------------------------------------------------------------------------- */

static void skip_space(struct text *t)
{
    while (t->at < t->end && (*t->at == ' ' || *t->at == '\t' || *t->at == '\r')) {
        t->at++;
    }
}

static bool take(struct text *t, char c)
{
    skip_space(t);
    if (t->at == t->end || *t->at != c) {
        return false;
    }
    t->at++;
    return true;
}

/* A string, without looking into its escapes: the keys we know have none. */
static bool take_string(struct text *t, struct text *ret_inner)
{
    if (!take(t, '"')) {
        return false;
    }
    struct text inner = {t->at, t->at};
    while (t->at < t->end && *t->at != '"') {
        if (*t->at == '\\') {
            t->at++;
            if (t->at == t->end) {
                return false;
            }
        }
        t->at++;
    }
    if (t->at == t->end) {
        return false;
    }
    inner.end = t->at++;
    *ret_inner = inner;
    return true;
}

/* Passes over a value of a key we do not know, and returns its text. Brackets must pair; numbers and
 * words inside are not looked at. */
static bool take_value(struct text *t, struct text *ret_value)
{
    char open[KVF_TRACE_DEPTH_MAX];
    unsigned int depth = 0;
    struct text inner;
    skip_space(t);
    const char *start = t->at;
    while (t->at < t->end) {
        char c = *t->at;
        if (c == '"') {
            if (!take_string(t, &inner)) {
                return false;
            }
            continue;
        }
        if (depth == 0 && (c == ',' || c == '}' || c == ']')) {
            break;
        }
        if (c == '{' || c == '[') {
            if (depth == KVF_TRACE_DEPTH_MAX) {
                return false;
            }
            open[depth++] = c;
        } else if (c == '}' || c == ']') {
            if (open[--depth] != (c == '}' ? '{' : '[')) {
                return false;
            }
        }
        t->at++;
    }
    *ret_value = trim((struct text){start, t->at});
    return depth == 0 && ret_value->at < ret_value->end;
}

static int parse_json_members(struct parser *p, struct text *t, uint64_t *values,
                              bool *is_there)
{
    do {
        struct text name;
        struct text value;
        if (!take_string(t, &name) || !take(t, ':') || !take_value(t, &value)) {
            return fail(p, KVF_TRACE_JSON, "");
        }
        enum trace_field field = field_of(name);
        if (field == FIELD_OTHER) {
            continue;
        }
        if (is_there[field]) {
            return fail(p, KVF_TRACE_KEY_TWICE, field_names[field][1]);
        }
        is_there[field] = true;
        if (add_value(p, field, value, values) != 0) {
            return -1;
        }
    } while (take(t, ','));
    return 0;
}

static int parse_json_row(struct parser *p, struct text line)
{
    uint64_t values[FIELD_COUNT] = {0};
    bool is_there[FIELD_COUNT] = {false};
    if (!take(&line, '{')) {
        return fail(p, KVF_TRACE_JSON, "");
    }
    if (!take(&line, '}')) {
        if (parse_json_members(p, &line, values, is_there) != 0) {
            return -1;
        }
        if (!take(&line, '}')) {
            return fail(p, KVF_TRACE_JSON, "");
        }
    }
    skip_space(&line);
    if (line.at != line.end) {
        return fail(p, KVF_TRACE_JSON, "");
    }
    for (unsigned int f = 0; f < FIELD_COUNT; f++) {
        if (!is_there[f]) {
            return fail(p, KVF_TRACE_KEY_MISSING, field_names[f][1]);
        }
    }
    return add_row(p, values);
}

/* ---- the file ----------------------------------------------------------------------------------- */

static int parse_line(struct parser *p, struct text line, bool *is_json, bool *is_started)
{
    if (line.end - line.at > KVF_TRACE_LINE_BYTES_MAX) {
        return fail(p, KVF_TRACE_LINE_LONG, "");
    }
    if (memchr(line.at, 0, (size_t)(line.end - line.at)) != NULL) {
        return fail(p, KVF_TRACE_NUL, "");
    }
    line = trim(line);
    if (line.at == line.end) {
        return 0; /* blank lines are harmless, at the end above all */
    }
    if (!*is_started) {
        *is_started = true;
        *is_json = *line.at == '{';
        if (!*is_json) {
            return parse_header(p, line);
        }
    }
    return *is_json ? parse_json_row(p, line) : parse_table_row(p, line);
}

int kvf_trace_parse(const char *bytes, size_t count, struct kvf_trace *ret_trace,
                    struct kvf_trace_fault *ret_fault)
{
    struct parser p = {.fault = ret_fault};
    struct kvf_sha256 sha;
    bool is_json = false;
    bool is_started = false;
    const char *at = bytes;
    const char *end = bytes + count;
    if (count > KVF_TRACE_FILE_BYTES_MAX) {
        return fail(&p, KVF_TRACE_FILE_LONG, "");
    }
    while (at < end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        struct text line = {at, newline == NULL ? end : newline};
        p.line++;
        if (parse_line(&p, line, &is_json, &is_started) != 0) {
            goto free_rows;
        }
        at = newline == NULL ? end : newline + 1;
    }
    p.line = 0;
    if (p.trace.row_count == 0) {
        fail(&p, KVF_TRACE_EMPTY, "");
        goto free_rows;
    }
    kvf_sha256_init(&sha);
    kvf_sha256_add(&sha, bytes, count);
    kvf_sha256_hex(&sha, p.trace.sha256);
    *ret_trace = p.trace;
    return 0;

free_rows:
    free(p.trace.rows);
    return -1;
}

static int read_fault(struct kvf_trace_fault *fault, enum kvf_trace_fault_code code, int detail)
{
    memset(fault, 0, sizeof(*fault));
    fault->code = code;
    fault->detail = detail;
    return -1;
}

/* Reads until the end rather than trusting st_size: a pipe is a fine trace too. */
static int read_all(int fd, char **ret_bytes, size_t *ret_count,
                    struct kvf_trace_fault *ret_fault)
{
    size_t cap = 1 << 16;
    size_t count = 0;
    char *bytes = malloc(cap);
    while (bytes != NULL) {
        ssize_t got = read(fd, bytes + count, cap - count);
        if (got == 0) {
            *ret_bytes = bytes;
            *ret_count = count;
            return 0;
        }
        if (got < 0) {
            int err = errno;
            if (err == EINTR) {
                continue;
            }
            free(bytes);
            return read_fault(ret_fault, KVF_TRACE_OPEN, err);
        }
        count += (size_t)got;
        if (count > KVF_TRACE_FILE_BYTES_MAX) {
            free(bytes);
            return read_fault(ret_fault, KVF_TRACE_FILE_LONG, 0);
        }
        if (count == cap) {
            cap *= 2;
            char *more = realloc(bytes, cap);
            if (more == NULL) {
                free(bytes);
            }
            bytes = more;
        }
    }
    return read_fault(ret_fault, KVF_TRACE_MEMORY, 0);
}

int kvf_trace_read(const char *path, struct kvf_trace *ret_trace,
                   struct kvf_trace_fault *ret_fault)
{
    char *bytes;
    size_t count;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return read_fault(ret_fault, KVF_TRACE_OPEN, errno);
    }
    int rc = read_all(fd, &bytes, &count, ret_fault);
    close(fd);
    if (rc == 0) {
        rc = kvf_trace_parse(bytes, count, ret_trace, ret_fault);
        free(bytes);
    }
    return rc;
}

void kvf_trace_free(struct kvf_trace *trace)
{
    free(trace->rows);
    trace->rows = NULL;
    trace->row_count = 0;
}

const char *kvf_trace_fault_text(enum kvf_trace_fault_code code)
{
    switch (code) {
    case KVF_TRACE_OK:
        return "nothing is wrong";
    case KVF_TRACE_OPEN:
        return "the file cannot be read";
    case KVF_TRACE_FILE_LONG:
        return "the file is longer than 1 GiB, which is the most a trace may have";
    case KVF_TRACE_EMPTY:
        return "no row in it: a trace has at least one request";
    case KVF_TRACE_ROWS:
        return "more than 4,194,304 rows, which is the most a trace may have";
    case KVF_TRACE_LINE_LONG:
        return "the line is longer than 1 MiB, which is the most a row may have";
    case KVF_TRACE_NUL:
        return "a zero byte in the line: a trace is text";
    case KVF_TRACE_HEADER:
        return "the first line of a table names the columns timestamp_ms, input_tokens and "
               "output_tokens (at most 16 columns in all); this column is missing";
    case KVF_TRACE_FIELDS:
        return "the row has another number of fields than the header has columns";
    case KVF_TRACE_NUMBER:
        return "the value is not a plain decimal number of at most 18 digits";
    case KVF_TRACE_TOKENS_RANGE:
        return "a prompt has 1 to 16,777,216 tokens, an answer 0 to 16,777,216";
    case KVF_TRACE_TIME_RANGE:
        return "a time is 0 to 1,000,000,000,000,000 milliseconds";
    case KVF_TRACE_JSON:
        return "the line is not one JSON object (at most 32 levels deep)";
    case KVF_TRACE_KEY_MISSING:
        return "the object has no such key: timestamp, input_length and output_length are "
               "needed";
    case KVF_TRACE_KEY_TWICE:
        return "the key or column is there twice";
    case KVF_TRACE_MEMORY:
        return "not enough memory for the rows";
    case KVF_TRACE_FAULT_COUNT:
        break;
    }
    return "unknown fault";
}
