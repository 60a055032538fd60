/* What Criterion needs to run under the thread sanitizer; linked into sanitized tests only.
 *
 * A race must end its test: Criterion runs each in a process whose exit status it does not look at once
 * the test has reported, so the sanitizer aborts at the first race.
 *
 * Criterion puts its arena at a random address between 0x200000000000 and 0x600000000000; the thread
 * sanitizer forbids almost all of that range, so that a test program nearly always aborts before its
 * first test. This rand_r is found before the C library's and keeps the arena in the part that the
 * sanitizer leaves to position-independent programs. */
#include <stdlib.h>

const char *__tsan_default_options(void);

__attribute__((visibility("default"))) const char *__tsan_default_options(void)
{
    return "halt_on_error=1:abort_on_error=1";
}

#define ARENA_STEP_FIRST 0x350000u /* (0x550000000000 - 0x200000000000) >> 24 */
#define ARENA_STEP_COUNT 0x18000u  /* up to 0x568000000000 */

__attribute__((visibility("default"))) int rand_r(unsigned int *seed)
{
    *seed = *seed * 1103515245u + 12345u;
    return (int)(ARENA_STEP_FIRST + (*seed >> 8) % ARENA_STEP_COUNT);
}
