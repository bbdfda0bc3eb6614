/* test_root_inputs.c - the shapes of the inputs of root calls: written, read back and shown, also from damaged files.
 */
#include "capture_scene.h"
#include "random.h"
#include "writer_scene.h"

#include <string.h>
#include <unistd.h>

static ms_root_inputs inputs;

static ms_input tokens(uint64_t batch, uint64_t length)
{
    return (ms_input){.dims = {batch, length}, .dim_count = 2, .element = MS_ELEMENT_INTEGER};
}

static ms_input images(uint64_t batch, uint64_t side)
{
    return (ms_input){.dims = {batch, 3, side, side}, .dim_count = 4, .element = MS_ELEMENT_FLOAT};
}

static bool same(const ms_input *a, const ms_input *b)
{
    return a->dim_count == b->dim_count && a->element == b->element && memcmp(a->dims, b->dims, sizeof a->dims) == 0;
}

/* ---- by hand ---- */
enum { INPUTS_CHUNK = 17 };

static void put_call(uint64_t later, uint64_t list)
{
    file_varint(&file, later);
    file_varint(&file, list);
}

static void put_tokens(uint64_t batch, uint64_t length)
{
    file_varint(&file, 2 << 2 | MS_ELEMENT_INTEGER);
    file_varint(&file, batch);
    file_varint(&file, length);
}

TEST(lists_are_numbered_in_their_chunk)
{
    begin_file_with_events();
    begin_chunk(INPUTS_CHUNK, 10);
    put_call(1, 0);
    file_varint(&file, 1);
    put_tokens(2, 300);
    put_call(1, 0);
    put_call(0, 1);
    file_varint(&file, 0);
    file_close(&file);
    begin_chunk(INPUTS_CHUNK, 50);
    put_call(7, 0);
    file_varint(&file, 2);
    put_tokens(2, 400);
    put_tokens(4, 1);
    file_close(&file);
    read_file();
    CHECK_EQ(ms_root_inputs_read(reader, &inputs), MS_OK);
    CHECK_EQ(inputs.count, 4);
    CHECK_EQ(inputs.input_count, 3);
    static const uint64_t steps[] = {1, 2, 2, 7}, firsts[] = {0, 0, 1, 1}, counts[] = {1, 1, 0, 2};
    for (size_t i = 0; i < 4; i++) {
        CHECK_EQ(inputs.calls[i].step, steps[i]);
        CHECK_EQ(inputs.calls[i].first, firsts[i]);
        CHECK_EQ(inputs.calls[i].count, counts[i]);
    }
    ms_input wanted = tokens(2, 400);
    CHECK(same(&inputs.inputs[1], &wanted));
    ms_root_inputs_free(reader, &inputs);
    CHECK_EQ(ms_reader_get_status(reader).damaged, 0);
    finish_file();
}

TEST(a_list_that_cannot_be_read_ends_its_chunk_alone)
{
    begin_file_with_events();
    begin_chunk(INPUTS_CHUNK, 10);
    put_call(1, 1); /* a list that comes after the next new one */
    file_close(&file);
    begin_chunk(INPUTS_CHUNK, 20);
    put_call(1, 0);
    file_varint(&file, MS_INPUTS + 1);
    put_tokens(1, 1);
    file_close(&file);
    begin_chunk(INPUTS_CHUNK, 30);
    put_call(3, 0);
    file_varint(&file, 1);
    put_tokens(5, 6);
    put_call(1, 1);
    file_varint(&file, 1);
    file_varint(&file, (MS_INPUT_DIMS + 1) << 2); /* too many dimensions */
    file_close(&file);
    begin_chunk(INPUTS_CHUNK, 40);
    put_call(4, 0);
    file_varint(&file, 1);
    file_varint(&file, 2 << 2 | 3); /* elements that are not known, and an input without its end */
    file_close(&file);
    read_file();
    CHECK_EQ(ms_root_inputs_read(reader, &inputs), MS_OK);
    CHECK_EQ(inputs.count, 1);
    CHECK_EQ(inputs.calls[0].step, 3);
    ms_root_inputs_free(reader, &inputs);
    finish_file();
}

TEST(a_file_without_inputs_has_none)
{
    begin_file_with_events();
    read_file();
    CHECK_EQ(ms_root_inputs_read(reader, &inputs), MS_OK);
    CHECK(inputs.count == 0 && inputs.calls == NULL && inputs.inputs == NULL);
    finish_file();
}

/* ---- by the writer, against a list of what was noted ---- */
enum { CALLS = 3000 };

struct noted {
    uint64_t step;
    uint32_t count;
    ms_input at[MS_INPUTS];
};

static void choose_inputs(struct noted *call, uint64_t *random)
{
    memset(call->at, 0, sizeof call->at);
    call->count = (uint32_t)random_below(random, 8) ? 1 : 1 + (uint32_t)random_below(random, MS_INPUTS);
    for (uint32_t i = 0; i < call->count; i++) {
        ms_input *input = &call->at[i];
        input->dim_count = (uint32_t)random_below(random, MS_INPUT_DIMS + 1);
        input->element = (ms_element)random_below(random, MS_ELEMENT_COUNT);
        for (uint32_t dim = 0; dim < input->dim_count; dim++)
            input->dims[dim] = random_below(random, 20) ? (uint64_t)random_below(random, 7) : UINT64_MAX;
    }
}

TEST(a_capture_has_the_inputs_of_each_root_call_in_forward)
{
    static struct noted calls[CALLS];
    uint64_t random = 29;
    open_all(NULL);
    program = program_open(1);
    ms_thread *thread = program.thread;
    ms_input input = tokens(2, 9);
    ms_inputs_note(watched, thread, &input, 1); /* nothing is captured */
    fd = new_file();
    capture = begin_capture(fd);
    ms_inputs_note(watched, thread, &input, 1); /* not in forward */
    for (size_t i = 0; i < CALLS; i++) {
        choose_inputs(&calls[i], &random);
        ms_call_enter(thread, paths[0], program.seq);
        calls[i].step = ms_ledger_step(watched);
        ms_inputs_note(watched, thread, calls[i].at, calls[i].count);
        ms_inputs_note(watched, thread, calls[i].at, 0); /* no tensors */
        change_block(&program);
        ms_call_leave(thread, program.seq);
        if (random_below(&random, 3) == 0) {
            ms_optimizer_enter(thread);
            ms_optimizer_leave(thread);
        }
    }
    end_capture(capture);
    check_file(fd);
    ms_reader *from = open_reader(fd);
    CHECK_EQ(ms_root_inputs_read(from, &inputs), MS_OK);
    CHECK_EQ(inputs.count, CALLS);
    CHECK(inputs.calls[CALLS - 1].step > CALLS / 6);
    for (size_t i = 0; i < CALLS; i++) {
        CHECK_EQ(inputs.calls[i].step, calls[i].step);
        CHECK_EQ(inputs.calls[i].count, calls[i].count);
        for (uint32_t at = 0; at < calls[i].count; at++)
            CHECK(same(&inputs.inputs[inputs.calls[i].first + at], &calls[i].at[at]));
    }
    ms_root_inputs_free(from, &inputs);
    ms_reader_close(from);
    close(fd);
    close_all();
}

/* ---- in words ---- */
static void check_text(ms_input input, bool unit, const char *wanted)
{
    char text[64];
    CHECK_EQ(ms_input_text(&input, unit, text, sizeof text), strlen(wanted));
    CHECK(strcmp(text, wanted) == 0);
}

TEST(shapes_are_shown_with_what_their_elements_are)
{
    check_text(tokens(2, 4096), true, "2 x 4,096 tokens");
    check_text(tokens(2, 1234567), false, "2 x 1,234,567");
    check_text(images(8, 224), true, "8 x 3 x 224 x 224 images");
    check_text((ms_input){.dims = {100000}, .dim_count = 1, .element = MS_ELEMENT_INTEGER}, true, "100,000 tokens");
    check_text((ms_input){.dims = {4, 0}, .dim_count = 2, .element = MS_ELEMENT_FLOAT}, true, "4 x 0");
    char little[6];
    ms_input input = tokens(2, 4096);
    CHECK_EQ(ms_input_text(&input, true, little, sizeof little), 5);
    CHECK(strcmp(little, "2 x 4") == 0);
    CHECK_EQ(ms_input_text(&input, true, NULL, 0), 0);
}

TEST(tokens_stand_for_a_call_else_the_input_with_most_dimensions)
{
    ms_input vision[] = {images(2, 8), tokens(2, 5), tokens(2, 6)}, labels[] = {{.dim_count = 1}, images(2, 8)};
    CHECK(ms_inputs_main(vision, 3) == &vision[1]);
    CHECK(ms_inputs_main(vision, 1) == &vision[0]);
    CHECK(ms_inputs_main(labels, 2) == &labels[1]);
}

static void step_with(ms_input input)
{
    ms_thread *thread = program.thread;
    ms_call_enter(thread, paths[0], program.seq);
    ms_inputs_note(watched, thread, &input, 1);
    ms_call_leave(thread, program.seq);
    ms_optimizer_enter(thread);
    ms_optimizer_leave(thread);
}

static bool reports(const char *words)
{
    char report[4096];
    ms_ledger_oom(watched, program.thread, &(ms_oom){.requested = 1}, report, sizeof report);
    return strstr(report, words) != NULL;
}

TEST(the_out_of_memory_report_compares_the_step_with_the_largest_before)
{
    open_all(NULL);
    program = program_open(1);
    fd = new_file();
    capture = begin_capture(fd);
    step_with(tokens(2, 2912));
    CHECK(!reports("the largest before")); /* nothing was before */
    step_with(tokens(2, 37));
    CHECK(reports("  step 2 had 2 x 37 tokens; the largest before was 2 x 2,912\n"));
    step_with(tokens(2, 4096));
    CHECK(reports("  step 3 had 2 x 4,096 tokens; the largest before was 2 x 2,912\n"));
    step_with(tokens(2, 4096));
    CHECK(!reports("the largest before")); /* the shape is not why */
    step_with(images(1, 224));
    CHECK(reports("  step 5 had 1 x 3 x 224 x 224 images; the largest before was 2 x 4,096 tokens\n"));
    end_capture(capture);
    close(fd);
    close_all();
}
