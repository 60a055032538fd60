#include "client/stat/format.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *kvf_format_count(char *ret_text, uint64_t value)
{
    char digits[24];
    int n = snprintf(digits, sizeof digits, "%" PRIu64, value);
    char *to = ret_text;

    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0) {
            *to++ = ',';
        }
        *to++ = digits[i];
    }
    *to = '\0';
    return ret_text;
}

/* Three significant digits are what a bucket of a histogram is good for, and more than enough. */
static void write_scaled(char *ret_text, double value, const char *unit)
{
    int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;

    (void)snprintf(ret_text, KVF_FORMAT_BYTES, "%.*f", decimals, value);
    char *dot = strchr(ret_text, '.');
    if (dot != NULL) { /* 2.00 is 2 */
        char *end = ret_text + strlen(ret_text) - 1;
        while (*end == '0') {
            *end-- = '\0';
        }
        if (end == dot) {
            *end = '\0';
        }
    }
    size_t used = strlen(ret_text);
    (void)snprintf(ret_text + used, KVF_FORMAT_BYTES - used, " %s", unit);
}

const char *kvf_format_us(char *ret_text, uint64_t us)
{
    if (us < 1000u) {
        (void)snprintf(ret_text, KVF_FORMAT_BYTES, "%" PRIu64 " us", us);
    } else if (us < 1000000u) {
        write_scaled(ret_text, (double)us / 1e3, "ms");
    } else {
        write_scaled(ret_text, (double)us / 1e6, "s");
    }
    return ret_text;
}

const char *kvf_format_age(char *ret_text, uint64_t ns)
{
    uint64_t s = ns / UINT64_C(1000000000);

    if (s < 60u) {
        (void)snprintf(ret_text, KVF_FORMAT_BYTES, "%" PRIu64 " s", s);
    } else if (s < 3600u) {
        (void)snprintf(ret_text, KVF_FORMAT_BYTES, "%" PRIu64 " m %02" PRIu64 " s", s / 60u,
                       s % 60u);
    } else if (s < 86400u) {
        (void)snprintf(ret_text, KVF_FORMAT_BYTES, "%" PRIu64 " h %02" PRIu64 " m", s / 3600u,
                       s / 60u % 60u);
    } else {
        (void)snprintf(ret_text, KVF_FORMAT_BYTES, "%" PRIu64 " d %02" PRIu64 " h", s / 86400u,
                       s / 3600u % 24u);
    }
    return ret_text;
}

const char *kvf_format_bytes(char *ret_text, uint64_t bytes)
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    int unit = -1;

    while (value >= 1024.0 && unit < 5) {
        value /= 1024.0;
        unit++;
    }
    if (unit < 0) {
        (void)snprintf(ret_text, KVF_FORMAT_BYTES, "%" PRIu64 " B", bytes);
    } else {
        write_scaled(ret_text, value, units[unit]);
    }
    return ret_text;
}

const char *kvf_format_rate(char *ret_text, uint64_t bytes_per_s)
{
    if (bytes_per_s == 0) {
        (void)snprintf(ret_text, KVF_FORMAT_BYTES, "unpaced");
    } else {
        write_scaled(ret_text, (double)bytes_per_s / 1e6, "MB/s");
    }
    return ret_text;
}
