/* root_inputs.c - the shapes of the inputs of root calls: in a page of their own, as notes are. A list of inputs that
 * is in the page already is written as its number. */
#include "core/capture/write/event_page.h"

#include <string.h>

void ms__capture_close_inputs(ms_capture *capture)
{
    struct ms__page *page = capture->inputs;
    capture->inputs = NULL;
    uint8_t *end = capture->inputs_at;
    capture->inputs_at = capture->inputs_limit = NULL;
    capture->input_lists = 0;
    if (!page)
        return;
    page->head.size = (uint32_t)(end - page->bytes) - MS__CHUNK_HEAD;
    ms__page_queue(capture, page);
}

static bool open_inputs(ms_capture *capture)
{
    ms__capture_close_inputs(capture);
    struct ms__page *page = capture->losing ? NULL : ms__page_take(capture, MS__PAGE_BYTES);
    if (!page)
        return false;
    page->head = (struct ms__chunk_head){
        .kind = MS__CHUNK_INPUTS, .event = capture->event, .time = capture->time, .oldest_claimed = MS__NO_CLAIM};
    capture->inputs = page;
    capture->inputs_at = page->bytes + MS__CHUNK_HEAD;
    capture->inputs_limit = capture->inputs_at + MS__PAGE_BYTES - MS__INPUTS_MAX;
    capture->inputs_step = 0;
    return true;
}

static uint8_t *put_list(uint8_t *at, const ms_input *inputs, uint32_t count)
{
    at = ms__put_varint(at, count);
    for (uint32_t i = 0; i < count; i++) {
        at = ms__put_varint(at, inputs[i].dim_count << MS__ELEMENT_BITS | inputs[i].element);
        for (uint32_t dim = 0; dim < inputs[i].dim_count; dim++)
            at = ms__put_varint(at, inputs[i].dims[dim]);
    }
    return at;
}

/* The number of the list in this page; the number of lists: it is not there yet. */
static uint32_t number_of_list(const ms_capture *capture, const uint8_t *list, size_t size)
{
    uint32_t i = 0;
    for (; i < capture->input_lists; i++) {
        const uint32_t *ends = capture->input_list_ends[i];
        if (ends[1] - ends[0] == size && memcmp(capture->inputs->bytes + ends[0], list, size) == 0)
            break;
    }
    return i;
}

static void encode_inputs(ms_capture *capture, uint64_t step, const uint8_t *list, size_t size)
{
    uint32_t number = number_of_list(capture, list, size);
    bool is_full = capture->inputs_at >= capture->inputs_limit || number == MS__INPUT_LISTS;
    if (MS__UNLIKELY(is_full) && !open_inputs(capture))
        return;
    number = is_full ? 0 : number;
    uint8_t *at = ms__put_varint(ms__put_varint(capture->inputs_at, step - capture->inputs_step), number);
    if (number == capture->input_lists) {
        memcpy(at, list, size);
        uint32_t begin = (uint32_t)(at - capture->inputs->bytes);
        capture->input_list_ends[number][0] = begin;
        capture->input_list_ends[number][1] = begin + (uint32_t)size;
        capture->input_lists++;
        at += size;
    }
    capture->inputs_at = at;
    capture->inputs_step = step;
}

void ms__capture_inputs(ms_ledger *ledger, const ms_input *inputs, uint32_t count)
{
    uint8_t list[MS__INPUTS_MAX];
    size_t size = (size_t)(put_list(list, inputs, count < MS_INPUTS ? count : MS_INPUTS) - list);
    for (ms_capture *capture = MS__PEEK(ledger->captures); capture; capture = capture->next)
        encode_inputs(capture, capture->ledger->step, list, size);
}
