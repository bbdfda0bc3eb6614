/* writer_scene.h - a program that is watched, its captures, and a disk that can be full, slow, or take a
 * little at a time.
 *
 *     stage();                  a ledger, a program, a capture in a file
 *     run(&program, 50);
 *     end(capture); check_file(fd);
 *     leave_stage();
 */
#ifndef MS_TEST_WRITER_SCENE_H
#define MS_TEST_WRITER_SCENE_H

#include "modscope_capture.h"
#include "runner.h"

#include <stdatomic.h>

enum { PATHS = 20, LIVE = 200 };

/* What the next writes do: fail with this error, take so long, take so many bytes at most; 0: as ever. */
extern _Atomic int disk_error, disk_pause_ms, disk_most;

extern ms_watch *watch;
extern ms_ledger *watched;
extern ms_path paths[PATHS];

struct program {
    ms_thread *thread;
    uint64_t random, seq, base;
    uint64_t live[LIVE];
};

/* The stage's own. */
extern struct program program;
extern int fd;
extern ms_capture *capture;

void stage(void);
void leave_stage(void);

/* Its parts: options may be NULL. */
void open_all(const ms_options *options);
void close_all(void);
struct program program_open(uint64_t id);
/* A block comes or goes. */
void change_block(struct program *program);
/* Steps of training: calls, their nodes, an optimizer. */
void run(struct program *program, int steps);

int new_file(void);
ms_capture *begin(int fd);
ms_capture_status end(ms_capture *capture);
ms_reader *open_reader(int fd);
ms_cursor *cursor_of(ms_reader *reader);
ms_survey survey_of(ms_reader *reader);
ms_sums sums_of_path(ms_cursor *cursor, uint32_t device, ms_path path);
/* What the file says at its end is what the ledger says now, and nothing of it is damaged. */
void check_file(int fd);
void pause_ms(int milliseconds);

#endif
