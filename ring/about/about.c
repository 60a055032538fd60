#include "ring/about/about.h"

#include "ring/about/commit.h"
#include "ring/layout.h"

void kvf_about_print(const char *program, FILE *out)
{
    fprintf(out, "%s %s\nlayout %u.%u, wire %s\nbuild %s, %s%s%s\n", program, KVF_VERSION,
            KVF_LAYOUT_MAJOR, KVF_LAYOUT_MINOR, KVF_WIRE_TEXT, KVF_BUILD_TEXT,
            KVF_COMPILER_TEXT, KVF_COMMIT_TEXT[0] != '\0' ? ", commit " : "", KVF_COMMIT_TEXT);
}
