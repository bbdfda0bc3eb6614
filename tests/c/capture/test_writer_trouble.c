/* test_writer_trouble.c - whatever happens to the file, the memory and the process, the program continues and the
 * file is correct. */
#define _GNU_SOURCE
#include "writer_scene.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_THREAD__)
#define CHILD_MAY_START_THREADS 0 /* the thread sanitizer forbids it */
#else
#define CHILD_MAY_START_THREADS 1
#endif

TEST(a_disk_that_writes_few_bytes_at_a_time_gets_everything)
{
    open_all(NULL);
    program = program_open(7);
    fd = new_file();
    disk_most = 100;
    capture = begin_capture(fd);
    run(&program, 200);
    CHECK_EQ(end_capture(capture).lost, 0);
    check_file(fd);
    close_scene();
}

TEST(a_full_disk_costs_events_and_the_file_goes_on_when_there_is_room)
{
    open_scene();
    run(&program, 50);
    ms_capture_flush(capture);
    disk_error = ENOSPC;
    run(&program, 50);
    ms_capture_flush(capture);
    ms_capture_status full = ms_capture_get_status(capture);
    CHECK_EQ(full.error, ENOSPC);
    CHECK(full.lost > 0);
    CHECK_EQ(full.bytes, lseek(fd, 0, SEEK_END));
    disk_error = 0;
    pause_ms(600);
    run(&program, 50);
    ms_capture_status last = end_capture(capture);
    CHECK(last.lost >= full.lost);
    ms_reader *reader = open_reader(fd);
    CHECK_EQ(ms_reader_get_status(reader).damaged, 0);
    CHECK(ms_reader_get_status(reader).lost > 0);
    ms_survey survey = survey_of(reader);
    CHECK(survey.is_lower_bound);
    ms_reader_close(reader);
    check_file(fd);
    close_scene();
}

TEST(a_file_that_another_program_empties_begins_anew)
{
    open_scene();
    run(&program, 50);
    ms_capture_flush(capture);
    CHECK(!ms_capture_get_status(capture).truncated);
    CHECK_EQ(ftruncate(fd, 0), 0);
    run(&program, 50);
    ms_capture_flush(capture);
    pause_ms(600);
    run(&program, 50);
    ms_capture_status last = end_capture(capture);
    CHECK(last.truncated && last.lost > 0);
    CHECK_EQ(last.bytes, lseek(fd, 0, SEEK_END));
    check_file(fd);
    close_scene();
}

TEST(a_file_that_another_program_cuts_short_is_read_around_the_gap)
{
    open_scene();
    run(&program, 50);
    ms_capture_flush(capture);
    CHECK_EQ(ftruncate(fd, lseek(fd, 0, SEEK_END) / 2), 0);
    run(&program, 50);
    CHECK(end_capture(capture).truncated);
    ms_reader *reader = open_reader(fd);
    CHECK(survey_of(reader).is_lower_bound);
    CHECK(ms_reader_get_status(reader).damaged > 0);
    ms_reader_close(reader);
    close_scene();
}

TEST(a_disk_that_stays_full_leaves_the_good_part)
{
    open_scene();
    run(&program, 50);
    ms_capture_flush(capture);
    off_t good = lseek(fd, 0, SEEK_END);
    disk_error = EIO;
    run(&program, 50);
    CHECK(end_capture(capture).lost > 0);
    CHECK_EQ(lseek(fd, 0, SEEK_END), good);
    ms_reader *reader = open_reader(fd);
    CHECK(!ms_reader_get_status(reader).ended);
    CHECK_EQ(ms_reader_get_status(reader).damaged, 0);
    ms_reader_close(reader);
    close_scene();
}

TEST(a_file_that_cannot_be_written_at_all_is_an_error_at_once)
{
    open_all(NULL);
    disk_error = ENOSPC;
    capture = NULL;
    fd = new_file();
    CHECK_EQ(ms_capture_begin(watched, fd, NULL, &capture), MS_EIO);
    CHECK_EQ(errno, ENOSPC);
    CHECK(!capture);
    close_scene();
}

/* The buffers overflow before the disk has written the first page. */
TEST(a_slow_disk_never_makes_the_program_wait)
{
    open_scene();
    disk_pause_ms = 200;
    while (!ms_capture_get_status(capture).lost)
        run(&program, 500);
    disk_pause_ms = 0;
    for (int i = 0; i < 50 && ms_capture_get_status(capture).events == 0; i++)
        pause_ms(20);
    ms_capture_flush(capture);
    uint64_t lost = ms_capture_get_status(capture).lost;
    run(&program, 50);
    ms_capture_status last = end_capture(capture);
    CHECK_EQ(last.lost, lost);
    ms_reader *reader = open_reader(fd);
    CHECK_EQ(ms_reader_get_status(reader).damaged, 0);
    CHECK(ms_reader_get_status(reader).lost > 0);
    ms_reader_close(reader);
    check_file(fd);
    close_scene();
}

static void *hammer(void *argument)
{
    run(argument, 150);
    return NULL;
}

TEST(many_threads_write_one_capture)
{
    enum { THREADS = 4 };
    open_all(NULL);
    struct program programs[THREADS];
    pthread_t threads[THREADS];
    fd = new_file();
    capture = begin_capture(fd);
    for (int i = 0; i < THREADS; i++) {
        programs[i] = program_open((uint64_t)i + 1);
        CHECK_EQ(pthread_create(&threads[i], NULL, hammer, &programs[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++)
        ms_thread_close(programs[i].thread);
    CHECK_EQ(end_capture(capture).lost, 0);
    check_file(fd);
    ms_reader *reader = open_reader(fd);
    ms_cursor *cursor = cursor_of(reader);
    CHECK_EQ(ms_cursor_seek(cursor, UINT64_MAX), MS_OK);
    uint32_t number;
    uint64_t id;
    ms_phase phase;
    ms_path path;
    size_t seen = 0;
    for (; ms_cursor_thread(cursor, seen, &number, &id, &phase, &path); seen++)
        CHECK(phase == MS_IDLE && path == MS_GLOBAL); /* they have ended */
    CHECK(seen >= THREADS);
    ms_cursor_close(cursor);
    ms_reader_close(reader);
    close_scene();
}

static int count_threads(void)
{
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks);
    for (struct dirent *task; (task = readdir(tasks));)
        count += task->d_name[0] != '.';
    closedir(tasks);
    return count;
}

/* A thread that was joined may be listed for a moment longer. The bound is for a thread that does not end. */
static void check_threads(int expected)
{
    struct timespec pause = {.tv_nsec = 1000000};
    for (int i = 0; i < 100000 && count_threads() != expected; i++)
        nanosleep(&pause, NULL);
    CHECK_EQ(count_threads(), expected);
}

TEST(a_paused_capture_has_no_thread_and_loses_nothing)
{
    open_scene();
    int before = count_threads() - 1; /* a sanitizer may have started a thread of its own with the capture's */
    for (int i = 0; i < 50; i++) {
        run(&program, 2);
        ms_capture_pause(capture);
        ms_capture_pause(capture);
        check_threads(before);
        run(&program, 2);
        ms_capture_resume(capture);
        check_threads(before);
        ms_capture_resume(capture);
        check_threads(before + 1);
    }
    ms_capture_flush(capture);
    run(&program, 20);
    CHECK_EQ(end_capture(capture).lost, 0);
    check_file(fd);
    close_scene();
}

TEST(a_capture_that_ends_while_it_is_paused_is_complete)
{
    open_scene();
    run(&program, 20);
    ms_capture_pause(capture);
    run(&program, 20);
    CHECK_EQ(end_capture(capture).lost, 0);
    check_file(fd);
    close_scene();
}

TEST(a_forked_child_leaves_its_parents_capture_alone)
{
    open_scene();
    run(&program, 20);
    ms_capture_flush(capture);
    ms_watch_lock(watch);
    pid_t child = fork();
    ms_watch_unlock(watch);
    CHECK(child >= 0);
    if (child == 0) {
        ms_capture_abandon(capture);
        if (!CHILD_MAY_START_THREADS)
            _exit(0);
        int own = new_file();
        ms_capture *childs = begin_capture(own);
        run(&program, 20);
        end_capture(childs);
        check_file(own);
        _exit(0);
    }
    int status;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    run(&program, 20);
    CHECK_EQ(end_capture(capture).lost, 0);
    check_file(fd);
    close_scene();
}

/* ---- allocations that fail ---- */
static _Atomic long refuse_from, refuse_to, asked;

static void *refusing_alloc(void *context, size_t bytes)
{
    (void)context;
    long now = atomic_fetch_add(&asked, 1);
    return now >= refuse_from && now < refuse_to ? NULL : malloc(bytes);
}

static void refusing_free(void *context, void *memory)
{
    (void)context;
    free(memory);
}

TEST(without_memory_events_are_lost_and_the_file_stays_right)
{
    for (long from = 0; from < 60; from += 3) {
        refuse_from = refuse_to = 0;
        open_all(&(ms_options){.alloc = refusing_alloc, .free = refusing_free});
        program = program_open(7);
        fd = new_file();
        asked = 0;
        refuse_from = from;
        refuse_to = from + 4;
        capture = NULL;
        int error = ms_capture_begin(watched, fd, NULL, &capture);
        for (uint64_t i = 0; i < 2000; i++) {
            ms_call_enter(program.thread, paths[i % PATHS], 0);
            ms_block_add(watched, program.thread, i + 1, 64, 0);
            if (i % 3)
                ms_block_drop(watched, i + 1);
            ms_call_leave(program.thread, 0);
        }
        refuse_to = 0;
        if (error == MS_OK) {
            ms_capture_flush(capture);
            if (ms_capture_get_status(capture).error)
                pause_ms(300); /* until the writer tries again */
            ms_call_enter(program.thread, paths[0], 0);
            ms_call_leave(program.thread, 0);
            end_capture(capture);
            check_file(fd);
        } else {
            CHECK(error == MS_ENOMEM || error == MS_EIO);
        }
        close(fd);
        close_all();
    }
}
