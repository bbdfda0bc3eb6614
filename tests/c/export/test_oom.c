/* test_oom.c - memory that is refused to an export: each format says so, and nothing leaks. */
#include "capture/capture_scene.h"
#include "modscope_export.h"
#include "refused_malloc.h"

enum { MOST_NAMES = 256 };

static int (*format)(const ms_export_job *);
static uint64_t written;

static bool put(void *context, const void *bytes, size_t size, double part)
{
    (void)context, (void)bytes, (void)part;
    written += size;
    return true;
}

static int export(void)
{
    ms_export_text names[MOST_NAMES];
    ms_export_place places[MOST_NAMES];
    ms_export_job job = {.reader = reader,
                         .last = UINT64_MAX,
                         .modules = names,
                         .devices = names,
                         .places = places,
                         .order = (uint32_t[]){0},
                         .order_count = 1,
                         .title = {"run", 3},
                         .put = put};
    for (int i = 0; i < MOST_NAMES; i++) {
        names[i] = (ms_export_text){"\"name\"", 6};
        places[i] = (ms_export_place){.file = names[i], .line = 1};
    }
    job.module_count = ms_reader_paths(reader);
    job.device_count = ms_reader_devices(reader);
    job.place_count = ms_reader_stacks(reader);
    CHECK(job.module_count <= MOST_NAMES && job.place_count <= MOST_NAMES);
    written = 0;
    return format(&job);
}

TEST(every_allocation_of_an_export_may_be_refused)
{
    int (*const formats[])(const ms_export_job *) = {ms_export_perfetto, ms_export_csv, ms_export_json,
                                                     ms_export_torch};
    read_corpus("runs/gpt-0.1.0.msc");
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        format = formats[i];
        refuse_each_malloc(export, MS_ENOMEM);
        CHECK(written > 10000);
    }
    unread();
}
