/* A growable byte queue: bytes are appended at the end and taken from the start. */
#ifndef AENV_BUFFER_H
#define AENV_BUFFER_H

#include <stddef.h>
#include <stdint.h>

struct buffer {
  uint8_t *data;
  size_t start;
  size_t end;
  size_t capacity;
};

/* A buffer that grew beyond this, bytes, gives its memory back when it runs empty. What bulk data needs is kept: fresh pages
 * for every piece cost more than moving the bytes. */
#define BUFFER_KEEP 131072u

static inline size_t buffer_length(const struct buffer *buffer) { return buffer->end - buffer->start; }
static inline uint8_t *buffer_head(const struct buffer *buffer) { return buffer->data + buffer->start; }

/* Makes room behind the end and returns where it begins. */
uint8_t *buffer_reserve(struct buffer *buffer, size_t room);
void buffer_append(struct buffer *buffer, const void *bytes, size_t length);
/* Takes bytes from the start. */
void buffer_consume(struct buffer *buffer, size_t length);
/* Drops the content, and the memory if it is large. */
void buffer_clear(struct buffer *buffer);
void buffer_free(struct buffer *buffer);

#endif
