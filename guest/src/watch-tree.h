/* The directories of a watch by inotify descriptor; for the watcher. */
#ifndef AENV_WATCH_TREE_H
#define AENV_WATCH_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "buffer.h"

#define TREE_BUCKETS 1024

struct node {
  int descriptor; /* of inotify */
  struct node *parent; /* NULL = the watched directory itself */
  char *name;
  struct node *next; /* in its bucket */
};

struct tree {
  struct node *buckets[TREE_BUCKETS];
  size_t count;
};

struct node *tree_find(const struct tree *tree, int descriptor);
/* A directory inside another one that is watched; NULL = it is not. */
struct node *tree_find_child(const struct tree *tree, const struct node *parent, const char *name);
/* Adds a directory, or moves the one that has this descriptor already. */
struct node *tree_put(struct tree *tree, int descriptor, struct node *parent, const char *name);
void tree_move(struct node *node, struct node *parent, const char *name);
void tree_remove(struct tree *tree, struct node *node);
/* Removes a directory and everything below; `removed` is called with each descriptor. */
void tree_remove_below(struct tree *tree, struct node *top, void (*removed)(void *context, int descriptor), void *context);
void tree_clear(struct tree *tree);
/* The path of a name in a directory, relative to the watched one; "" for the watched one itself. */
void tree_path(struct buffer *into, const struct node *node, const char *name);

#endif
