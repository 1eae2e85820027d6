/** How a kernel image is compressed, with the command that reads it from standard input. */
const COMPRESSIONS = [
  { name: 'lz4', magic: [0x02, 0x21, 0x4c, 0x18], command: ['lz4', '-d', '-c'] },
  { name: 'zstd', magic: [0x28, 0xb5, 0x2f, 0xfd], command: ['zstd', '-d', '-c', '-q', '--long=31'] },
  { name: 'xz', magic: [0xfd, 0x37, 0x7a, 0x58, 0x5a, 0x00], command: ['xz', '-d', '-c'] },
] as const;

export interface KernelPayload {
  readonly compression: (typeof COMPRESSIONS)[number]['name'];
  /** argv of the decompressor. */
  readonly command: readonly [string, ...string[]];
  readonly data: Buffer;
  /** Bytes of the ELF image inside, as the image itself records. */
  readonly uncompressedBytes: number;
}

/**
 * Finds the compressed ELF kernel inside an x86 bzImage by its boot header (Linux boot protocol 2.08:
 * `setup_sects` at 0x1f1, `HdrS` at 0x202, `payload_offset` and `payload_length` at 0x248). The payload's last four
 * bytes are the uncompressed size. Throws an Error naming what does not fit.
 */
export function findKernelPayload(image: Buffer): KernelPayload {
  if (image.length < 0x250 || image.toString('latin1', 0x202, 0x206) !== 'HdrS') {
    throw new Error('not an x86 bzImage: the boot header is missing');
  }
  if (image.readUInt16LE(0x206) < 0x0208) throw new Error('bzImage: boot protocol older than 2.08');
  const setupSectors = image.readUInt8(0x1f1) || 4;
  const start = (setupSectors + 1) * 512 + image.readUInt32LE(0x248);
  const end = start + image.readUInt32LE(0x24c);
  if (end > image.length || end - start < 16) throw new Error('bzImage: the payload lies outside the file');
  const payload = image.subarray(start, end);
  for (const { name, magic, command } of COMPRESSIONS) {
    if (!payload.subarray(0, magic.length).equals(Buffer.from(magic))) continue;
    return {
      compression: name,
      command: [...command],
      data: payload.subarray(0, -4),
      uncompressedBytes: payload.readUInt32LE(payload.length - 4),
    };
  }
  throw new Error(`bzImage: unknown compression, payload starts with ${payload.subarray(0, 6).toString('hex')}`);
}

/** Refuses anything but a complete 64-bit x86 ELF executable of the given size. */
export function assertVmlinux(file: Buffer, expectedBytes: number): void {
  if (file.length !== expectedBytes) {
    throw new Error(`vmlinux: ${file.length} bytes after decompression, the image says ${expectedBytes}`);
  }
  if (file.length < 64 || file.readUInt32BE(0) !== 0x7f454c46) throw new Error('vmlinux: not an ELF file');
  if (file[4] !== 2 || file.readUInt16LE(18) !== 62) throw new Error('vmlinux: not a 64-bit x86 ELF file');
  const sectionsEnd = Number(file.readBigUInt64LE(40)) + file.readUInt16LE(58) * file.readUInt16LE(60);
  const programsEnd = Number(file.readBigUInt64LE(32)) + file.readUInt16LE(54) * file.readUInt16LE(56);
  if (Math.max(sectionsEnd, programsEnd) > file.length) throw new Error('vmlinux: the ELF file is cut short');
}
