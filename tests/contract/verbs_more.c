#include <criterion/criterion.h>
Test(verbs_more, nothing) {}
