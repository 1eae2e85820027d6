/*
 * Fuzzes what the guest does with bytes of the host before anything acts on them: the frame decoder and the body readers.
 * Deterministic: fuzz ITERATIONS SEED. To be built with sanitizers; any report or broken rule ends it with a failure.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "body.h"
#include "buffer.h"
#include "decoder.h"
#include "protocol.gen.h"
#include "util.h"

/* Largest generated input, bytes. */
#define MAX_INPUT 4096
#define MAX_FRAMES 64

static uint64_t random_state;

static uint64_t random_number(void) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state;
}

static size_t random_below(size_t limit) { return limit > 0 ? random_number() % limit : 0; }

static void random_bytes(uint8_t *into, size_t length) {
  for (size_t i = 0; i < length; i++) into[i] = (uint8_t)random_number();
}

static void check(bool holds, const char *rule) {
  if (holds) return;
  fprintf(stderr, "fuzz: broken rule: %s\n", rule);
  abort();
}

/* --- seeds: well-formed bodies and frames ---------------------------------------------------------------------------- */

static const char *list_end(const char *format) {
  int depth = 0;
  for (;; format++) {
    if (*format == '[') depth++;
    if (*format == ']' && --depth == 0) return format;
  }
}

static void make_text(struct buffer *into, bool binary) {
  uint8_t text[24];
  size_t length = random_below(sizeof text);
  for (size_t i = 0; i < length; i++) text[i] = (uint8_t)(binary ? random_number() : 1 + random_below(255));
  put_bytes(into, text, length);
}

static void make_body(struct buffer *into, const char *format, const char *end) {
  for (; format < end; format++) {
    switch (*format) {
      case 'b': put_u8(into, (uint8_t)random_number()); break;
      case 'w': put_u16(into, (uint16_t)random_number()); break;
      case 'u':
      case 'i': put_u32(into, (uint32_t)random_number()); break;
      case 'q':
      case 'l': put_u64(into, random_number()); break;
      case '?': put_u8(into, (uint8_t)random_below(2)); break;
      case 's': make_text(into, false); break;
      case 'y': make_text(into, true); break;
      case 'k':
        put_u64(into, random_number());
        put_u64(into, random_number());
        break;
      case '[': {
        const char *close = list_end(format);
        uint32_t count = (uint32_t)random_below(4);
        put_u32(into, count);
        for (uint32_t i = 0; i < count; i++) make_body(into, format + 1, close);
        format = close;
        break;
      }
      default: abort();
    }
  }
}

static const uint16_t operations[] = {
#define OPERATION(NAME, number, name, request, response) number,
    PROTOCOL_OPERATIONS(OPERATION)
#undef OPERATION
};

static void make_header(struct buffer *into, size_t length, uint32_t stream, uint8_t type) {
  put_u32(into, (uint32_t)length);
  put_u32(into, stream);
  put_u8(into, type);
}

static void make_request(struct buffer *into, uint32_t stream) {
  struct buffer body = {0};
  uint16_t op = operations[random_below(array_length(operations))];
  const char *format = request_format(op);
  put_u16(&body, op);
  put_u32(&body, (uint32_t)random_number());
  make_body(&body, format, format + strlen(format));
  make_header(into, buffer_length(&body), stream, FRAME_REQUEST);
  buffer_append(into, buffer_head(&body), buffer_length(&body));
  buffer_free(&body);
}

static void make_frame(struct buffer *into) {
  uint8_t payload[200];
  uint32_t stream = 16 + 4 * (uint32_t)random_below(8);
  size_t length = random_below(sizeof payload);
  switch (random_below(6)) {
    case 0:
      random_bytes(payload, length);
      make_header(into, length, stream, FRAME_DATA);
      buffer_append(into, payload, length);
      break;
    case 1: make_header(into, 0, stream, FRAME_EOF); break;
    case 2:
      make_header(into, 4, (uint32_t)random_below(2) * stream, FRAME_CREDIT);
      put_u32(into, (uint32_t)random_number());
      break;
    case 3:
      make_header(into, 4, stream, FRAME_RESET);
      put_u32(into, STATUS_CANCELED);
      break;
    default: make_request(into, stream);
  }
}

static void make_record(struct buffer *into, const uint8_t key[KEY_SIZE]) {
  uint8_t nonce[NONCE_SIZE];
  random_bytes(nonce, sizeof nonce);
  buffer_append(into, key, KEY_SIZE);
  buffer_append(into, nonce, sizeof nonce);
}

static const uint32_t edges[] = {0, 1, MAX_DATA, MAX_DATA + 1, MAX_CONTROL, UINT32_MAX};

static void mutate(struct buffer *input) {
  for (size_t count = random_below(4); count > 0 && buffer_length(input) > 0; count--) {
    uint8_t *head = buffer_head(input);
    size_t length = buffer_length(input);
    size_t at = random_below(length);
    switch (random_below(5)) {
      case 0: head[at] = (uint8_t)random_number(); break;
      case 1: head[at] ^= (uint8_t)(1 << random_below(8)); break;
      case 2: input->end -= random_below(length - at + 1); break;
      case 3: /* an integer at the edges of its range */
        if (length - at >= 4) store_u32(head + at, edges[random_below(array_length(edges))]);
        break;
      default: { /* a piece is missing */
        size_t cut = random_below(minimum(length - at, 40) + 1);
        memmove(head + at, head + at + cut, length - at - cut);
        input->end -= cut;
      }
    }
  }
}

/* --- what is checked ------------------------------------------------------------------------------------------------ */

/* Reads a body field by field as the operations do. */
static void read_body(struct reader *reader, const char *format, const char *end) {
  for (; format < end && !reader->failed; format++) {
    switch (*format) {
      case 'b':
      case '?': take_u8(reader); break;
      case 'w': take_u16(reader); break;
      case 'q':
      case 'l': take_u64(reader); break;
      case 'k': take_bytes(reader, 16); break;
      case 'y': take_span(reader); break;
      case 's': free(take_string(reader)); break;
      case '[': {
        const char *close = list_end(format);
        if (close == format + 2 && format[1] == 's') {
          char **strings = take_strings(reader);
          for (char **string = strings; *string != NULL; string++) free(*string);
          free(strings);
        } else {
          for (uint32_t count = take_u32(reader); count > 0 && !reader->failed; count--) read_body(reader, format + 1, close);
        }
        format = close;
        break;
      }
      default: take_u32(reader);
    }
  }
}

static void check_request(const uint8_t *payload, size_t length) {
  struct reader reader = reader_of(payload, length);
  const char *format = request_format(take_u16(&reader));
  take_u32(&reader);
  if (format == NULL) return;
  bool matches = body_matches(format, reader.at, (size_t)(reader.end - reader.at));
  read_body(&reader, format, format + strlen(format));
  check(!matches || (!reader.failed && reader.at == reader.end), "a body that matches its layout can be read exactly");
}

struct outcome {
  uint32_t hashes[MAX_FRAMES]; /* of the frames since the last record */
  size_t frames;
  size_t records;
  uint8_t nonce[NONCE_SIZE];
};

static uint32_t hash_frame(const struct frame *frame) {
  uint32_t hash = frame->stream * 31 + frame->type;
  for (uint32_t i = 0; i < frame->length; i++) hash = (hash ^ frame->payload[i]) * 16777619u;
  return hash;
}

static void take_results(struct decoder *decoder, struct outcome *outcome) {
  struct frame frame;
  for (;;) {
    enum decoded what = decoder_next(decoder, &frame);
    if (what == DECODED_NOTHING) return;
    if (what == DECODED_RESYNC) {
      outcome->frames = 0;
      outcome->records++;
      memcpy(outcome->nonce, decoder->nonce, NONCE_SIZE);
      continue;
    }
    check(decoder->synced, "no frame without sync");
    check(frame.length <= (frame.type == FRAME_DATA ? MAX_DATA : MAX_CONTROL), "frames keep to the limits");
    if (frame.type == FRAME_REQUEST) check_request(frame.payload, frame.length);
    if (outcome->frames < MAX_FRAMES) outcome->hashes[outcome->frames++] = hash_frame(&frame);
  }
}

/* Feeds an input in pieces of at most `piece` bytes. */
static void feed(struct decoder *decoder, const uint8_t *data, size_t length, size_t piece, struct outcome *outcome) {
  while (length > 0) {
    size_t most = 1 + random_below(piece);
    size_t now = minimum(length, most);
    memcpy(decoder_room(decoder), data, now);
    decoder_filled(decoder, now);
    take_results(decoder, outcome);
    data += now;
    length -= now;
  }
}

/* One input: a record, frames, damage, and a last record with frames behind it that must come out whole. */
static void iterate(struct decoder *decoder, bool keyed) {
  uint8_t key[KEY_SIZE] = {0};
  if (keyed) random_bytes(key, sizeof key);
  decoder_reset(decoder);
  decoder_set_key(decoder, key);
  struct buffer input = {0};
  make_record(&input, key);
  for (size_t count = random_below(6); count > 0; count--) make_frame(&input);
  mutate(&input);
  struct outcome whole = {0};
  make_record(&input, key);
  size_t record_at = buffer_length(&input) - RECORD_SIZE;
  for (size_t count = random_below(4); count > 0; count--) make_frame(&input);

  feed(decoder, buffer_head(&input), buffer_length(&input), MAX_INPUT, &whole);
  decoder_lose_sync(decoder);
  struct outcome pieces = {0};
  feed(decoder, buffer_head(&input), buffer_length(&input), 1 + random_below(64), &pieces);
  if (keyed) {
    /* An unkeyed guest may see a record in what precedes; with a key the last one always counts. */
    check(pieces.records > 0 && whole.records > 0, "a record is always found");
    check(memcmp(whole.nonce, buffer_head(&input) + record_at + KEY_SIZE, NONCE_SIZE) == 0, "the last record counts");
    check(memcmp(pieces.nonce, whole.nonce, NONCE_SIZE) == 0, "the last record counts however it is split");
    check(pieces.frames == whole.frames && memcmp(pieces.hashes, whole.hashes, whole.frames * sizeof *whole.hashes) == 0,
          "the frames behind a record do not depend on how they arrive");
  }
  buffer_free(&input);
}

int main(int count, char **arguments) {
  unsigned long iterations = count > 1 ? strtoul(arguments[1], NULL, 10) : 200000;
  uint64_t seed = count > 2 ? strtoull(arguments[2], NULL, 10) : 1;
  random_state = seed * 0x9e3779b97f4a7c15ull + 1;
  struct decoder decoder;
  decoder_open(&decoder);
  for (unsigned long i = 0; i < iterations; i++) iterate(&decoder, i % 4 != 0);
  decoder_close(&decoder);
  printf("fuzz: %lu iterations, seed %llu: ok\n", iterations, (unsigned long long)seed);
  return 0;
}
