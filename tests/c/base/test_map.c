/* test_map.c - the hash map and the growing arrays of src/base, against slow models. The map is compiled into this
 * file, under other names, with a calloc that can refuse. */
#include "base/array.h"
#include "random.h"
#include "runner.h"

#include <stdlib.h>
#include <string.h>

static bool refuse;

static void *calloc_or_refuse(size_t count, size_t size)
{
    return refuse ? NULL : calloc(count, size);
}

#define calloc calloc_or_refuse
#define ms__map_set test_map_set
#define ms__map_remove test_map_remove
#define ms__map_clear test_map_clear
#include "base/map.c"

enum { KEYS = 512 };

/* A few keys close together, some that differ in the high bits only, zero and the largest. */
static uint64_t key_at(uint64_t number)
{
    return number < KEYS / 2 ? number : number < KEYS - 1 ? number << 55 | number % 3 : UINT64_MAX;
}

struct model {
    uint64_t values[KEYS]; /* MS__MAP_NONE: absent */
    size_t count;
};

static void set_in_both(struct ms__map *map, struct model *model, uint64_t number, uint64_t value)
{
    bool is_set = ms__map_set(map, key_at(number), value);
    CHECK(is_set || (refuse && model->values[number] == MS__MAP_NONE));
    if (!is_set)
        return;
    model->count += model->values[number] == MS__MAP_NONE;
    model->values[number] = value;
}

static void remove_from_both(struct ms__map *map, struct model *model, uint64_t number)
{
    ms__map_remove(map, key_at(number));
    model->count -= model->values[number] != MS__MAP_NONE;
    model->values[number] = MS__MAP_NONE;
}

static void compare(const struct ms__map *map, const struct model *model)
{
    CHECK_EQ(map->count, model->count);
    for (uint64_t number = 0; number < KEYS; number++)
        CHECK_EQ(ms__map_get(map, key_at(number)), model->values[number]);
}

static void clear_both(struct ms__map *map, struct model *model)
{
    ms__map_clear(map);
    memset(model, 0xFF, sizeof *model);
    model->count = 0;
}

TEST(a_map_holds_what_a_slow_model_holds)
{
    struct ms__map map = {0};
    struct model model;
    uint64_t state = 1;
    for (int round = 0; round < 30; round++) {
        clear_both(&map, &model);
        uint64_t removes = random_below(&state, 90); /* in 100 */
        for (int step = 0; step < 3000; step++) {
            uint64_t number = random_below(&state, KEYS);
            if (random_below(&state, 100) < removes)
                remove_from_both(&map, &model, number);
            else
                set_in_both(&map, &model, number, random_next(&state) >> random_below(&state, 64) & ~UINT64_C(1));
            if (step % 50 == 0)
                compare(&map, &model);
        }
        compare(&map, &model);
    }
    clear_both(&map, &model);
    compare(&map, &model);
}

TEST(a_map_is_unchanged_when_memory_runs_out)
{
    struct ms__map map = {0};
    struct model model;
    uint64_t state = 2;
    clear_both(&map, &model);
    refuse = true;
    set_in_both(&map, &model, 0, 1);
    compare(&map, &model);
    for (uint64_t number = 0; number < KEYS; number++) {
        refuse = random_below(&state, 2);
        set_in_both(&map, &model, number, number);
        set_in_both(&map, &model, random_below(&state, number + 1), number); /* needs no memory if it is present */
        compare(&map, &model);
    }
    CHECK(model.count > KEYS / 4);
    ms__map_clear(&map);
}

TEST(an_absent_key_has_no_index_and_no_pointer)
{
    struct ms__map map = {0};
    int thing;
    CHECK_EQ(ms__map_index(&map, 7), UINT32_MAX);
    CHECK(!ms__map_pointer(&map, 7));
    CHECK(ms__map_set(&map, 7, (uintptr_t)&thing));
    CHECK(ms__map_set(&map, 0, UINT32_MAX - 1));
    CHECK(ms__map_pointer(&map, 7) == &thing);
    CHECK_EQ(ms__map_index(&map, 0), UINT32_MAX - 1);
    CHECK(!ms__map_has(&map, 8));
    ms__map_clear(&map);
}

/* Keys that collide with one seed do not with another: each map takes its seed from an address. */
TEST(keys_chosen_for_one_map_do_not_collide_in_another)
{
    struct ms__map known = {0}, other = {0};
    CHECK(ms__map_set(&known, 1, 1) && ms__map_set(&other, 1, 1));
    CHECK(known.seed != other.seed);
    uint64_t homes = 0, chosen = 0;
    for (uint64_t key = 0; chosen < 1000; key++)
        if (ms__map_home(&known, key) == 0) {
            homes |= UINT64_C(1) << ms__map_home(&other, key);
            chosen++;
        }
    CHECK(__builtin_popcountll(homes) > 32);
    ms__map_clear(&known);
    ms__map_clear(&other);
}

TEST(an_array_grows_and_keeps_its_items)
{
    uint32_t *items = NULL;
    size_t room = 0;
    for (uint32_t count = 0; count < 1000; count++) {
        CHECK(MS__ARRAY_GROW(items, room, count + 1));
        items[count] = count * 3;
    }
    for (uint32_t i = 0; i < 1000; i++)
        CHECK_EQ(items[i], i * 3);
    uint32_t *before = items;
    size_t room_before = room;
    CHECK(!MS__ARRAY_GROW(items, room, SIZE_MAX / 2));
    CHECK(items == before && room == room_before);
    free(items);
}
