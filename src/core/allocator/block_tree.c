/* block_tree.c - insertion, removal and search in a treap. */
#include "core/allocator/block_tree.h"

#include <stddef.h>

static inline bool comes_before(const struct ms__tree_key *a, const struct ms__tree_key *b)
{
    if (a->stream != b->stream)
        return a->stream < b->stream;
    if (a->size != b->size)
        return a->size < b->size;
    if (a->tie != b->tie)
        return a->tie < b->tie;
    return a->address < b->address;
}

static uint32_t next_priority(struct ms__tree *tree)
{
    uint32_t x = tree->random ? tree->random : 2463534242u;
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    return tree->random = x;
}

void ms__tree_insert(struct ms__tree *tree, struct ms__tree_node *node)
{
    node->priority = next_priority(tree);
    struct ms__tree_node **link = &tree->root;
    while (*link && (*link)->priority >= node->priority)
        link = comes_before(&(*link)->key, &node->key) ? &(*link)->right : &(*link)->left;
    /* What was below the link is divided into the nodes before and after the new one. */
    struct ms__tree_node *rest = *link, **before = &node->left, **after = &node->right;
    *link = node;
    while (rest) {
        if (comes_before(&rest->key, &node->key)) {
            *before = rest;
            before = &rest->right;
            rest = rest->right;
        } else {
            *after = rest;
            after = &rest->left;
            rest = rest->left;
        }
    }
    *before = *after = NULL;
}

void ms__tree_remove(struct ms__tree *tree, struct ms__tree_node *node)
{
    struct ms__tree_node **link = &tree->root;
    while (*link != node)
        link = comes_before(&(*link)->key, &node->key) ? &(*link)->right : &(*link)->left;
    struct ms__tree_node *left = node->left, *right = node->right;
    while (left && right) {
        if (left->priority >= right->priority) {
            *link = left;
            link = &left->right;
            left = left->right;
        } else {
            *link = right;
            link = &right->left;
            right = right->left;
        }
    }
    *link = left ? left : right;
}

struct ms__tree_node *ms__tree_find(const struct ms__tree *tree, const struct ms__tree_key *key)
{
    struct ms__tree_node *found = NULL;
    for (struct ms__tree_node *at = tree->root; at;) {
        if (comes_before(&at->key, key)) {
            at = at->right;
        } else {
            found = at;
            at = at->left;
        }
    }
    return found;
}

struct ms__tree_node *ms__tree_after(const struct ms__tree *tree, const struct ms__tree_key *key)
{
    struct ms__tree_node *found = NULL;
    for (struct ms__tree_node *at = tree->root; at;) {
        if (comes_before(key, &at->key)) {
            found = at;
            at = at->left;
        } else {
            at = at->right;
        }
    }
    return found;
}

struct ms__tree_node *ms__tree_before(const struct ms__tree *tree, const struct ms__tree_key *key)
{
    struct ms__tree_node *found = NULL;
    for (struct ms__tree_node *at = tree->root; at;) {
        if (comes_before(&at->key, key)) {
            found = at;
            at = at->right;
        } else {
            at = at->left;
        }
    }
    return found;
}

struct ms__tree_node *ms__tree_first(const struct ms__tree *tree)
{
    struct ms__tree_node *at = tree->root;
    while (at && at->left)
        at = at->left;
    return at;
}

static bool subtree_is_right(const struct ms__tree_node *node, const struct ms__tree_key *low,
                             const struct ms__tree_key *high, uint64_t *count)
{
    if (!node)
        return true;
    ++*count;
    return (!low || comes_before(low, &node->key)) && (!high || comes_before(&node->key, high)) &&
           (!node->left || node->left->priority <= node->priority) &&
           (!node->right || node->right->priority <= node->priority) &&
           subtree_is_right(node->left, low, &node->key, count) &&
           subtree_is_right(node->right, &node->key, high, count);
}

bool ms__tree_is_right(const struct ms__tree *tree, uint64_t *count)
{
    *count = 0;
    return subtree_is_right(tree->root, NULL, NULL, count);
}
