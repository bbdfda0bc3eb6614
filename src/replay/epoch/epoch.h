/* epoch.h - the structures of an epoch, for log_steps.c, shaped_sizes.c, slots.c, open.c and run.h.
 *
 *   epoch --+-- beginning: entries of the log, replayed as they were
 *           +-- variants --+-- actions: of one step, in their order
 *           |              +-- samples: the steps of the log that are of this variant
 *           |              +-- slots:   of each allocation: allocations of all variants that are the same one
 *           +-- sizes: of each slot, as a function of the shape
 *           +-- features of the shapes
 *
 * A survivor is a block that is held when its step ends. Later steps free it by the number of steps since then and its
 * rank among the survivors of its step. */
#ifndef MS_REPLAY_EPOCH_H
#define MS_REPLAY_EPOCH_H

#include "modscope_epoch.h"

enum {
    MS__EPOCH_MOST_AGE = 64, /* a survivor that lives for more steps is never freed */
    MS__EPOCH_OF_BEGINNING = UINT16_MAX,
    MS__EPOCH_MOST_LAG = 8
};

struct ms__epoch_action {
    uint64_t value; /* allocate: the number of the allocation in its step. free: that, a survivor's rank, or for an age
                       of MS__EPOCH_OF_BEGINNING a number in the log. stream: the stream */
    uint16_t age;   /* free: how many steps ago it was allocated */
    uint8_t kind;   /* an ms_log_kind */
};

/* A product of features, some of which are rounded up to a multiple. */
struct ms__epoch_product {
    uint8_t powers[MS_EPOCH_MOST_FEATURES];
    uint8_t rounded; /* bit i: feature i is */
    uint8_t multiple;
};

typedef enum ms__size_form { MS__SIZE_CONSTANT, MS__SIZE_LINE, MS__SIZE_INEXACT } ms__size_form;

/* The size of an allocation: constant; constant + slope * product; or between the samples' sizes. */
struct ms__epoch_size {
    double constant, slope;
    uint16_t product; /* an index of ms_epoch.used */
    uint8_t form;     /* an ms__size_form */
    uint8_t lag;      /* of the batch whose shape counts */
    uint32_t seen;    /* in so many samples */
};

struct ms__epoch_variant {
    uint64_t hash;
    struct ms__epoch_action *actions;
    uint32_t *slots;     /* by allocation */
    uint32_t *survivors; /* which allocations survive, in their order */
    uint16_t *ages;      /* by survivor: it dies after so many steps; 0: it was not seen to die */
    uint32_t *samples;   /* steps of the log, in their order */
    uint32_t action_count, allocation_count, survivor_count, sample_count;
    uint8_t kind;
};

struct ms__epoch_step { /* of the log */
    size_t begin, end;  /* entries */
    uint64_t first;     /* its first allocation's number */
    uint32_t count;     /* of its allocations */
    uint32_t shape, variant;
    uint8_t kind;
};

struct ms_epoch {
    uint64_t *log; /* the entries before the end of the last step */
    struct ms__epoch_step *steps;
    uint64_t *bytes;    /* by allocation */
    uint32_t *freed_in; /* by allocation: a step, or MS_EPOCH_NONE */
    uint32_t *made_in;  /* by allocation: a step; MS_EPOCH_NONE: before the first one */
    uint32_t *ranks;    /* by allocation: among the survivors of its step, or MS_EPOCH_NONE */
    uint64_t *tokens;   /* by allocation: which operator made it, and whether it is a temporary block of that */
    struct ms__epoch_size *sizes;          /* by slot, and then those of single variants */
    uint64_t *slot_bytes;                  /* by sample a row with the size of each slot, or UINT64_MAX */
    double *features;                      /* shape_count rows of `width` */
    double ranges[MS_EPOCH_MOST_FEATURES]; /* between the lowest and the highest value of a feature */
    struct ms__epoch_product *used;        /* those by which sizes are known */
    struct ms__epoch_variant *variants;
    uint64_t allocation_count;
    uint32_t step_count, first, shape_count, width, variant_count, used_count, slot_count, size_count;
    uint32_t lag;         /* of most allocations */
    uint32_t longest_lag; /* of any */
    uint32_t longest_age; /* of any survivor that is freed */
};

/* log_steps.c: fill steps, allocations and variants. MS_EINVAL, MS_ENOMEM. */
int ms__epoch_read_log(ms_epoch *epoch, const ms_epoch_source *source);

/* shaped_sizes.c: find the sizes of each variant's allocations. MS_ENOMEM. */
int ms__epoch_fit_sizes(ms_epoch *epoch);
double ms__epoch_product_of(const ms_epoch *epoch, const struct ms__epoch_product *product, uint32_t shape);
/* The shape that counted `lag` steps before this step of the log. */
static inline uint32_t ms__epoch_shape_before(const ms_epoch *epoch, uint32_t step, uint32_t lag)
{
    return epoch->steps[step > lag ? step - lag : 0].shape;
}
/* How far shapes are from each other: 0 if they are equal, and otherwise more. */
double ms__epoch_distance(const ms_epoch *epoch, uint32_t shape, uint32_t other);

/* How many samples there are: the steps of the log from `first` on. */
static inline uint32_t ms__epoch_sample_count(const ms_epoch *epoch)
{
    return epoch->step_count - epoch->first;
}
/* The samples by their distance from a shape, the nearest first, and of equally near ones the latest first. */
void ms__epoch_order_samples(const ms_epoch *epoch, uint32_t shape, uint32_t *order);
/* The size of a slot whose size is not known exactly: between those of the nearest samples that have it. `order` is of
 * that shape. */
uint64_t ms__epoch_inexact_size(const ms_epoch *epoch, uint32_t slot, uint32_t shape, const uint32_t *order);

/* slots.c: find the slots of each variant's allocations. MS_ENOMEM. */
int ms__epoch_find_slots(ms_epoch *epoch);

#endif
