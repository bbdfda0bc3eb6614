/* play.h - a capture from its beginning to a moment, for those who write of it. */
#ifndef MS_EXPORT_PLAY_H
#define MS_EXPORT_PLAY_H

#include "export/index.h"
#include "export/sink.h"

/* ---- what happens ---- */

/* Both return MS_OK, or an error that ends it. */
typedef struct mse_player {
    /* At the beginning, and after something that is lost or damaged: only the cursor knows what is so now. */
    int (*key)(void *self, const ms_cursor *cursor, bool first);
    int (*event)(void *self, const ms_cursor *cursor, const ms_event *event);
} mse_player;

/* `sink` is the player's, for the part that is done: from `part` on, `share` of the whole. */
int mse_play(const mse_job *job, const mse_player *player, void *self, mse_sink *sink, double part, double share);

/* ---- what is held meanwhile ---- */
typedef struct mse_block {
    uint64_t bytes, made_at, step;
    int64_t id; /* the number of its add; below 0: it was not seen */
    uint32_t slot, device;
    uint32_t place; /* for its writer */
    uint32_t look;  /* at which it was there last */
    ms_path path;
    uint8_t category, phase;
} mse_block;

typedef enum mse_how { MSE_SEEN, MSE_UNSEEN } mse_how; /* by an event, or known from a key frame only */

typedef struct mse_watcher {
    int (*begin)(void *self, mse_block *block, mse_how how);
    int (*end)(void *self, const mse_block *block, mse_how how);
    /* `before` has become `block`: of another category or module. */
    int (*change)(void *self, const mse_block *before, mse_block *block);
} mse_watcher;

typedef struct mse_live {
    const mse_watcher *watcher;
    void *self;
    uint64_t devices; /* bit i: blocks of device i are of interest */
    mse_block *blocks;
    size_t count, room;
    mse_index by_slot;
    int64_t unseen; /* blocks so far */
    uint32_t look;
} mse_live;

int mse_live_key(mse_live *live, const ms_cursor *cursor);
int mse_live_event(mse_live *live, const ms_cursor *cursor, const ms_event *event);
void mse_live_close(mse_live *live);

#endif
