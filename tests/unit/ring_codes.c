/* codes.h and the installed header say the same, and each number has a name and a sentence. */
#include <criterion/criterion.h>

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "client/kvfence.h"
#include "ring/codes.h" /* a number that differs is a redefinition, which does not compile */

static int count_in_file(const char *path, int is_in_order)
{
    FILE *file = fopen(path, "r");
    cr_assert_not_null(file, "cannot read %s", path);
    char line[512];
    int count = 0;
    while (fgets(line, sizeof line, file) != NULL) {
        char name[64];
        int code;
        if (sscanf(line, "#define %63s %d", name, &code) != 2 ||
            strncmp(name, "KVF_E_", 6) != 0 || strcmp(name, "KVF_E_LAST") == 0) {
            continue;
        }
        cr_assert_str_eq(kvf_code_name(code), name);
        cr_assert(!is_in_order || code == KVF_E_NO_DAEMON + count);
        count++;
    }
    fclose(file);
    return count;
}

Test(ring_codes, both_headers_hold_every_code_under_the_same_name)
{
    int expected = KVF_E_LAST - KVF_E_NO_DAEMON + 1;
    cr_assert_eq(count_in_file(KVF_SOURCE_DIR "/ring/codes.h", 1), expected);
    cr_assert_eq(count_in_file(KVF_SOURCE_DIR "/client/kvfence.h", 1), expected);
}

Test(ring_codes, each_code_has_a_sentence_of_its_own_with_either_sign)
{
    for (int code = KVF_E_NO_DAEMON; code <= KVF_E_LAST; code++) {
        const char *text = kvf_code_text(code);
        cr_assert_eq(text, kvf_code_text(-code));
        cr_assert_eq(kvf_code_name(code), kvf_code_name(-code));
        cr_assert_gt(strlen(text), 15, "%s", kvf_code_name(code));
        for (int other = KVF_E_NO_DAEMON; other < code; other++) {
            cr_assert_str_neq(text, kvf_code_text(other));
        }
    }
}

Test(ring_codes, an_errno_and_an_unknown_number_have_an_answer_too)
{
    cr_assert_str_eq(kvf_code_name(-EAGAIN), "EAGAIN");
    cr_assert_str_eq(kvf_code_name(EBUSY), "EBUSY");
    cr_assert_str_eq(kvf_code_name(-ENOTDIR), "ENOTDIR");
    cr_assert_str_eq(kvf_code_name(0), "OK");
    const int strange[] = {KVF_E_LAST + 1, -KVF_E_LAST - 1, 1000, INT_MIN, INT_MAX, 7777777};
    for (size_t i = 0; i < sizeof strange / sizeof strange[0]; i++) {
        cr_assert_str_eq(kvf_code_name(strange[i]), "UNKNOWN");
        cr_assert_not_null(kvf_code_text(strange[i]));
    }
}
