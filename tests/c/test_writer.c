/* test_writer.c - captures as the writer leaves them: whatever becomes of the file, the program goes
 * on, and what is in the file is right. Read back with the reader. */
#define _GNU_SOURCE
#include "modscope_capture.h"
#include "random.h"
#include "runner.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined(__SANITIZE_THREAD__)
#define CHILD_MAY_START_THREADS 0 /* the thread sanitizer forbids it */
#else
#define CHILD_MAY_START_THREADS 1
#endif

/* ---- a disk that can be full, slow or take a little at a time: the program's own pwrite comes first ---- */
static _Atomic int disk_error;
static _Atomic int disk_pause_ms;
static _Atomic int disk_most;

static void pause_ms(int milliseconds)
{
    nanosleep(&(struct timespec){milliseconds / 1000, milliseconds % 1000 * 1000000L}, NULL);
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t at)
{
    if (disk_pause_ms)
        pause_ms(disk_pause_ms);
    if (disk_error) {
        errno = disk_error;
        return -1;
    }
    if (disk_most && count > (size_t)disk_most)
        count = (size_t)disk_most;
    return (ssize_t)syscall(SYS_pwrite64, fd, bytes, count, at);
}

/* ---- a program that is watched ---- */
enum { PATHS = 20, LIVE = 200 };

static ms_watch *watch;
static ms_ledger *ledger;
static ms_path paths[PATHS];

static void open_all(void)
{
    watch = ms_watch_open(NULL);
    CHECK(watch);
    for (int i = 0; i < PATHS; i++) {
        char name[16];
        snprintf(name, sizeof name, "m%d", i);
        CHECK_EQ(ms_path_add(watch, i % 3 ? paths[i - 1] : MS_GLOBAL, name, &paths[i]), MS_OK);
    }
    ms_device_named(watch, 0, "cpu");
    ms_device_named(watch, 2, "cuda:1");
    ledger = ms_ledger_open(watch);
    CHECK(ledger);
    CHECK_EQ(ms_ledger_attach(ledger), MS_OK);
}

static void close_all(void)
{
    ms_ledger_detach(ledger);
    ms_ledger_close(ledger);
    ms_watch_close(watch);
}

struct program {
    ms_thread *thread;
    uint64_t random, seq, base;
    uint64_t live[LIVE];
};

static struct program program_open(uint64_t id)
{
    struct program program = {.thread = ms_thread_open(watch, id), .random = id, .base = id << 32};
    CHECK(program.thread);
    return program;
}

static void change_block(struct program *program)
{
    uint64_t *slot = &program->live[random_below(&program->random, LIVE)];
    uint64_t address = program->base + (uint64_t)(slot - program->live) + 1;
    if (*slot) {
        CHECK_EQ(ms_block_drop(ledger, address), MS_OK);
        *slot = 0;
        return;
    }
    *slot = 1 + random_below(&program->random, UINT64_C(1) << random_below(&program->random, 40));
    CHECK_EQ(ms_block_add(ledger, program->thread, address, *slot, random_below(&program->random, 5) ? 0 : 2), MS_OK);
}

static void claim_block(struct program *program)
{
    uint64_t at = random_below(&program->random, LIVE);
    ms_category category = (ms_category)random_below(&program->random, MS_CATEGORY_COUNT);
    ms_block_claim(ledger, program->base + at + 1, category, paths[random_below(&program->random, PATHS)]);
}

/* A step: a call with calls inside, their nodes, an optimizer. */
static void run_step(struct program *program)
{
    ms_thread *thread = program->thread;
    uint64_t first = program->seq;
    ms_call_enter(thread, paths[0], program->seq);
    for (int i = 0; i < 6; i++) {
        ms_call_enter(thread, paths[random_below(&program->random, PATHS)], program->seq);
        change_block(program);
        program->seq += 2;
        change_block(program);
        ms_call_leave(thread, program->seq);
    }
    ms_call_leave(thread, program->seq);
    for (uint64_t number = program->seq; number-- > first;) {
        ms_node_enter(thread, program->base >> 32, number, program->seq);
        change_block(program);
        ms_node_leave(thread, program->seq);
    }
    ms_step_enter(thread);
    change_block(program);
    claim_block(program);
    ms_step_leave(thread);
    claim_block(program);
}

static void run(struct program *program, int steps)
{
    for (int i = 0; i < steps; i++)
        run_step(program);
}

/* ---- files ---- */
static int new_file(void)
{
    char name[] = "/tmp/modscope-writer-XXXXXX";
    int fd = mkstemp(name);
    CHECK(fd >= 0);
    unlink(name);
    return fd;
}

static ms_capture *begin(int fd)
{
    ms_capture *capture = NULL;
    CHECK_EQ(ms_capture_begin(ledger, fd, (const char *const[]){"program", "test", NULL}, &capture), MS_OK);
    return capture;
}

static ms_capture_figures end(ms_capture *capture)
{
    return ms_capture_end(capture, (const char *const[]){"how", "finished", NULL});
}

static ms_reader *read_file(int fd)
{
    ms_reader *reader = NULL;
    CHECK_EQ(ms_reader_open(fd, NULL, &reader), MS_OK);
    return reader;
}

static ms_cursor *cursor_of(ms_reader *reader)
{
    ms_cursor *cursor = NULL;
    CHECK_EQ(ms_cursor_open(reader, &cursor), MS_OK);
    return cursor;
}

static ms_sums sums_of_path(ms_cursor *cursor, uint32_t device, ms_path path)
{
    ms_sums sums = {{0}};
    ms_held held;
    for (uint32_t at = 0; ms_cursor_block(cursor, &at, &held);)
        if (held.device == device && held.path == path)
            sums.of[held.category] += (int64_t)held.bytes;
    return sums;
}

/* What the file says at its end is what the ledger says now. */
static void check_end(ms_reader *reader)
{
    ms_cursor *cursor = cursor_of(reader);
    CHECK_EQ(ms_cursor_seek(cursor, UINT64_MAX), MS_OK);
    CHECK_EQ(ms_cursor_blocks(cursor), ms_ledger_blocks(ledger));
    CHECK_EQ(ms_cursor_step(cursor), ms_ledger_iteration(ledger));
    for (uint32_t device = 0; device < 3; device++) {
        ms_sums got = ms_cursor_now(cursor, device), wanted = ms_ledger_now(ledger, device);
        CHECK(memcmp(&got, &wanted, sizeof got) == 0);
        for (ms_path path = 0; path < ms_path_count(watch); path++) {
            got = sums_of_path(cursor, device, path);
            wanted = ms_ledger_now_of(ledger, device, path);
            CHECK(memcmp(&got, &wanted, sizeof got) == 0);
        }
    }
    ms_cursor_close(cursor);
}

static void check_file(int fd)
{
    ms_reader *reader = read_file(fd);
    CHECK_EQ(ms_reader_now(reader).damaged, 0);
    check_end(reader);
    ms_reader_close(reader);
}

/* ---- tests ---- */
TEST(a_capture_ends_with_what_the_ledger_says)
{
    open_all();
    struct program program = program_open(7);
    int fd = new_file();
    ms_capture *capture = begin(fd);
    run(&program, 300);
    ms_capture_figures last = end(capture);
    CHECK_EQ(last.lost, 0);
    CHECK_EQ(last.error, 0);
    CHECK_EQ(last.bytes, lseek(fd, 0, SEEK_END));
    CHECK(last.bytes < last.events * 10);
    ms_reader *reader = read_file(fd);
    ms_reader_figures figures = ms_reader_now(reader);
    CHECK_EQ(figures.events, last.events + 1);
    CHECK_EQ(figures.lost, 0);
    CHECK(figures.ended);
    CHECK(strcmp(ms_reader_device(reader, 2), "cuda:1") == 0);
    ms_path parent;
    uint32_t nth;
    CHECK(strcmp(ms_reader_path(reader, paths[4], &parent, &nth), "m4") == 0);
    CHECK_EQ(parent, paths[3]);
    ms_survey survey;
    CHECK_EQ(ms_reader_survey(reader, &survey, NULL, NULL), MS_OK);
    CHECK_EQ(survey.optimized, 300);
    CHECK(!survey.unsure);
    ms_reader_close(reader);
    check_file(fd);
    close(fd);
    close_all();
}

TEST(the_peak_in_a_capture_is_the_viewers)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        open_all();
        struct program program = program_open(seed);
        int fd = new_file();
        ms_viewer *viewer = ms_viewer_open(ledger);
        ms_capture *capture = begin(fd);
        run(&program, 60);
        end(capture);
        ms_reader *reader = read_file(fd);
        ms_survey survey;
        CHECK_EQ(ms_reader_survey(reader, &survey, NULL, NULL), MS_OK);
        for (uint32_t device = 0; device < 3; device += 2) {
            ms_peak peak = ms_viewer_peak(viewer, device);
            CHECK_EQ(survey.summit[device].bytes, peak.bytes);
            CHECK_EQ(survey.summit[device].step, peak.iteration);
            CHECK_EQ(survey.summit[device].phase, peak.phase);
            CHECK_EQ(survey.summit[device].running, peak.running);
            ms_cursor *cursor = cursor_of(reader);
            CHECK_EQ(ms_cursor_seek(cursor, survey.summit[device].moment), MS_OK);
            CHECK_EQ(ms_cursor_settle(cursor), MS_OK);
            for (ms_path path = 0; path < ms_path_count(watch); path++) {
                ms_sums got = sums_of_path(cursor, device, path), wanted = ms_viewer_peak_of(viewer, device, path);
                CHECK(memcmp(&got, &wanted, sizeof got) == 0);
            }
            ms_cursor_close(cursor);
        }
        ms_reader_close(reader);
        close(fd);
        close_all();
    }
}

TEST(a_capture_that_begins_late_knows_what_was_there)
{
    open_all();
    struct program program = program_open(7);
    run(&program, 50);
    ms_call_enter(program.thread, paths[5], program.seq);
    int fd = new_file();
    ms_capture *capture = begin(fd);
    change_block(&program);
    ms_call_leave(program.thread, program.seq);
    run(&program, 10);
    end(capture);
    check_file(fd);
    close(fd);
    close_all();
}

/* Where the one that went through all events is, another comes by the last key frame. */
static void check_by_key(ms_reader *reader, ms_cursor *walked)
{
    ms_cursor *sought = cursor_of(reader);
    CHECK_EQ(ms_cursor_seek(sought, ms_cursor_moment(walked)), MS_OK);
    CHECK_EQ(ms_cursor_moment(sought), ms_cursor_moment(walked));
    CHECK_EQ(ms_cursor_blocks(sought), ms_cursor_blocks(walked));
    CHECK_EQ(ms_cursor_step(sought), ms_cursor_step(walked));
    CHECK_EQ(ms_cursor_optimized(sought), ms_cursor_optimized(walked));
    for (uint32_t device = 0; device < 3; device++) {
        ms_sums got = ms_cursor_now(sought, device), wanted = ms_cursor_now(walked, device);
        CHECK(memcmp(&got, &wanted, sizeof got) == 0);
    }
    ms_cursor_close(sought);
}

TEST(a_key_frame_is_what_the_events_before_it_lead_to)
{
    open_all();
    struct program program = program_open(7);
    int fd = new_file();
    ms_capture *capture = begin(fd);
    while (ms_capture_now(capture).events < 8 * 131072) {
        ms_capture_flush(capture);
        change_block(&program); /* a page begins with it, and a key frame before it */
        run(&program, 100);
    }
    CHECK_EQ(end(capture).lost, 0);
    ms_reader *reader = read_file(fd);
    ms_cursor *walked = cursor_of(reader);
    ms_event event;
    while (ms_cursor_next(walked, UINT32_MAX, &event) == MS_OK)
        if (event.number % 10007 == 0)
            check_by_key(reader, walked);
    CHECK_EQ(ms_reader_now(reader).damaged, 0);
    ms_cursor_close(walked);
    ms_reader_close(reader);
    close(fd);
    close_all();
}

TEST(two_captures_at_once_each_tell_all)
{
    open_all();
    struct program program = program_open(7);
    int first = new_file(), second = new_file();
    ms_capture *outer = begin(first);
    run(&program, 40);
    ms_capture *inner = begin(second);
    run(&program, 40);
    ms_capture_flush(inner);
    check_file(second);
    end(outer);
    check_file(first);
    run(&program, 40);
    end(inner);
    check_file(second);
    close(first);
    close(second);
    close_all();
}

TEST(what_happened_is_in_the_file_within_a_second)
{
    open_all();
    struct program program = program_open(7);
    int fd = new_file();
    ms_capture *capture = begin(fd);
    run(&program, 3);
    pause_ms(900);
    check_file(fd);
    run(&program, 3);
    ms_capture_flush(capture);
    ms_reader *reader = read_file(fd);
    CHECK(!ms_reader_now(reader).ended);
    ms_reader_close(reader);
    check_file(fd);
    end(capture);
    close(fd);
    close_all();
}

TEST(a_disk_that_takes_little_at_a_time_gets_all)
{
    open_all();
    struct program program = program_open(7);
    int fd = new_file();
    disk_most = 100;
    ms_capture *capture = begin(fd);
    run(&program, 200);
    CHECK_EQ(end(capture).lost, 0);
    check_file(fd);
    close(fd);
    close_all();
}

TEST(a_full_disk_costs_events_and_the_file_goes_on_when_there_is_room)
{
    open_all();
    struct program program = program_open(7);
    int fd = new_file();
    ms_capture *capture = begin(fd);
    run(&program, 50);
    ms_capture_flush(capture);
    disk_error = ENOSPC;
    run(&program, 50);
    ms_capture_flush(capture);
    ms_capture_figures full = ms_capture_now(capture);
    CHECK_EQ(full.error, ENOSPC);
    CHECK(full.lost > 0);
    CHECK_EQ(full.bytes, lseek(fd, 0, SEEK_END));
    disk_error = 0;
    pause_ms(600);
    run(&program, 50);
    ms_capture_figures last = end(capture);
    CHECK(last.lost >= full.lost);
    ms_reader *reader = read_file(fd);
    CHECK_EQ(ms_reader_now(reader).damaged, 0);
    CHECK(ms_reader_now(reader).lost > 0);
    ms_survey survey;
    CHECK_EQ(ms_reader_survey(reader, &survey, NULL, NULL), MS_OK);
    CHECK(survey.unsure);
    ms_reader_close(reader);
    check_file(fd);
    close(fd);
    close_all();
}

TEST(a_disk_that_stays_full_leaves_the_good_part)
{
    open_all();
    struct program program = program_open(7);
    int fd = new_file();
    ms_capture *capture = begin(fd);
    run(&program, 50);
    ms_capture_flush(capture);
    off_t good = lseek(fd, 0, SEEK_END);
    disk_error = EIO;
    run(&program, 50);
    CHECK(end(capture).lost > 0);
    CHECK_EQ(lseek(fd, 0, SEEK_END), good);
    ms_reader *reader = read_file(fd);
    CHECK(!ms_reader_now(reader).ended);
    CHECK_EQ(ms_reader_now(reader).damaged, 0);
    ms_reader_close(reader);
    close(fd);
    close_all();
}

TEST(a_file_that_cannot_be_written_at_all_is_an_error_at_once)
{
    open_all();
    disk_error = ENOSPC;
    ms_capture *capture = NULL;
    int fd = new_file();
    CHECK_EQ(ms_capture_begin(ledger, fd, NULL, &capture), MS_EIO);
    CHECK_EQ(errno, ENOSPC);
    CHECK(!capture);
    close(fd);
    close_all();
}

/* More than the buffers hold comes before the disk has taken the first page. */
TEST(a_slow_disk_never_holds_the_program_up)
{
    open_all();
    struct program program = program_open(7);
    int fd = new_file();
    ms_capture *capture = begin(fd);
    disk_pause_ms = 200;
    while (!ms_capture_now(capture).lost)
        run(&program, 500);
    disk_pause_ms = 0;
    for (int i = 0; i < 50 && ms_capture_now(capture).events == 0; i++)
        pause_ms(20);
    ms_capture_flush(capture);
    uint64_t lost = ms_capture_now(capture).lost;
    run(&program, 50);
    ms_capture_figures last = end(capture);
    CHECK_EQ(last.lost, lost);
    ms_reader *reader = read_file(fd);
    CHECK_EQ(ms_reader_now(reader).damaged, 0);
    CHECK(ms_reader_now(reader).lost > 0);
    ms_reader_close(reader);
    check_file(fd);
    close(fd);
    close_all();
}

static void *hammer(void *argument)
{
    run(argument, 150);
    return NULL;
}

TEST(many_threads_write_one_capture)
{
    enum { THREADS = 4 };
    open_all();
    struct program programs[THREADS];
    pthread_t threads[THREADS];
    int fd = new_file();
    ms_capture *capture = begin(fd);
    for (int i = 0; i < THREADS; i++) {
        programs[i] = program_open((uint64_t)i + 1);
        CHECK_EQ(pthread_create(&threads[i], NULL, hammer, &programs[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++)
        ms_thread_close(programs[i].thread);
    CHECK_EQ(end(capture).lost, 0);
    check_file(fd);
    ms_reader *reader = read_file(fd);
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
    close(fd);
    close_all();
}

TEST(a_forked_child_leaves_its_parents_capture_alone)
{
    open_all();
    struct program program = program_open(7);
    int fd = new_file();
    ms_capture *capture = begin(fd);
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
        ms_capture *childs = begin(own);
        run(&program, 20);
        end(childs);
        check_file(own);
        _exit(0);
    }
    int status;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    run(&program, 20);
    CHECK_EQ(end(capture).lost, 0);
    check_file(fd);
    close(fd);
    close_all();
}

/* ---- memory that is refused ---- */
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
        ms_options options = {.alloc = refusing_alloc, .free = refusing_free};
        refuse_from = refuse_to = 0;
        watch = ms_watch_open(&options);
        CHECK(watch);
        for (int i = 0; i < PATHS; i++) {
            char name[16];
            snprintf(name, sizeof name, "m%d", i);
            CHECK_EQ(ms_path_add(watch, MS_GLOBAL, name, &paths[i]), MS_OK);
        }
        ledger = ms_ledger_open(watch);
        CHECK_EQ(ms_ledger_attach(ledger), MS_OK);
        struct program program = program_open(7);
        int fd = new_file();
        asked = 0;
        refuse_from = from;
        refuse_to = from + 4;
        ms_capture *capture = NULL;
        int error = ms_capture_begin(ledger, fd, NULL, &capture);
        for (uint64_t i = 0; i < 2000; i++) {
            ms_call_enter(program.thread, paths[i % PATHS], 0);
            ms_block_add(ledger, program.thread, i + 1, 64, 0);
            if (i % 3)
                ms_block_drop(ledger, i + 1);
            ms_call_leave(program.thread, 0);
        }
        refuse_to = 0;
        if (error == MS_OK) {
            ms_capture_flush(capture);
            if (ms_capture_now(capture).error)
                pause_ms(300); /* it is tried again after a while */
            ms_call_enter(program.thread, paths[0], 0);
            ms_call_leave(program.thread, 0);
            end(capture);
            check_file(fd);
        } else {
            CHECK(error == MS_ENOMEM || error == MS_EIO);
        }
        close(fd);
        close_all();
    }
}

/* ---- out of memory ---- */
TEST(a_failed_allocation_is_in_the_capture_and_its_story_tells_who_holds_what)
{
    open_all();
    struct program program = program_open(7);
    int fd = new_file();
    ms_viewer *viewer = ms_viewer_open(ledger);
    ms_capture *capture = begin(fd);
    ms_call_enter(program.thread, paths[3], 0);
    CHECK_EQ(ms_block_add(ledger, program.thread, 1, 3 << 20, 2), MS_OK);
    CHECK_EQ(ms_block_add_as(ledger, program.thread, 2, 1 << 20, 2, MS_PARAMETER, paths[1], false), MS_OK);
    ms_ledger_reserved(ledger, 2, 8 << 20);
    char story[4096];
    ms_oom oom = {.device = 2, .asked = UINT64_C(1) << 40, .allocated = 4 << 20, .reserved = 8 << 20};
    size_t length = ms_ledger_oom(ledger, program.thread, &oom, story, sizeof story);
    CHECK_EQ(length, strlen(story));
    const char *const parts[] = {"1.00 TiB asked on cuda:1",       "in step 1, forward of m3",
                                 "held there: 4.00 MiB",           "Activation 3.00 MiB, Parameter 1.00 MiB",
                                 "8.00 MiB, of it free: 4.00 MiB", "most so far: 4.00 MiB",
                                 "3.00 MiB  m3: Activation",       "1.00 MiB  m1: Parameter"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strstr(story, parts[i]))
            FAIL("\"%s\" is not in:\n%s", parts[i], story);
    ms_call_leave(program.thread, 0);
    ms_block_drop(ledger, 1);
    end(capture);
    ms_reader *reader = read_file(fd);
    ms_survey survey;
    CHECK_EQ(ms_reader_survey(reader, &survey, NULL, NULL), MS_OK);
    CHECK_EQ(survey.ooms, 1);
    CHECK_EQ(survey.most_reserved[2], 8 << 20);
    ms_cursor *cursor = cursor_of(reader);
    CHECK_EQ(ms_cursor_seek(cursor, survey.last_oom - 1), MS_OK);
    ms_event event;
    CHECK_EQ(ms_cursor_next(cursor, 1u << MS_OP_OOM, &event), MS_OK);
    CHECK_EQ(event.bytes, oom.asked);
    CHECK_EQ(event.path, paths[3]);
    CHECK_EQ(event.phase, MS_FORWARD);
    CHECK_EQ(ms_cursor_now(cursor, 2).of[MS_ACTIVATION], 3 << 20);
    ms_cursor_close(cursor);
    ms_reader_close(reader);
    ms_viewer_close(viewer);
    close(fd);
    close_all();
}

TEST(a_story_is_cut_off_where_its_room_ends)
{
    open_all();
    struct program program = program_open(7);
    char whole[4096], part[4096];
    ms_oom oom = {.asked = 100};
    run(&program, 5);
    size_t length = ms_ledger_oom(ledger, NULL, &oom, whole, sizeof whole);
    CHECK(length > 100);
    for (size_t room = 0; room <= length + 1; room++) {
        memset(part, '#', sizeof part);
        size_t got = ms_ledger_oom(ledger, NULL, &oom, part, room);
        CHECK_EQ(got, room ? room - 1 : 0);
        CHECK(part[room] == '#');
        CHECK(!room || (!memcmp(part, whole, got) && !part[got]));
    }
    close_all();
}
