/* fuzz.h - what the fuzz targets share: one input, and how it fails. */
#ifndef MS_TEST_FUZZ_H
#define MS_TEST_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);
void fuzz_fail(const char *reason);

#endif
