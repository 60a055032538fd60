/* The trace reader: both forms give the same rows, and every way of being wrong has a code and names its
 * line. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/torture/trace.h"

static int parse(const char *text, struct kvf_trace *trace, struct kvf_trace_fault *fault)
{
    return kvf_trace_parse(text, strlen(text), trace, fault);
}

static void refused(const char *text, enum kvf_trace_fault_code code, uint32_t line)
{
    struct kvf_trace trace;
    struct kvf_trace_fault fault;
    cr_assert_eq(parse(text, &trace, &fault), -1, "taken: %s", text);
    cr_assert_eq(fault.code, code, "code %d, not %d: %s", fault.code, code, text);
    cr_assert_eq(fault.line, line, "line %u, not %u: %s", fault.line, line, text);
    cr_assert_gt(strlen(kvf_trace_fault_text(fault.code)), 10);
}

Test(trace, table_and_json_lines_give_the_same_rows)
{
    struct kvf_trace table;
    struct kvf_trace json;
    struct kvf_trace_fault fault;
    cr_assert_eq(parse("timestamp_ms,input_tokens,output_tokens\r\n0,6758,500\r\n27482,1,0\r\n",
                       &table, &fault),
                 0);
    cr_assert_eq(parse("{\"timestamp\": 0, \"input_length\": 6758, \"output_length\": 500, "
                       "\"hash_ids\": [0, 1, [2]]}\n"
                       "\n"
                       "{\"output_length\":0,\"note\":\"a \\\"}, b\",\"input_length\":1,"
                       "\"timestamp\":27482.0}",
                       &json, &fault),
                 0, "code %d line %u", fault.code, fault.line);
    cr_assert_eq(table.row_count, 2);
    cr_assert_eq(json.row_count, 2);
    cr_assert_eq(memcmp(table.rows, json.rows, 2 * sizeof(table.rows[0])), 0);
    cr_assert_eq(table.rows[1].timestamp_ms, 27482);
    cr_assert_neq(strcmp(table.sha256, json.sha256), 0);
    kvf_trace_free(&table);
    kvf_trace_free(&json);
}

Test(trace, columns_may_stand_in_any_order_among_others)
{
    struct kvf_trace trace;
    struct kvf_trace_fault fault;
    cr_assert_eq(parse("id,output_length,timestamp,input_length\nx,3,1,2\n", &trace, &fault),
                 0);
    cr_assert_eq(trace.rows[0].timestamp_ms, 1);
    cr_assert_eq(trace.rows[0].input_tokens, 2);
    cr_assert_eq(trace.rows[0].output_tokens, 3);
    kvf_trace_free(&trace);
}

#define HEAD "timestamp_ms,input_tokens,output_tokens\n"

Test(trace, bad_tables_are_refused_by_line)
{
    refused("", KVF_TRACE_EMPTY, 0);
    refused(HEAD, KVF_TRACE_EMPTY, 0);
    refused("1,2,3\n", KVF_TRACE_HEADER, 1);
    refused("timestamp_ms,input_tokens\n1,2\n", KVF_TRACE_HEADER, 1);
    refused("timestamp_ms,timestamp,input_tokens,output_tokens\n", KVF_TRACE_KEY_TWICE, 1);
    refused("a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,timestamp,input_tokens,output_tokens\n",
            KVF_TRACE_HEADER, 1);
    refused(HEAD "1,2,3\n1,2\n", KVF_TRACE_FIELDS, 3);
    refused(HEAD "1,2,3,4\n", KVF_TRACE_FIELDS, 2);
    refused(HEAD "1,2,3\n\n1,-2,3\n", KVF_TRACE_NUMBER, 4);
    refused(HEAD "1,0x10,3\n", KVF_TRACE_NUMBER, 2);
    refused(HEAD "1,2.5,3\n", KVF_TRACE_NUMBER, 2);
    refused(HEAD "1,,3\n", KVF_TRACE_NUMBER, 2);
    refused(HEAD "1,9999999999999999999,3\n", KVF_TRACE_NUMBER, 2);
    refused(HEAD "1,0,3\n", KVF_TRACE_TOKENS_RANGE, 2);
    refused(HEAD "1,16777217,3\n", KVF_TRACE_TOKENS_RANGE, 2);
    refused(HEAD "1,2,16777217\n", KVF_TRACE_TOKENS_RANGE, 2);
    refused(HEAD "1000000000000001,2,3\n", KVF_TRACE_TIME_RANGE, 2);
}

#define ROW "{\"timestamp\":1,\"input_length\":2,\"output_length\":3}\n"

Test(trace, bad_json_lines_are_refused_by_line)
{
    refused(ROW "{\"timestamp\":1,\"input_length\":2}\n", KVF_TRACE_KEY_MISSING, 2);
    refused(ROW ROW
            "{\"timestamp\":1,\"timestamp\":1,\"input_length\":2,\"output_length\":3}\n",
            KVF_TRACE_KEY_TWICE, 3);
    refused(ROW "1,2,3\n", KVF_TRACE_JSON, 2);
    refused(ROW "{}\n", KVF_TRACE_KEY_MISSING, 2);
    refused(ROW "{\"timestamp\":1,\n", KVF_TRACE_JSON, 2);
    refused(ROW "{\"timestamp\":\"1\",\"input_length\":2,\"output_length\":3}\n",
            KVF_TRACE_NUMBER, 2);
    refused(ROW "{\"timestamp\":1,\"input_length\":2,\"output_length\":3} x\n", KVF_TRACE_JSON,
            2);
    refused(ROW "{\"a\":[1,2},\"timestamp\":1,\"input_length\":2,\"output_length\":3}\n",
            KVF_TRACE_JSON, 2);
    refused(ROW "{\"a\":\"never ended\n", KVF_TRACE_JSON, 2);
    refused(ROW "{\"a\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]],"
                "\"timestamp\":1}\n",
            KVF_TRACE_JSON, 2);
}

Test(trace, zero_bytes_and_endless_lines_are_refused)
{
    static const char with_nul[] = HEAD "1,2,\0003\n";
    struct kvf_trace trace;
    struct kvf_trace_fault fault;
    size_t count = KVF_TRACE_LINE_BYTES_MAX + 2;
    char *endless = malloc(count);
    cr_assert_eq(kvf_trace_parse(with_nul, sizeof(with_nul) - 1, &trace, &fault), -1);
    cr_assert_eq(fault.code, KVF_TRACE_NUL);
    cr_assert_eq(fault.line, 2);
    memset(endless, 'a', count);
    cr_assert_eq(kvf_trace_parse(endless, count, &trace, &fault), -1);
    cr_assert_eq(fault.code, KVF_TRACE_LINE_LONG);
    free(endless);
}

Test(trace, a_file_that_cannot_be_read_is_its_own_fault)
{
    struct kvf_trace trace;
    struct kvf_trace_fault fault;
    cr_assert_eq(kvf_trace_read("/nonexistent/trace.csv", &trace, &fault), -1);
    cr_assert_eq(fault.code, KVF_TRACE_OPEN);
    cr_assert_neq(fault.detail, 0);
}

Test(trace, a_file_is_read_and_named_by_its_sum)
{
    char path[] = "/tmp/kvf-trace-XXXXXX";
    struct kvf_trace trace;
    struct kvf_trace_fault fault;
    int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    cr_assert_eq(write(fd, HEAD "1,2,3\n", strlen(HEAD) + 6), (ssize_t)strlen(HEAD) + 6);
    close(fd);
    cr_assert_eq(kvf_trace_read(path, &trace, &fault), 0);
    unlink(path);
    cr_assert_eq(trace.row_count, 1);
    cr_assert_eq(strlen(trace.sha256), 64);
    kvf_trace_free(&trace);
}

/* The two vectors of FIPS 180-4's examples, and one long enough to cross blocks. */
Test(trace, sums_are_sha256)
{
    struct kvf_sha256 sha;
    char hex[KVF_SHA256_HEX_BYTES];
    char million[1000];
    kvf_sha256_init(&sha);
    kvf_sha256_add(&sha, "abc", 3);
    kvf_sha256_hex(&sha, hex);
    cr_assert_str_eq(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    kvf_sha256_init(&sha);
    kvf_sha256_add(&sha, "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56);
    kvf_sha256_hex(&sha, hex);
    cr_assert_str_eq(hex, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    memset(million, 'a', sizeof(million));
    kvf_sha256_init(&sha);
    for (int i = 0; i < 1000; i++) {
        kvf_sha256_add(&sha, million, sizeof(million));
    }
    kvf_sha256_hex(&sha, hex);
    cr_assert_str_eq(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}
