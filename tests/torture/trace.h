/* Reads a request trace: a CSV table with the columns timestamp_ms, input_tokens, output_tokens, or JSON
 * lines with the keys timestamp, input_length, output_length (each form takes the other's names too).
 *
 * The bytes of a trace are the world's: every line is checked, a bad one is named by its number, and
 * nothing is guessed. The parser works on memory alone, so that a fuzzer can drive it. */
#ifndef KVF_TORTURE_TRACE_H
#define KVF_TORTURE_TRACE_H

#include <stddef.h>
#include <stdint.h>

#include "tests/torture/sha256.h"

#define KVF_TRACE_FILE_BYTES_MAX (UINT64_C(1) << 30)
#define KVF_TRACE_LINE_BYTES_MAX (UINT32_C(1) << 20)
#define KVF_TRACE_ROWS_MAX (UINT32_C(1) << 22)
#define KVF_TRACE_TOKENS_MAX (UINT32_C(1) << 24)
#define KVF_TRACE_TIMESTAMP_MAX UINT64_C(1000000000000000)
#define KVF_TRACE_DEPTH_MAX 32

/* One per way in which a trace can be wrong; kvf_trace_fault_text has the sentences. */
enum kvf_trace_fault_code {
    KVF_TRACE_OK = 0,
    KVF_TRACE_OPEN, /* the file cannot be read; detail is the errno */
    KVF_TRACE_FILE_LONG,
    KVF_TRACE_EMPTY, /* no rows */
    KVF_TRACE_ROWS,  /* too many */
    KVF_TRACE_LINE_LONG,
    KVF_TRACE_NUL,          /* a zero byte in a line */
    KVF_TRACE_HEADER,       /* the first line of a table names no such columns */
    KVF_TRACE_FIELDS,       /* a row has another number of fields than the header */
    KVF_TRACE_NUMBER,       /* a value that is not a plain decimal number */
    KVF_TRACE_TOKENS_RANGE, /* prompt of 0 tokens, or more than the maximum */
    KVF_TRACE_TIME_RANGE,
    KVF_TRACE_JSON, /* not one JSON object */
    KVF_TRACE_KEY_MISSING,
    KVF_TRACE_KEY_TWICE,
    KVF_TRACE_MEMORY,
    KVF_TRACE_FAULT_COUNT
};

struct kvf_trace_row {
    uint64_t timestamp_ms;
    uint32_t input_tokens;
    uint32_t output_tokens;
};

struct kvf_trace {
    struct kvf_trace_row *rows; /* owned, freed by kvf_trace_free */
    uint32_t row_count;
    char sha256[KVF_SHA256_HEX_BYTES];
};

struct kvf_trace_fault {
    enum kvf_trace_fault_code code;
    uint32_t line;  /* from 1; 0: not about a line */
    int detail;     /* errno of KVF_TRACE_OPEN */
    char field[24]; /* column or key it is about, or "" */
};

/* 0, or -1 with *ret_fault filled and *ret_trace untouched. */
int kvf_trace_parse(const char *bytes, size_t count, struct kvf_trace *ret_trace,
                    struct kvf_trace_fault *ret_fault);
int kvf_trace_read(const char *path, struct kvf_trace *ret_trace,
                   struct kvf_trace_fault *ret_fault);
void kvf_trace_free(struct kvf_trace *trace);
/* What was wrong and what is allowed. Static. */
const char *kvf_trace_fault_text(enum kvf_trace_fault_code code);

#endif
