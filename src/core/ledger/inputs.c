/* inputs.c - the inputs of root calls: which of them stands for all, which step had the largest, and in words. */
#include "core/capture/write/encoder.h"
#include "core/ledger/ledger.h"

#include <string.h>

static bool are_tokens(const ms_input *input)
{
    return input->element == MS_ELEMENT_INTEGER && input->dim_count == 2;
}

const ms_input *ms_inputs_main(const ms_input *inputs, uint32_t count)
{
    const ms_input *found = inputs;
    for (uint32_t i = 0; i < count && !are_tokens(found); i++)
        if (are_tokens(&inputs[i]) || inputs[i].dim_count > found->dim_count)
            found = &inputs[i];
    return found;
}

/* The words of shape_text in the Python package. */
static const char *unit_of(const ms_input *input)
{
    if (are_tokens(input) || (input->element == MS_ELEMENT_INTEGER && input->dim_count == 1))
        return " tokens";
    return input->element == MS_ELEMENT_FLOAT && input->dim_count == 4 ? " images" : "";
}

struct words {
    char *text;
    size_t room, length;
};

static void put_character(struct words *words, char character)
{
    if (words->length < words->room)
        words->text[words->length++] = character;
}

static void put_words(struct words *words, const char *text)
{
    while (*text)
        put_character(words, *text++);
}

/* 4096 as 4,096. */
static void put_number(struct words *words, uint64_t number)
{
    uint64_t digits = 1, place = 1;
    while (number / place >= 10) {
        place *= 10;
        digits++;
    }
    for (; digits; digits--, place /= 10) {
        put_character(words, (char)('0' + number / place % 10));
        if (digits > 1 && digits % 3 == 1)
            put_character(words, ',');
    }
}

size_t ms_input_text(const ms_input *input, bool unit, char *text, size_t room)
{
    struct words words = {.text = text, .room = room ? room - 1 : 0};
    for (uint32_t i = 0; i < input->dim_count && i < MS_INPUT_DIMS; i++) {
        put_words(&words, i ? " x " : "");
        put_number(&words, input->dims[i]);
    }
    put_words(&words, unit ? unit_of(input) : "");
    if (room)
        text[words.length] = '\0';
    return words.length;
}

static double elements_of(const ms_input *input)
{
    double elements = input->dim_count ? 1 : 0;
    for (uint32_t i = 0; i < input->dim_count; i++)
        elements *= (double)input->dims[i];
    return elements;
}

static void keep_larger(ms_input *largest, const ms_input *input)
{
    if (!largest->dim_count || elements_of(input) > elements_of(largest))
        *largest = *input;
}

void ms_inputs_note(ms_ledger *ledger, const ms_thread *thread, const ms_input *inputs, uint32_t count)
{
    if (!ms__captured(ledger) || !count || !thread || ms__phase(thread) != MS_FORWARD)
        return;
    ms__lock(&ledger->lock);
    struct ms__noted_inputs *noted = &ledger->inputs;
    const ms_input *input = ms_inputs_main(inputs, count);
    if (noted->step != ledger->step) {
        if (noted->step)
            keep_larger(&noted->before, &noted->largest);
        noted->step = ledger->step;
        noted->largest = *input;
    }
    keep_larger(&noted->largest, input);
    ms__capture_inputs(ledger, inputs, count);
    ms__unlock(&ledger->lock);
}
