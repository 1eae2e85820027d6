/* The streams of the channel by id. A stream is embedded in whatever it belongs to. */
#ifndef AENV_STREAM_H
#define AENV_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct stream;

/* What the host may do on a stream; NULL = ignored. A callback that returns false found a protocol error. */
struct stream_ops {
  bool (*data)(struct stream *stream, const uint8_t *data, size_t length);
  void (*eof)(struct stream *stream);
  void (*credit)(struct stream *stream, uint32_t bytes);
  void (*reset)(struct stream *stream);
  /* The channel was resynced or a new generation began: zero the credit or end silently (see `enum upheaval`). */
  void (*upheaval)(struct stream *stream, int what);
};

/* Why all streams are told at once. */
enum upheaval {
  UPHEAVAL_RESYNC,         /* a new connection: everything but processes ends, windows start anew */
  UPHEAVAL_NEW_GENERATION, /* activate with resetStreams: the same without new windows */
  UPHEAVAL_ZERO_CREDIT,    /* activate of the same generation: only the credit becomes zero */
};

struct stream {
  uint32_t id;
  const struct stream_ops *ops; /* NULL = not registered */
  struct stream *next;
};

#define STREAM_BUCKETS 128

struct streams {
  struct stream *buckets[STREAM_BUCKETS];
};

struct stream *streams_find(const struct streams *streams, uint32_t id);
void streams_add(struct streams *streams, struct stream *stream, uint32_t id, const struct stream_ops *ops);
/* Does nothing for a stream that is not registered. */
void streams_remove(struct streams *streams, struct stream *stream);
void streams_upheaval(struct streams *streams, enum upheaval what);

#endif
