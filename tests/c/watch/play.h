/* play.h - bytes as events: any string of bytes is a program that the model can run.
 * The fuzzer and the seeded tests feed the same player. */
#ifndef MS_TEST_PLAY_H
#define MS_TEST_PLAY_H

#include "model.h"

#define PLAY_THREADS 4 /* open at any one time */
#define PLAY_PATHS 24

struct play {
    struct model model;
    uint32_t open[PLAY_THREADS]; /* indices in model.threads */
    uint32_t current;            /* index in `open` */
    ms_path paths[PLAY_PATHS];
};

/* Limits on what a run of bytes may do. */
enum play_bounds {
    PLAY_SHALLOW = 1, /* never deeper than the stack's first capacity */
    PLAY_FOREVER = 2, /* threads do not end */
};

/* Opens the watch, its paths and its threads. False when the core could not open the watch.
 * A path that the core refused is MS_UNKNOWN. */
bool play_open(struct play *play, const ms_options *options);
void play_close(struct play *play);
/* Runs the bytes to their end; stops at the first wrong answer (play->model.wrong). */
void play_bytes(struct play *play, const uint8_t *bytes, size_t count, unsigned bounds);
/* Leaves everything that is open, and checks everything. */
void play_finish(struct play *play);

#endif
