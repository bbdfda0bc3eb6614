/* capture_scene.h - a capture made by hand, and a cursor in it. */
#ifndef MS_TEST_CAPTURE_SCENE_H
#define MS_TEST_CAPTURE_SCENE_H

#include "capture_file.h"
#include "modscope_capture.h"
#include "runner.h"

extern struct file file;
extern ms_reader *reader;
extern ms_cursor *cursor;

/* A new file with the paths "a" (2), "b" (3) and "c" (4), the devices "cpu" and "cuda:0", and a key frame of nothing
 * before event 1. */
void begin_file(void);
/* The same, with 100 events, without which a reader ignores what is noted of them. */
void begin_file_with_events(void);
/* A chunk of another kind, before this event. file_close ends it. */
void begin_chunk(uint32_t kind, uint64_t event);
/* A chunk of events. */
void begin_events(void);
void end_events(void);
/* Open the file, with a cursor at its first moment. */
void read_file(void);
/* Open a file of tests/corpus instead, such as "runs/gpt-0.1.0.msc". */
void read_corpus(const char *name);
void unread(void);
void finish_file(void); /* without reading it */

void seek(uint64_t moment);                   /* fails if that moment cannot be known */
void seek_with_later_claims(uint64_t moment); /* and apply later claims */
ms_captured_block block_in(uint32_t slot);    /* fails if there is none */
bool is_held(uint32_t slot);
int64_t bytes_on(uint32_t device); /* of all categories */
ms_event next_event(void);         /* fails at the end */

/* Do everything that can be done with these bytes as a capture; fails if an answer contradicts another. */
void exercise_all(const uint8_t *bytes, size_t count);

#endif
