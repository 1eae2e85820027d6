/* Reading and writing the bodies of frames (PROTOCOL.md, "Types in bodies"). Nothing here trusts its input. */
#ifndef AENV_BODY_H
#define AENV_BODY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "buffer.h"

/* A position in a body. Once something did not fit, `failed` is set and everything read is zero or empty. */
struct reader {
  const uint8_t *at;
  const uint8_t *end;
  bool failed;
};

struct span {
  const uint8_t *data;
  uint32_t length;
};

static inline struct reader reader_of(const uint8_t *data, size_t length) {
  return (struct reader){.at = data, .end = data + length};
}

uint8_t take_u8(struct reader *reader);
uint16_t take_u16(struct reader *reader);
uint32_t take_u32(struct reader *reader);
uint64_t take_u64(struct reader *reader);
const uint8_t *take_bytes(struct reader *reader, size_t length);
/* A str or bytes field, in place. */
struct span take_span(struct reader *reader);
/* A str field as a fresh C string, and a list<str> as a NULL-terminated array; to be freed by the caller or with its process. */
char *take_string(struct reader *reader);
char **take_strings(struct reader *reader);

/* Whether a body has exactly the layout of a format string of protocol.gen.h: in bounds, no NUL in strings, bools 0 or 1,
 * nothing left over. */
bool body_matches(const char *format, const uint8_t *body, size_t length);

/* The layout of an operation's request as a format string; NULL = unknown operation. */
const char *request_format(uint16_t op);

void put_u8(struct buffer *buffer, uint8_t value);
void put_u16(struct buffer *buffer, uint16_t value);
void put_u32(struct buffer *buffer, uint32_t value);
void put_u64(struct buffer *buffer, uint64_t value);
void put_bytes(struct buffer *buffer, const void *data, size_t length); /* with its u32 length */
void put_string(struct buffer *buffer, const char *text);
/* Overwrites a u32 written earlier at `offset` from the start of the content. */
void patch_u32(struct buffer *buffer, size_t offset, uint32_t value);

/* Little-endian integers at any address. */
uint32_t load_u32(const uint8_t *at);
void store_u32(uint8_t *at, uint32_t value);

#endif
