/* core_driver.c - events by the thousand, for a tool that counts instructions.
 *
 *     core_driver calls N    N module calls: a model three deep, each call makes 2 nodes
 *     core_driver nodes N    N backward nodes of such a model, last made first
 *
 * What does not depend on N goes away in the difference of two runs (core_instructions.py). */
#include "modscope.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THREAD 1
#define MODEL_CALLS 1536 /* a step's calls when only nodes are counted; a multiple of 3 */
#define NODES_A_CALL 2

static ms_thread *thread;
static ms_path model, block, leaf;
static uint64_t next_number;

static void one_call(int depth)
{
    ms_call_enter(thread, depth == 0 ? model : depth == 1 ? block : leaf, next_number);
    next_number++;
    if (depth < 2)
        one_call(depth + 1);
    next_number += NODES_A_CALL - 1;
    ms_call_leave(thread, next_number);
}

static void run_calls(uint64_t calls)
{
    for (uint64_t i = 0; i < calls / 3; i++)
        one_call(0);
}

static void run_nodes(uint64_t nodes)
{
    uint64_t number = next_number;
    for (uint64_t i = 0; i < nodes; i++) {
        number = number ? number - 1 : next_number - 1;
        ms_node_enter(thread, THREAD, number, next_number);
        ms_node_leave(thread, next_number);
    }
}

int main(int argc, char **argv)
{
    uint64_t count = argc == 3 ? strtoull(argv[2], NULL, 10) : 0;
    bool nodes = argc == 3 && strcmp(argv[1], "nodes") == 0;
    if (argc != 3 || count % 3 || (!nodes && strcmp(argv[1], "calls") != 0)) {
        fprintf(stderr, "core_driver calls|nodes N   (N a multiple of 3)\n");
        return 2;
    }
    ms_watch *watch = ms_watch_open(NULL);
    thread = watch ? ms_thread_open(watch, THREAD) : NULL;
    if (!thread || ms_path_add(watch, MS_GLOBAL, "Model", &model) || ms_path_add(watch, model, "block", &block) ||
        ms_path_add(watch, block, "leaf", &leaf))
        return 1;
    if (nodes) {
        run_calls(MODEL_CALLS);
        run_nodes(count);
    } else {
        run_calls(count);
    }
    uint64_t lost = ms_lost(watch);
    ms_watch_close(watch);
    return lost ? 1 : 0;
}
