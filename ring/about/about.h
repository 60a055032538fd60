/* What a program says of itself: its version, the versions of what it shares with others, how it was built. In
 * a library of its own, which only programs link: it holds the commit, and so changes with every one. */
#ifndef KVF_RING_ABOUT_H
#define KVF_RING_ABOUT_H

#include <stdio.h>

/* Three lines, the answer to --version everywhere:
 *   PROGRAM 0.1.0
 *   layout 5.1, wire 2.0
 *   build Release, GNU 12.2.0, commit 34982a6f0c1b */
void kvf_about_print(const char *program, FILE *out);

#endif
