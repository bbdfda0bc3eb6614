/* test_random.c - random runs: every moment of a capture is what going through everything
 * from the start says. */
#include "capture_model.h"
#include "random.h"
#include "runner.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct model model;
static ms_reader *reader;
static ms_cursor *cursor;
static int fd;

static void open_model(void)
{
    fd = file_fd(&model.file);
    CHECK_EQ(ms_reader_open(fd, NULL, &reader), MS_OK);
    CHECK_EQ(ms_cursor_open(reader, &cursor), MS_OK);
}

static void close_model(void)
{
    ms_cursor_close(cursor);
    ms_reader_close(reader);
    close(fd);
    model_free(&model);
}

/* ---- comparing ---- */
static void check_block(const ms_captured_block *got, const ms_captured_block *wanted)
{
    CHECK_EQ(got->bytes, wanted->bytes);
    CHECK_EQ(got->since_event, wanted->since_event);
    CHECK_EQ(got->made_at, wanted->made_at);
    CHECK_EQ(got->step, wanted->step);
    CHECK_EQ(got->device, wanted->device);
    CHECK_EQ(got->path, wanted->path);
    CHECK_EQ(got->category, wanted->category);
    CHECK_EQ(got->phase, wanted->phase);
    CHECK_EQ(got->outside, wanted->outside);
}

static void check_blocks(const struct model_state *wanted)
{
    ms_sums sums[MODEL_DEVICES] = {{{0}}};
    uint64_t count = 0;
    for (int i = 0; i < MODEL_SLOTS; i++) {
        const struct model_block *entry = &wanted->blocks[i];
        if (entry->since < 0)
            continue;
        count++;
        sums[entry->block.device].of[entry->block.category] += (int64_t)entry->block.bytes;
        ms_captured_block block;
        uint32_t at = 0;
        while (ms_cursor_block(cursor, &at, &block) && block.slot != entry->block.slot)
            ;
        CHECK_EQ(block.slot, entry->block.slot);
        check_block(&block, &entry->block);
    }
    CHECK_EQ(ms_cursor_blocks(cursor), count);
    for (uint32_t i = 0; i < MODEL_DEVICES; i++) {
        ms_sums now = ms_cursor_now(cursor, i);
        CHECK(memcmp(&now, &sums[i], sizeof now) == 0);
        CHECK_EQ(ms_cursor_reserved(cursor, i), wanted->reserved[i]);
    }
}

static void check_threads(const struct model_state *wanted)
{
    size_t found = 0, known = 0;
    uint32_t number;
    uint64_t id;
    ms_phase phase;
    ms_path path;
    for (; ms_cursor_thread(cursor, found, &number, &id, &phase, &path); found++) {
        int i = 0;
        while (i < MODEL_THREADS && model_thread(i) != number)
            i++;
        CHECK(i < MODEL_THREADS);
        CHECK_EQ(id, wanted->threads[i].id);
        CHECK_EQ(phase, wanted->threads[i].phase);
        CHECK_EQ(path, wanted->threads[i].path);
    }
    for (int i = 0; i < MODEL_THREADS; i++)
        known += wanted->threads[i].known;
    CHECK_EQ(found, known);
}

static void check_here(bool later_claims)
{
    static struct model_state wanted;
    model_at(&model, ms_cursor_moment(cursor), later_claims, &wanted);
    CHECK_EQ(ms_cursor_step(cursor), wanted.step);
    CHECK_EQ(ms_cursor_optimizer_steps(cursor), wanted.optimizer_steps);
    check_blocks(&wanted);
    check_threads(&wanted);
}

/* ---- going through the moments ---- */

/* The last moment that can be known at or before this one, else the first after it. */
static uint64_t nearest(uint64_t moment)
{
    for (uint64_t at = moment + 1; at-- > 0;)
        if (model_knows(&model, at))
            return at;
    while (!model_knows(&model, moment))
        moment++;
    return moment;
}

/* Whether events without numbers were lost here: the moments before and after them have the same number. */
static bool is_edge(uint64_t moment)
{
    for (int i = 0; i < model.count; i++)
        if (model.events[i].lost && !model.numbered && model.events[i].number == moment)
            return true;
    return false;
}

static void check_next_events(uint64_t events)
{
    ms_event event;
    while (events-- && ms_cursor_next(cursor, UINT32_MAX, &event) == MS_OK) {
        int i = 0;
        while (model.events[i].number != event.number || model.events[i].lost)
            CHECK(++i < model.count);
        CHECK_EQ(event.op, model.events[i].op);
        CHECK_EQ(event.time, model.events[i].time);
        CHECK_EQ(event.thread, model_thread(model.events[i].thread));
        CHECK_EQ(ms_cursor_moment(cursor), event.number + 1);
    }
    if (!is_edge(ms_cursor_moment(cursor)))
        check_here(false);
}

static void go_about(uint64_t random)
{
    uint64_t end = model.file.event;
    for (int i = 0; i < 30; i++) {
        uint64_t moment = random_below(&random, end + 3);
        CHECK_EQ(ms_cursor_seek(cursor, moment), MS_OK);
        CHECK_EQ(ms_cursor_moment(cursor), nearest(moment < end ? moment : end));
        check_here(false);
        if (random_below(&random, 2)) {
            CHECK_EQ(ms_cursor_apply_later_claims(cursor), MS_OK);
            check_here(true);
        } else {
            check_next_events(random_below(&random, 50));
        }
    }
}

#ifdef __SANITIZE_THREAD__
#define RUNS 5u
#else
#define RUNS 60u
#endif

TEST(every_moment_of_a_random_capture_is_what_the_model_says)
{
    for (uint64_t seed = 1; seed <= RUNS; seed++) {
        model_run(&model, seed, 600, seed % 2, false, true);
        open_model();
        check_next_events(UINT64_MAX);
        CHECK_EQ(ms_cursor_moment(cursor), model.file.event);
        CHECK(!ms_cursor_is_lower_bound(cursor));
        go_about(seed);
        close_model();
    }
}

TEST(a_capture_with_losses_is_right_wherever_it_is_known)
{
    for (uint64_t seed = 1; seed <= RUNS; seed++) {
        model_run(&model, seed, 600, 1, true, seed % 2);
        open_model();
        check_next_events(UINT64_MAX);
        go_about(seed);
        CHECK_EQ(ms_reader_get_status(reader).lost, model.lost);
        CHECK_EQ(ms_cursor_seek(cursor, UINT64_MAX), MS_OK);
        CHECK_EQ(ms_cursor_is_lower_bound(cursor), model.lost > 0);
        close_model();
    }
}

TEST(a_damaged_capture_is_right_wherever_it_is_known)
{
    for (uint64_t seed = 1; seed <= RUNS; seed++) {
        uint64_t random = seed;
        model_run(&model, seed, 600, 1, seed % 3 == 0, true);
        for (int i = 0; i < 3; i++) /* the first key frame stays, so that there is something to know */
            model_damage(&model, 1 + (int)random_below(&random, (uint64_t)model.chunk_count - 1), random_next(&random));
        open_model();
        check_next_events(UINT64_MAX);
        go_about(seed);
        close_model();
    }
}

/* ---- the survey ---- */
static void check_survey(const ms_survey *survey)
{
    static struct model_state at;
    int64_t peaks[MODEL_DEVICES] = {0};
    uint64_t ops[MS_OP_COUNT] = {0};
    for (int i = 0; i < model.count; i++)
        ops[model.events[i].op]++;
    for (uint64_t moment = survey->first; moment <= survey->last; moment++) {
        model_at(&model, moment, false, &at);
        int64_t total[MODEL_DEVICES] = {0};
        for (int i = 0; i < MODEL_SLOTS; i++)
            if (at.blocks[i].since >= 0)
                total[at.blocks[i].block.device] += (int64_t)at.blocks[i].block.bytes;
        for (uint32_t i = 0; i < MODEL_DEVICES; i++) {
            if (total[i] <= peaks[i])
                continue;
            peaks[i] = total[i];
            if (total[i] == survey->peaks[i].bytes)
                CHECK_EQ(survey->peaks[i].moment, moment);
        }
    }
    for (uint32_t i = 0; i < MODEL_DEVICES; i++)
        CHECK_EQ(survey->peaks[i].bytes, peaks[i]);
    for (int i = 0; i < MS_OP_COUNT; i++)
        CHECK_EQ(survey->events[i], ops[i]);
    CHECK_EQ(survey->steps, at.step);
    CHECK_EQ(survey->optimizer_steps, at.optimizer_steps);
}

TEST(a_survey_finds_the_peaks_that_the_model_finds)
{
    for (uint64_t seed = 1; seed <= 8; seed++) {
        static ms_survey survey;
        model_run(&model, seed, 300, 1, false, true);
        open_model();
        CHECK_EQ(ms_reader_survey(reader, &survey, NULL, NULL), MS_OK);
        CHECK_EQ(survey.last, model.file.event);
        check_survey(&survey);
        CHECK(!survey.is_lower_bound);
        close_model();
    }
}
