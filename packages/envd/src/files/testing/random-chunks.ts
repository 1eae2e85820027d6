/** The bytes in pieces of the given lengths, over and over, as a network may deliver them. */
export async function* randomChunks(bytes: Uint8Array, lengths: readonly number[]): AsyncGenerator<Uint8Array> {
  let offset = 0;
  for (let index = 0; offset < bytes.length; index++) {
    const length = lengths[index % lengths.length] ?? 1;
    yield bytes.subarray(offset, offset + length);
    offset += length;
  }
}
