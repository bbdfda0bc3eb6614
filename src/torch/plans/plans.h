/* plans.h - which plan cuDNN would run for a convolution on a GPU that is described rather than present, and how large
 * its workspace is. From version 9.8 on cuDNN takes a description of a device in place of a device.
 *
 *     cudnn.c         asks the library, in the order in which torch does (aten/src/ATen/native/cudnn/Conv_v8.cpp)
 *     partial_sums.c  counts again what it cannot know without a GPU
 *     server.c        asks from a process of its own, because the library ends the process where it finds something
 *                     missing, and divides by what is zero in a description
 *
 * The structs pass through a socket: they have no padding. */
#ifndef MST_PLANS_H
#define MST_PLANS_H

#include <stddef.h>
#include <stdint.h>

enum { MST_MOST_SPATIAL = 3 };

enum { MST_FORWARD, MST_OF_INPUT, MST_OF_WEIGHT };
enum { MST_FLOAT32, MST_BFLOAT16, MST_FLOAT16, MST_FLOAT64 };
enum {
    MST_CHANNELS_LAST = 1,
    MST_DETERMINISTIC = 2, /* torch leaves plans out that are not */
    MST_NO_TF32 = 4        /* torch leaves plans for tensor cores out where the type is float32 */
};

typedef struct mst_convolution {
    int32_t pass, type, flags;
    int32_t spatial; /* 2 or 3 dimensions; torch makes two of one */
    int64_t input[2 + MST_MOST_SPATIAL], weight[2 + MST_MOST_SPATIAL], output[2 + MST_MOST_SPATIAL];
    int64_t padding[MST_MOST_SPATIAL], stride[MST_MOST_SPATIAL], dilation[MST_MOST_SPATIAL];
} mst_convolution;

enum {
    MST_PLANNED,  /* `bytes` is the workspace of the plan */
    MST_PRODUCT,  /* a product of matrices, which cuDNN leaves to cuBLAS: that one tells nothing without a GPU */
    MST_NO_PLAN,  /* cuDNN has none for such a convolution on such a GPU */
    MST_NO_ANSWER /* an argument is not a convolution, or there is no memory */
};

typedef struct mst_plan {
    int32_t result; /* one of the above */
    int32_t engine; /* the number of the plan's engine in this version of cuDNN; -1: none */
    int64_t bytes;
} mst_plan;

/* ---- partial_sums.c ---- */

/* What a plan of Hopper's own kernels says of them. */
typedef struct mst_knobs {
    int64_t tile;        /* its number */
    int64_t depth;       /* 0: 32 elements of a sum at a time, 1: 64, ... */
    int64_t keeps_whole; /* whether it splits no sums */
    int64_t cluster_rows, cluster_columns;
} mst_knobs;

/* The workspace on a Hopper GPU with so many multiprocessors, where cuDNN says `described` without one. */
int64_t mst_bytes_on_hopper(const mst_convolution *asked, const mst_knobs *knobs, int64_t described,
                            int64_t processors);

/* ---- cudnn.c: one thread ---- */

enum { MST_REASON = 240 };

/* Loads the library and describes the device to it. `description`: JSON, as cuDNN itself writes it.
 * `hopper_processors`: how many multiprocessors it has if its compute capability is 9.0, otherwise 0. Returns the
 * library's version (9 * 10000 + 100 * minor + patch), or 0 with a reason in words. The library is never unloaded. */
int64_t mst_cudnn_open(const char *library, const char *description, int64_t hopper_processors,
                       char reason[MST_REASON]);
/* Only after mst_cudnn_open returned a version. */
mst_plan mst_cudnn_plan(const mst_convolution *convolution);

#endif
