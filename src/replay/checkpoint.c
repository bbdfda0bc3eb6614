/* checkpoint.c - calls that are checkpointed or offloaded: what they keep for backward, and when that is freed in
 * forward if autograd does not keep it. */
#include "replay/edit.h"

bool ms__replay_call_is_in(const ms_replay_stream *stream, uint32_t call, uint32_t around)
{
    while (call != MS_REPLAY_NONE && call > around)
        call = stream->calls[call].parent; /* a call begins after the one around it */
    return call == around;
}

bool ms__replay_is_held_by_object(uint8_t category)
{
    return category == MS_PARAMETER || category == MS_BUFFER || category == MS_GRADIENT || category == MS_OPTSTATE;
}

bool ms_replay_call_keeps(const ms_replay_stream *stream, const ms_replay_call *call, const ms_replay_block *block)
{
    return call->backward != MS_REPLAY_NONE && call->end != MS_REPLAY_NONE && block->drop != MS_REPLAY_NONE &&
           block->drop >= call->backward && block->drop_phase == MS_BACKWARD &&
           !ms__replay_is_held_by_object(block->category) &&
           ms__replay_call_is_in(stream, block->call, (uint32_t)(call - stream->calls));
}

/* The block is one of the call. */
static bool outlives(const ms_replay_block *block, const ms_replay_call *call)
{
    return block->drop == MS_REPLAY_NONE || block->drop >= call->end;
}

bool ms__replay_outlives_call(const ms_replay_stream *stream, uint32_t call, uint32_t block)
{
    return outlives(&stream->blocks[block], &stream->calls[call]) &&
           ms__replay_call_is_in(stream, stream->blocks[block].call, call);
}

ms_replay_call_bytes ms_replay_call_measure(const ms_replay_stream *stream, uint32_t index, uint32_t device)
{
    const ms_replay_call *call = &stream->calls[index];
    ms_replay_call_bytes bytes = {0, 0};
    uint32_t last = call->last_block == MS_REPLAY_NONE ? stream->block_count : call->last_block;
    for (uint32_t i = call->first_block; i < last; i++) {
        const ms_replay_block *block = &stream->blocks[i];
        if (block->device != device || !ms__replay_outlives_call(stream, index, i))
            continue;
        if (ms_replay_call_keeps(stream, call, block))
            bytes.kept += block->bytes;
        else
            bytes.output += block->bytes;
    }
    return bytes;
}

/* ---- what calls take and return ---- */
static bool has_use(const ms_replay_stream *stream, uint32_t block, uint32_t call, ms_replay_use_kind kind)
{
    for (uint32_t i = stream->blocks[block].last_use; i != MS_REPLAY_NONE; i = stream->uses[i].earlier)
        if (stream->uses[i].call == call && stream->uses[i].kind == kind)
            return true;
    return false;
}

bool ms__replay_call_returns(const ms_replay_stream *stream, const ms__replay_edited_call *edited, uint32_t block)
{
    return stream->has_inputs ? has_use(stream, block, edited->call, MS_REPLAY_OUTPUT) : block == edited->output;
}

/* Describe what the call keeps. Where inputs and outputs are not noted, a call's output is what outlives it beside what
 * it keeps; if there is no such block, the output is among those that it keeps. */
static ms__replay_edited_call describe_call(const ms_replay_stream *stream, uint32_t index)
{
    const ms_replay_call *call = &stream->calls[index];
    ms__replay_edited_call edited = {.call = index,
                                     .to = MS_REPLAY_NONE,
                                     .output = MS_REPLAY_NONE,
                                     .last = MS_REPLAY_NONE,
                                     .input = MS_REPLAY_NONE,
                                     .end = MS_REPLAY_NONE};
    bool has_output = stream->has_inputs;
    for (uint32_t i = call->first_block; i < call->last_block; i++) {
        const ms_replay_block *block = &stream->blocks[i];
        if (!ms__replay_outlives_call(stream, index, i))
            continue;
        if (ms_replay_call_keeps(stream, call, block)) {
            edited.last = block->add;
            edited.end = edited.end == MS_REPLAY_NONE || block->drop > edited.end ? block->drop : edited.end;
        } else if (block->drop != MS_REPLAY_NONE) {
            has_output = true;
        }
    }
    uint32_t result = has_output ? MS_REPLAY_NONE : ms__replay_guess_result(stream, index);
    if (result != MS_REPLAY_NONE && ms_replay_call_keeps(stream, call, &stream->blocks[result]))
        edited.output = result;
    edited.backward = ms__replay_first_unpack(stream, index, edited.end);
    if (!stream->has_inputs)
        edited.input = ms__replay_guess_input(stream, index);
    if (call->last_save != MS_REPLAY_NONE && edited.last != MS_REPLAY_NONE && call->last_save > edited.last)
        edited.last = call->last_save - 1;
    /* A module that autograd saves a parameter of, which is not noted. */
    for (uint32_t i = index + 1; i < stream->call_count && stream->calls[i].begin < call->end; i++)
        if (edited.last != MS_REPLAY_NONE && stream->calls[i].begin > edited.last &&
            ms__replay_owns_parameter(stream, stream->calls[i].path) && ms__replay_call_is_in(stream, i, index))
            edited.last = stream->calls[i].begin;
    return edited;
}

uint32_t ms__replay_call_input(const ms_replay_stream *stream, const ms__replay_edited_call *edited, uint32_t number)
{
    const ms_replay_call *call = &stream->calls[edited->call];
    if (!stream->has_inputs)
        return number ? MS_REPLAY_NONE : edited->input;
    return number < call->input_count ? stream->uses[call->first_input + number].block : MS_REPLAY_NONE;
}

uint32_t ms_replay_call_recomputed_to(const ms_replay_stream *stream, uint32_t index)
{
    const ms_replay_call *call = &stream->calls[index];
    if (call->backward == MS_REPLAY_NONE || call->end == MS_REPLAY_NONE)
        return MS_REPLAY_NONE;
    uint32_t last = describe_call(stream, index).last;
    if (last == MS_REPLAY_NONE)
        return MS_REPLAY_NONE;
    return last + 1 < call->end ? last + 1 : call->end;
}

/* ---- when a block is freed in forward ---- */
static uint32_t later_end(const ms_replay_stream *stream, uint32_t call, uint32_t end)
{
    uint32_t of = stream->calls[call].end;
    return of != MS_REPLAY_NONE && (end == MS_REPLAY_NONE || of > end) ? of : end;
}

bool ms__replay_is_workspace(const ms_replay_block *block)
{
    return block->drop == MS_REPLAY_NONE && !ms__replay_is_held_by_object(block->category);
}

/* The next event of the thread that adds or drops a block of the device, from event `i` on and before a position of the
 * thread or event `end`; otherwise `end`. */
static uint32_t next_on_device(const ms_replay_stream *stream, uint16_t thread, uint8_t device, uint32_t i,
                               uint32_t end)
{
    for (; i < end; i++) {
        const ms_replay_event *event = &stream->events[i];
        bool is_block = event->kind == MS_REPLAY_ADD || event->kind == MS_REPLAY_DROP;
        if (event->thread == thread && is_block && stream->blocks[event->value].device == device)
            return i;
        if (event->thread == thread && event->kind == MS_REPLAY_POSITION)
            return end;
    }
    return end;
}

/* The end of the operator that saves a tensor: it has added its result on the tensor's device, and the workspaces that
 * it needs after that. A library keeps a workspace, or it is dropped before anything else happens. */
static uint32_t operator_end(const ms_replay_stream *stream, const ms_replay_use *save)
{
    const ms_replay_call *call = &stream->calls[save->call];
    uint8_t device = stream->blocks[save->block].device;
    uint32_t i = save->event;
    while (i < call->end && !(stream->events[i].kind == MS_REPLAY_ADD && stream->events[i].thread == call->thread &&
                              stream->blocks[stream->events[i].value].device == device))
        i++;
    while (i < call->end) {
        uint32_t next = next_on_device(stream, call->thread, device, i + 1, call->end);
        if (next >= call->end || stream->events[next].kind != MS_REPLAY_ADD)
            return i + 1;
        const ms_replay_block *workspace = &stream->blocks[stream->events[next].value];
        bool is_kept = ms__replay_is_workspace(workspace);
        if (!is_kept && workspace->drop != next_on_device(stream, call->thread, device, next + 1, call->end))
            return i + 1;
        i = is_kept ? next : workspace->drop;
    }
    return call->end;
}

/* The call of the code `around`, in which `call` lies; or `around`. */
static uint32_t call_from(const ms_replay_stream *stream, uint32_t call, uint32_t around)
{
    while (call != around && stream->calls[call].parent != around)
        call = stream->calls[call].parent;
    return call;
}

/* Whether the block was computed last before the save: by the latest call of the code that saves it. */
static bool is_latest(const ms_replay_stream *stream, const ms_replay_use *save)
{
    uint32_t own = stream->blocks[save->block].call, latest = own;
    if (!ms__replay_call_is_in(stream, own, save->call))
        return false;
    while (latest + 1 < stream->call_count && stream->calls[latest + 1].begin < save->event)
        latest++;
    while (stream->calls[latest].thread != stream->calls[own].thread)
        latest--;
    return ms__replay_call_is_in(stream, latest, save->call) &&
           call_from(stream, latest, save->call) == call_from(stream, own, save->call);
}

/* Whether the code of a call saves the result of a call in it as an operand of an expression: f(self.a(x)), or
 * f(self.a(x)) * self.b(x). The last operand was computed just before. Operators with more operands, such as attention,
 * take variables. */
static bool is_operand(const ms_replay_stream *stream, uint32_t use)
{
    const ms_replay_use *uses = stream->uses;
    uint32_t from = use, to = use + 1;
    while (from && uses[from - 1].event == uses[use].event && uses[from - 1].kind == MS_REPLAY_SAVE)
        from--;
    while (to < stream->use_count && uses[to].event == uses[use].event && uses[to].kind == MS_REPLAY_SAVE)
        to++;
    bool found = false;
    for (uint32_t i = from; i < to; i++)
        found |= is_latest(stream, &uses[i]);
    return found && to - from <= 2;
}

/* After which event the code of the call has computed its next sum of so many bytes, from event `from` on; `from`
 * itself: there is none. */
static uint32_t next_sum(const ms_replay_stream *stream, uint32_t call, uint64_t bytes, uint32_t from)
{
    const ms_replay_call *own = &stream->calls[call];
    uint32_t end = from;
    for (uint32_t i = from; i < own->end; i++) {
        const ms_replay_event *event = &stream->events[i];
        if (event->thread != own->thread)
            continue;
        if (event->kind == MS_REPLAY_POSITION && event->value != own->path && end != from)
            return end;
        if (event->kind == MS_REPLAY_ADD && stream->blocks[event->value].call == call &&
            stream->blocks[event->value].requested == bytes)
            end = i + 1;
    }
    return end;
}

/* Whether a residual network normalizes its sums, as in norm(x + part(x)), and not in x + part(norm(x)): the call
 * returns what a call in it makes of a sum. */
static bool normalizes_sums(const ms_replay_stream *stream, uint32_t index)
{
    enum { MOST_BLOCKS = 64 }; /* a call's result is among the last */
    const ms_replay_call *call = &stream->calls[index];
    for (uint32_t i = call->last_block, tries = 0; i-- > call->first_block && tries < MOST_BLOCKS; tries++) {
        if (!has_use(stream, i, index, MS_REPLAY_OUTPUT))
            continue;
        const ms_replay_call *last = &stream->calls[stream->blocks[i].call];
        return last->parent == index && last->input_count &&
               stream->blocks[stream->uses[last->first_input].block].call == index;
    }
    return false;
}

/* When a normalized sum is freed that a call has taken until event `end`: it is added to the result of that call, and
 * assigned anew when that sum is normalized. `end` itself: the block is none. */
static uint32_t normalized_end(const ms_replay_stream *stream, uint32_t around, uint32_t block, uint32_t end)
{
    const ms_replay_call *norm = &stream->calls[stream->blocks[block].call];
    uint32_t code = norm->parent;
    if (code == MS_REPLAY_NONE || stream->calls[code].end == MS_REPLAY_NONE || !norm->input_count ||
        stream->calls[code].last_block == MS_REPLAY_NONE || !ms__replay_call_is_in(stream, code, around) ||
        stream->blocks[stream->uses[norm->first_input].block].call != code || !normalizes_sums(stream, code))
        return end;
    uint32_t after = next_sum(stream, code, stream->blocks[block].requested, end);
    uint32_t use = after == end ? MS_REPLAY_NONE : stream->blocks[stream->events[after - 1].value].last_use;
    for (; use != MS_REPLAY_NONE; use = stream->uses[use].earlier)
        if (stream->uses[use].kind == MS_REPLAY_INPUT)
            return later_end(stream, stream->uses[use].call, end);
    return end;
}

/* When a block is freed that is used in the call `around` and was added there. A call that takes it holds it until the
 * call ends. Otherwise the last use tells:
 *
 *     the code that computed it saves it,        a part of an expression: freed when that operator ends
 *     or saves it as an operand
 *     another call uses it                       freed when that call ends
 *     only calls in the one that computed it do  the sum with which the next part of a residual network begins, if
 * there is a next sum: it is added to the result of that part, and freed then. Where sums are normalized, that is so of
 * what the normalization returns
 */
static uint32_t end_by_uses(const ms_replay_stream *stream, uint32_t around, uint32_t block)
{
    uint32_t end = MS_REPLAY_NONE, own = stream->blocks[block].call;
    bool is_passed_on = true;
    for (uint32_t i = stream->blocks[block].last_use; i != MS_REPLAY_NONE; i = stream->uses[i].earlier) {
        const ms_replay_use *use = &stream->uses[i];
        if (use->call == MS_REPLAY_NONE || !ms__replay_call_is_in(stream, use->call, around))
            continue;
        if (end == MS_REPLAY_NONE && use->kind == MS_REPLAY_SAVE && stream->calls[use->call].end != MS_REPLAY_NONE &&
            (use->call == own || is_operand(stream, i)))
            end = operator_end(stream, use);
        else if (end == MS_REPLAY_NONE || use->kind == MS_REPLAY_INPUT)
            end = later_end(stream, use->call, end);
        is_passed_on &= use->call != own;
    }
    if (end == MS_REPLAY_NONE || stream->calls[own].end == MS_REPLAY_NONE)
        return is_passed_on ? later_end(stream, own, end) : end;
    if (!is_passed_on || end >= stream->calls[own].end)
        return normalized_end(stream, around, block, is_passed_on ? later_end(stream, own, end) : end);
    return normalizes_sums(stream, own) ? end : next_sum(stream, own, stream->blocks[block].requested, end);
}

/* The first parameter of this module with as many bytes or more, or one of a later module. NULL: there is none. */
static const ms_replay_block *find_parameter(const ms_replay_stream *stream, ms_path path, uint64_t bytes)
{
    uint32_t from = 0, to = stream->parameter_count;
    while (from < to) {
        uint32_t middle = from + (to - from) / 2;
        const ms_replay_block *parameter = &stream->blocks[stream->parameters[middle]];
        bool lower = parameter->path < path || (parameter->path == path && parameter->requested < bytes);
        *(lower ? &from : &to) = lower ? middle + 1 : middle;
    }
    return from < stream->parameter_count ? &stream->blocks[stream->parameters[from]] : NULL;
}

bool ms__replay_has_parameter(const ms_replay_stream *stream, ms_path path, uint64_t bytes, uint32_t device)
{
    const ms_replay_block *found = find_parameter(stream, path, bytes);
    return found && found->path == path && found->requested == bytes && found->device == device;
}

bool ms__replay_owns_parameter(const ms_replay_stream *stream, ms_path path)
{
    const ms_replay_block *found = find_parameter(stream, path, 0);
    return found && found->path == path;
}

/* Whether the block has half the size of a parameter of its module: then it is a cast of it, as autocast makes it. */
static bool is_cast(const ms_replay_stream *stream, const ms_replay_block *block)
{
    return ms__replay_has_parameter(stream, block->path, 2 * block->requested, block->device);
}

/* autocast keeps its casts until the program leaves it: about when the outermost call has ended. */
static uint32_t cast_end(const ms_replay_stream *stream, const ms__replay_edited_call *edited)
{
    const ms_replay_call *call = &stream->calls[edited->call], *root = call;
    while (root->parent != MS_REPLAY_NONE)
        root = &stream->calls[root->parent];
    return root->end < call->backward ? root->end : call->backward;
}

uint32_t ms__replay_unsaved_end(const ms_replay_stream *stream, const ms__replay_edited_call *edited, uint32_t block)
{
    if (is_cast(stream, &stream->blocks[block]))
        return cast_end(stream, edited);
    if (!stream->has_inputs)
        return ms__replay_guess_end(stream, edited->call, block);
    return end_by_uses(stream, edited->call, block);
}

/* The last use of the block in the call `around`, or MS_REPLAY_NONE. */
static uint32_t last_use_in(const ms_replay_stream *stream, uint32_t around, uint32_t block)
{
    uint32_t i = stream->blocks[block].last_use;
    while (i != MS_REPLAY_NONE &&
           (stream->uses[i].call == MS_REPLAY_NONE || !ms__replay_call_is_in(stream, stream->uses[i].call, around)))
        i = stream->uses[i].earlier;
    return i;
}

uint32_t ms__replay_varied_end(const ms_replay_stream *stream, const ms__replay_edited_call *edited, uint32_t block,
                               uint32_t variant)
{
    const uint32_t spread = 2654435761; /* a prime near 2^32 / the golden ratio: neighbouring blocks differ */
    uint32_t end = ms__replay_unsaved_end(stream, edited, block), around = edited->call;
    uint32_t last = stream->has_inputs && variant ? last_use_in(stream, around, block) : MS_REPLAY_NONE;
    if (last == MS_REPLAY_NONE || is_cast(stream, &stream->blocks[block]))
        return end;
    uint32_t choice = (block - stream->calls[around].first_block + variant * 7919) * spread >> 30;
    const ms_replay_use *use = &stream->uses[last];
    if (choice == 0) /* its last user ends */
        return use->kind == MS_REPLAY_SAVE ? operator_end(stream, use) : later_end(stream, use->call, MS_REPLAY_NONE);
    if (choice == 1) { /* a variable of the code that uses it */
        uint32_t holder =
            use->kind == MS_REPLAY_INPUT && use->call != around ? stream->calls[use->call].parent : use->call;
        return later_end(stream, holder, end);
    }
    return end;
}

uint32_t ms__replay_returned_end(const ms_replay_stream *stream, const ms__replay_edited_call *edited, uint32_t block)
{
    const ms_replay_call *call = &stream->calls[edited->call];
    uint32_t end = call->parent == MS_REPLAY_NONE ? MS_REPLAY_NONE : stream->calls[call->parent].end;
    bool is_used = false;
    for (uint32_t i = stream->blocks[block].last_use; i != MS_REPLAY_NONE; i = stream->uses[i].earlier) {
        const ms_replay_use *use = &stream->uses[i];
        if (use->call != MS_REPLAY_NONE && ms__replay_call_is_in(stream, use->call, edited->call))
            continue;
        if (use->kind == MS_REPLAY_SAVE)
            return MS_REPLAY_NONE;
        end = later_end(stream, use->call, is_used ? end : MS_REPLAY_NONE);
        is_used = true;
    }
    return end < call->backward ? end : MS_REPLAY_NONE;
}

/* ---- edits ---- */
/* Whether the call, a call around it or a call in it is edited. */
static bool overlaps_edited(const ms_replay_edit *edit, uint32_t call)
{
    uint8_t marks = edit->marks[call];
    for (; call != MS_REPLAY_NONE; call = edit->stream->calls[call].parent)
        marks |= edit->marks[call] & MS_REPLAY_IS_EDITED;
    return marks;
}

static int add_edited_call(ms_replay_edit *edit, uint32_t call, uint32_t to)
{
    const ms_replay_stream *stream = edit->stream;
    if (call >= stream->call_count || overlaps_edited(edit, call))
        return MS_EINVAL;
    if (stream->calls[call].backward == MS_REPLAY_NONE || stream->calls[call].end == MS_REPLAY_NONE)
        return MS_OK;
    if (!MS__ARRAY_GROW(edit->calls, edit->call_room, edit->call_count + 1))
        return MS_ENOMEM;
    edit->calls[edit->call_count] = describe_call(stream, call);
    edit->calls[edit->call_count++].to = to;
    edit->marks[call] |= MS_REPLAY_IS_EDITED;
    for (call = stream->calls[call].parent; call != MS_REPLAY_NONE; call = stream->calls[call].parent)
        edit->marks[call] |= MS_REPLAY_HAS_EDITED;
    return MS_OK;
}

int ms_replay_edit_checkpoint(ms_replay_edit *edit, uint32_t call)
{
    return add_edited_call(edit, call, MS_REPLAY_NONE);
}

int ms_replay_edit_offload(ms_replay_edit *edit, uint32_t call, uint32_t to)
{
    return to < MS_MAX_DEVICES ? add_edited_call(edit, call, to) : MS_EINVAL;
}
