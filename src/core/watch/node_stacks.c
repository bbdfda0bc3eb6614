/* node_stacks.c - where each backward node was created. A thread numbers the nodes that it creates; the stacks of the
 * latest ones are in a ring, by number. Other threads read it without a lock:
 *
 *     number       ... 4094  4095  4096  4097
 *     stacks       [   s0  |  s1 |  s2 |  s3 | what was there MS__NODES_KEPT numbers ago ...    end = 4098
 *
 * The writer changes `end` before an entry, and a reader reads `end` after the entry: so a reader notices that what it
 * read belongs to a later node. */
#include "core/watch/watch.h"

MS__RARE void forget_nodes(struct ms__node_stacks *nodes, uint64_t from, uint64_t to)
{
    uint64_t count = to - from < MS__NODES_KEPT ? to - from : MS__NODES_KEPT;
    for (uint64_t i = 0; i < count; i++)
        MS__STORE(MS__PEEK(nodes->stacks)[(from + i) % MS__NODES_KEPT], MS_STACK_NONE);
}

/* `number` does not follow the node before: nodes in between were created unseen. False: memory ran out. */
MS__RARE bool skip_nodes(ms_thread *thread, uint64_t number)
{
    struct ms__node_stacks *nodes = &thread->node_stacks;
    uint64_t end = MS__PEEK(nodes->end);
    if (!MS__PEEK(nodes->stacks)) {
        /* cppcheck-suppress AssignmentAddressToInteger */
        _Atomic(ms_stack) *stacks = ms__alloc_zeroed(thread->watch, MS__NODES_KEPT * sizeof *stacks);
        MS__STORE(nodes->end, number);
        MS__STORE(nodes->stacks, stacks);
        return stacks != NULL;
    }
    MS__STORE(nodes->end, number);
    forget_nodes(nodes, number > end ? end : number, number > end ? number : UINT64_MAX);
    return true;
}

MS__HOT void ms_node_created(ms_thread *thread, uint64_t number, ms_stack stack)
{
    struct ms__node_stacks *nodes = &thread->node_stacks;
    if (MS__UNLIKELY(number != MS__PEEK(nodes->end) || !MS__PEEK(nodes->stacks)) && !skip_nodes(thread, number))
        return;
    MS__STORE(nodes->end, number + 1);
    MS__STORE(MS__PEEK(nodes->stacks)[number % MS__NODES_KEPT], stack);
}

MS__RARE const ms_thread *find_creator(const ms_thread *thread, uint64_t creator)
{
    bool discarded;
    return creator == MS_ANY_THREAD ? NULL : ms__thread_find(thread->watch, creator, &discarded);
}

MS__HOT ms_stack ms_node_stack(const ms_thread *thread, uint64_t creator, uint64_t number)
{
    bool is_latest = creator == thread->lookup.creator_id;
    const ms_thread *found = MS__LIKELY(is_latest) ? thread->lookup.creator : find_creator(thread, creator);
    _Atomic(ms_stack) *stacks = found ? MS__LOAD(found->node_stacks.stacks) : NULL;
    if (!stacks || number == MS_NO_NUMBER)
        return MS_STACK_NONE;
    ms_stack stack = MS__LOAD(stacks[number % MS__NODES_KEPT]);
    uint64_t end = MS__LOAD(found->node_stacks.end);
    bool is_kept = number < end && end - number <= MS__NODES_KEPT;
    /* A creator that has ended may have left its ring to a new thread. */
    return is_kept && MS__LOAD(found->id) == creator ? stack : (ms_stack)MS_STACK_NONE;
}

void ms__node_stacks_clear(ms_thread *thread)
{
    struct ms__node_stacks *nodes = &thread->node_stacks;
    if (!MS__PEEK(nodes->stacks))
        return;
    MS__STORE(nodes->end, 0);
    forget_nodes(nodes, 0, MS__NODES_KEPT);
}
