/* test_settings.c - the defaults of each version of torch, and the text of PYTORCH_CUDA_ALLOC_CONF. */
#include "modscope_allocator.h"
#include "runner.h"

#include <string.h>

#define MIB (UINT64_C(1) << 20)

static ms_allocator_settings settings;
static char error[200];

static int apply(const char *text)
{
    error[0] = '\0';
    ms_allocator_settings_default(&settings, "2.13");
    return ms_allocator_settings_apply(&settings, text, error, sizeof error);
}

TEST(each_version_of_torch_has_its_order_of_equal_blocks)
{
    static const struct {
        const char *version;
        ms_tie_order ties;
        bool rounds;
    } cases[] = {{"2.4.1", MS_TIES_BY_ADDRESS, false},        {"2.11.0+cu130", MS_TIES_BY_ADDRESS, false},
                 {"2.12.1", MS_TIES_BY_BLOCK, false},         {"2.13.0+cpu", MS_TIES_BY_SEGMENT, true},
                 {"2.15.0a0+git1", MS_TIES_BY_SEGMENT, true}, {NULL, MS_TIES_BY_SEGMENT, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK_EQ(ms_allocator_settings_default(&settings, cases[i].version), MS_OK);
        CHECK_EQ(settings.ties, cases[i].ties);
        CHECK_EQ(settings.rounds_fraction, cases[i].rounds);
        CHECK_EQ(settings.large_segment_size, 20 * MIB);
    }
    CHECK_EQ(ms_allocator_settings_default(&settings, "newest"), MS_EINVAL);
    CHECK_EQ(ms_allocator_settings_default(&settings, "1.13.1"), MS_EINVAL);
    CHECK_EQ(settings.ties, MS_TIES_BY_SEGMENT);
}

TEST(every_key_is_applied)
{
    CHECK_EQ(apply("max_split_size_mb:128, garbage_collection_threshold : 0.6,expandable_segments:True,"
                   "per_process_memory_fraction:0.5,large_segment_size_mb:64,max_non_split_rounding_mb:30"),
             MS_OK);
    CHECK_EQ(settings.max_split_size, 128 * MIB);
    CHECK_EQ(settings.max_non_split_rounding, 30 * MIB);
    CHECK_EQ(settings.large_segment_size, 64 * MIB);
    CHECK(settings.garbage_collection_threshold == 0.6);
    CHECK(settings.memory_fraction == 0.5);
    CHECK(settings.expandable_segments);
    CHECK_EQ(apply(""), MS_OK);
    CHECK_EQ(apply("backend:native,pinned_use_background_threads:True,release_lock_on_cudamalloc:True,"), MS_OK);
}

TEST(divisions_are_one_number_or_a_list_of_intervals)
{
    CHECK_EQ(apply("roundup_power2_divisions:8"), MS_OK);
    for (int i = 0; i < MS_ROUNDUP_INTERVALS; i++)
        CHECK_EQ(settings.roundup_divisions[i], 8);
    CHECK_EQ(apply("roundup_power2_divisions:[2:1,8:4,>:16],expandable_segments:True"), MS_OK);
    CHECK_EQ(settings.roundup_divisions[0], 1);
    CHECK_EQ(settings.roundup_divisions[1], 1);
    CHECK_EQ(settings.roundup_divisions[2], 0);
    CHECK_EQ(settings.roundup_divisions[3], 16);
    CHECK_EQ(settings.roundup_divisions[15], 16);
    CHECK(settings.expandable_segments);
}

TEST(a_wrong_text_changes_nothing_and_says_why)
{
    static const char *const cases[][2] = {
        {"max_split_size_mb:20", "max_split_size_mb must be above 20 MiB, and is 20"},
        {"max_split_size_mb:many", "max_split_size_mb needs a whole number of MiB"},
        {"garbage_collection_threshold:1.0", "garbage_collection_threshold must be above 0 and below 1"},
        {"per_process_memory_fraction:2", "per_process_memory_fraction must be above 0 and at most 1"},
        {"expandable_segments:yes", "expandable_segments must be True or False"},
        {"roundup_power2_divisions:3", "roundup_power2_divisions: the number of divisions must be a power of two"},
        {"roundup_power2_divisions:[256:1", "roundup_power2_divisions: the list needs a ']' at its end"},
        {"backend:cudaMallocAsync", "the backend 'cudaMallocAsync' is not supported: only 'native' is"},
        {"split:1", "'split' is not a key that is known"},
        {"expandable_segments", "expandable_segments needs a ':' and a value"},
        {":1", "a key is missing before ':1'"},
        {"expandable_segments:True]", "a ',' is missing before ']'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ms_allocator_settings before;
        ms_allocator_settings_default(&before, "2.13");
        CHECK_EQ(apply(cases[i][0]), MS_EINVAL);
        if (strcmp(error, cases[i][1]) != 0)
            FAIL("%s: '%s', not '%s'", cases[i][0], error, cases[i][1]);
        CHECK(memcmp(&before, &settings, sizeof before) == 0);
    }
    CHECK_EQ(ms_allocator_settings_apply(&settings, "wrong", NULL, 0), MS_EINVAL);
}
