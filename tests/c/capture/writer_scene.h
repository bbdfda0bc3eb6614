/* writer_scene.h - a program whose memory is recorded, its captures, and a disk that can be full or slow or write
 * only a few bytes at a time.
 *
 *     open_scene();             a ledger, a program, a capture in a file
 *     run(&program, 50);
 *     end_capture(capture); check_file(fd);
 *     close_scene();
 */
#ifndef MS_TEST_WRITER_SCENE_H
#define MS_TEST_WRITER_SCENE_H

#include "modscope_capture.h"
#include "runner.h"

#include <stdatomic.h>

enum { PATHS = 20, LIVE = 200 };

/* The next writes fail with this error, take so many milliseconds, write at most so many bytes; 0: as usual. */
extern _Atomic int disk_error, disk_pause_ms, disk_most;

extern ms_watch *watch;
extern ms_ledger *watched;
extern ms_path paths[PATHS];

struct program {
    ms_thread *thread;
    uint64_t random, seq, base;
    uint64_t live[LIVE];
};

/* What open_scene opens. */
extern struct program program;
extern int fd;
extern ms_capture *capture;

void open_scene(void);
void close_scene(void);

/* The parts of a scene. options may be NULL. */
void open_all(const ms_options *options);
void close_all(void);
struct program program_open(uint64_t id);
/* Adds or drops a block. */
void change_block(struct program *program);
/* Runs training steps: calls, their nodes, an optimizer step. */
void run(struct program *program, int steps);

int new_file(void);
ms_capture *begin_capture(int fd);
ms_capture_status end_capture(ms_capture *capture);
ms_reader *open_reader(int fd);
ms_cursor *cursor_of(ms_reader *reader);
ms_survey survey_of(ms_reader *reader);
ms_sums sums_of_path(ms_cursor *cursor, uint32_t device, ms_path path);
/* Checks that the end of the file agrees with the ledger, and that nothing in the file is damaged. */
void check_file(int fd);
void pause_ms(int milliseconds);

#endif
