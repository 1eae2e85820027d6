#include "stream.h"

#include <stdlib.h>

#include "util.h"

static struct stream **bucket_of(const struct streams *streams, uint32_t id) {
  return (struct stream **)&streams->buckets[(id ^ id >> 7) % STREAM_BUCKETS];
}

struct stream *streams_find(const struct streams *streams, uint32_t id) {
  struct stream *stream = *bucket_of(streams, id);
  while (stream != NULL && stream->id != id) stream = stream->next;
  return stream;
}

void streams_add(struct streams *streams, struct stream *stream, uint32_t id, const struct stream_ops *ops) {
  struct stream **bucket = bucket_of(streams, id);
  *stream = (struct stream){.id = id, .ops = ops, .next = *bucket};
  *bucket = stream;
}

void streams_remove(struct streams *streams, struct stream *stream) {
  if (stream->ops == NULL) return;
  struct stream **at = bucket_of(streams, stream->id);
  while (*at != stream) at = &(*at)->next;
  *at = stream->next;
  stream->ops = NULL;
}

void streams_upheaval(struct streams *streams, enum upheaval what) {
  /* A callback may end any stream of its owner, so the ids are noted first and looked up again one by one. */
  size_t count = 0;
  for (size_t i = 0; i < STREAM_BUCKETS; i++) {
    for (struct stream *stream = streams->buckets[i]; stream != NULL; stream = stream->next) count++;
  }
  uint32_t *ids = must_alloc(count * sizeof *ids);
  size_t noted = 0;
  for (size_t i = 0; i < STREAM_BUCKETS; i++) {
    for (struct stream *stream = streams->buckets[i]; stream != NULL; stream = stream->next) ids[noted++] = stream->id;
  }
  for (size_t i = 0; i < count; i++) {
    struct stream *stream = streams_find(streams, ids[i]);
    if (stream != NULL && stream->ops->upheaval != NULL) stream->ops->upheaval(stream, what);
  }
  free(ids);
}
