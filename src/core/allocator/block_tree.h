/* block_tree.h - a set of blocks in order, as a treap: a search tree over the blocks' keys that is also a heap over
 * random priorities, which keeps it balanced. The links are in the blocks; a block is in at most one tree. */
#ifndef MS_BLOCK_TREE_H
#define MS_BLOCK_TREE_H

#include <stdbool.h>
#include <stdint.h>

/* Blocks are in the order of (stream, size, tie, address). */
struct ms__tree_key {
    uint64_t stream, size, tie, address;
};

struct ms__tree_node {
    struct ms__tree_key key;
    struct ms__tree_node *left, *right;
    uint32_t priority;
};

struct ms__tree {
    struct ms__tree_node *root;
    uint32_t random; /* the state of the generator of priorities */
};

void ms__tree_insert(struct ms__tree *tree, struct ms__tree_node *node);
/* The node must be in the tree, with the key it was inserted with. */
void ms__tree_remove(struct ms__tree *tree, struct ms__tree_node *node);
/* The first node whose key is `key` or comes after it; NULL if there is none. */
struct ms__tree_node *ms__tree_find(const struct ms__tree *tree, const struct ms__tree_key *key);
/* The first node after a key, the last one before it, and the first one of all; NULL if there is none. */
struct ms__tree_node *ms__tree_after(const struct ms__tree *tree, const struct ms__tree_key *key);
struct ms__tree_node *ms__tree_before(const struct ms__tree *tree, const struct ms__tree_key *key);
struct ms__tree_node *ms__tree_first(const struct ms__tree *tree);
/* Whether every node is in order, and below its parent's priority. */
bool ms__tree_is_right(const struct ms__tree *tree, uint64_t *count);

#endif
