/* Turns received bytes into frames, and finds resync records in them (PROTOCOL.md, "Frames" and "Resync"). No I/O. */
#ifndef AENV_DECODER_H
#define AENV_DECODER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FRAME_HEADER 9u
#define KEY_SIZE 16u
#define NONCE_SIZE 16u
#define RECORD_SIZE (KEY_SIZE + NONCE_SIZE)

/* How much one read may bring, bytes. */
#define DECODER_READ 65536u

struct frame {
  uint32_t stream;
  uint8_t type;
  const uint8_t *payload; /* valid until the next decoder_room */
  uint32_t length;
};

enum decoded { DECODED_NOTHING, DECODED_FRAME, DECODED_RESYNC };

struct decoder {
  uint8_t *data;
  size_t capacity;
  size_t start;   /* first byte not consumed yet; a few consumed ones before it are kept for the search */
  size_t end;
  size_t scanned; /* no record begins before this */
  bool synced;    /* false: everything but a record is ignored */
  bool keyed;     /* a key was given by activate; until then it is 16 zero bytes */
  bool key_open;  /* the key was seen but its nonce is not complete: what precedes it must not be parsed */
  bool record_found;
  size_t record_end;
  uint8_t key[KEY_SIZE];
  uint8_t nonce[NONCE_SIZE]; /* of the last record */
};

void decoder_open(struct decoder *decoder);
void decoder_close(struct decoder *decoder);

/* Where DECODER_READ bytes may be put. */
uint8_t *decoder_room(struct decoder *decoder);
/* That many bytes were put there. */
void decoder_filled(struct decoder *decoder, size_t length);
/* The next frame, or a resync record (its nonce in `nonce`). Call until DECODED_NOTHING. */
enum decoded decoder_next(struct decoder *decoder, struct frame *frame);

/* A protocol error: ignores everything until the next record. */
void decoder_lose_sync(struct decoder *decoder);
/* A connection that ended: the next one begins with a record, and nothing of the former one counts. */
void decoder_reset(struct decoder *decoder);
void decoder_set_key(struct decoder *decoder, const uint8_t key[KEY_SIZE]);

#endif
