#include "watch-tree.h"

#include <stdlib.h>
#include <string.h>

#include "util.h"

static struct node **bucket_of(const struct tree *tree, int descriptor) {
  return (struct node **)&tree->buckets[(unsigned)descriptor % TREE_BUCKETS];
}

static char *copy_name(const char *name) {
  char *copy = must_alloc(strlen(name) + 1);
  return strcpy(copy, name);
}

struct node *tree_find(const struct tree *tree, int descriptor) {
  struct node *node = *bucket_of(tree, descriptor);
  while (node != NULL && node->descriptor != descriptor) node = node->next;
  return node;
}

struct node *tree_find_child(const struct tree *tree, const struct node *parent, const char *name) {
  for (size_t i = 0; i < TREE_BUCKETS; i++) {
    for (struct node *node = tree->buckets[i]; node != NULL; node = node->next) {
      if (node->parent == parent && strcmp(node->name, name) == 0) return node;
    }
  }
  return NULL;
}

static bool is_below(const struct node *node, const struct node *top) {
  while (node != NULL && node != top) node = node->parent;
  return node != NULL;
}

void tree_move(struct node *node, struct node *parent, const char *name) {
  /* Never into itself: a path would have no end. The kernel does not allow it, but events may be old. */
  if (is_below(parent, node)) return;
  free(node->name);
  node->name = copy_name(name);
  node->parent = parent;
}

struct node *tree_put(struct tree *tree, int descriptor, struct node *parent, const char *name) {
  struct node *node = tree_find(tree, descriptor);
  if (node != NULL) {
    tree_move(node, parent, name);
    return node;
  }
  struct node **bucket = bucket_of(tree, descriptor);
  node = must_alloc(sizeof *node);
  *node = (struct node){.descriptor = descriptor, .parent = parent, .name = copy_name(name), .next = *bucket};
  *bucket = node;
  tree->count++;
  return node;
}

static void unlink_node(struct tree *tree, struct node *node) {
  struct node **at = bucket_of(tree, node->descriptor);
  while (*at != node) at = &(*at)->next;
  *at = node->next;
  tree->count--;
}

static void free_node(struct node *node) {
  free(node->name);
  free(node);
}

static void ignore(void *context, int descriptor) {
  (void)context;
  (void)descriptor;
}

void tree_remove(struct tree *tree, struct node *node) { tree_remove_below(tree, node, ignore, NULL); }

void tree_remove_below(struct tree *tree, struct node *top, void (*removed)(void *context, int descriptor), void *context) {
  /* First taken out, then freed: the way up from a node must stay intact until all are found. */
  struct node *gone = NULL;
  for (size_t i = 0; i < TREE_BUCKETS; i++) {
    struct node *next;
    for (struct node *node = tree->buckets[i]; node != NULL; node = next) {
      next = node->next;
      if (!is_below(node, top)) continue;
      unlink_node(tree, node);
      node->next = gone;
      gone = node;
    }
  }
  while (gone != NULL) {
    struct node *node = gone;
    gone = node->next;
    removed(context, node->descriptor);
    free_node(node);
  }
}

void tree_clear(struct tree *tree) {
  for (size_t i = 0; i < TREE_BUCKETS; i++) {
    while (tree->buckets[i] != NULL) {
      struct node *node = tree->buckets[i];
      tree->buckets[i] = node->next;
      free_node(node);
    }
  }
  tree->count = 0;
}

/* With a slash at its end. */
static void append_directory(struct buffer *into, const struct node *node) {
  if (node->parent == NULL) return;
  append_directory(into, node->parent);
  buffer_append(into, node->name, strlen(node->name));
  buffer_append(into, "/", 1);
}

void tree_path(struct buffer *into, const struct node *node, const char *name) {
  size_t before = buffer_length(into);
  append_directory(into, node);
  if (name[0] != '\0') {
    buffer_append(into, name, strlen(name));
  } else if (buffer_length(into) > before) {
    into->end--;
  }
}
