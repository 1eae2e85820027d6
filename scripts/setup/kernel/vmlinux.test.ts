import { describe, expect, it } from 'vitest';
import { assertVmlinux, findKernelPayload } from './vmlinux.ts';

const LZ4 = [0x02, 0x21, 0x4c, 0x18];
const ZSTD = [0x28, 0xb5, 0x2f, 0xfd];
const XZ = [0xfd, 0x37, 0x7a, 0x58, 0x5a, 0x00];

/** A bzImage with two setup sectors and the payload 100 bytes into the protected-mode part. */
function bzImage(payload: Buffer, options: { protocol?: number; trailing?: number } = {}): Buffer {
  const image = Buffer.alloc(3 * 512 + 100 + payload.length + (options.trailing ?? 64), 0xaa);
  image.writeUInt8(2, 0x1f1);
  image.write('HdrS', 0x202, 'latin1');
  image.writeUInt16LE(options.protocol ?? 0x020f, 0x206);
  image.writeUInt32LE(100, 0x248);
  image.writeUInt32LE(payload.length, 0x24c);
  payload.copy(image, 3 * 512 + 100);
  return image;
}

function payloadOf(magic: readonly number[], uncompressedBytes: number): Buffer {
  const size = Buffer.alloc(4);
  size.writeUInt32LE(uncompressedBytes);
  return Buffer.concat([Buffer.from(magic), Buffer.from('compressed bytes'), size]);
}

/** The smallest ELF file `assertVmlinux` takes: one program header, sections at the end. */
function elf(bytes: number, patch: (file: Buffer) => void = () => {}): Buffer {
  const file = Buffer.alloc(bytes);
  file.writeUInt32BE(0x7f454c46, 0);
  file[4] = 2;
  file.writeUInt16LE(62, 18);
  file.writeBigUInt64LE(64n, 32);
  file.writeBigUInt64LE(BigInt(bytes - 128), 40);
  file.writeUInt16LE(56, 54);
  file.writeUInt16LE(1, 56);
  file.writeUInt16LE(64, 58);
  file.writeUInt16LE(2, 60);
  patch(file);
  return file;
}

describe('findKernelPayload', () => {
  it.each([
    ['lz4', LZ4],
    ['zstd', ZSTD],
    ['xz', XZ],
  ] as const)('finds a %s payload by the boot header and leaves out the appended size', (compression, magic) => {
    const payload = findKernelPayload(bzImage(payloadOf(magic, 123_456)));
    expect(payload.compression).toBe(compression);
    expect(payload.command[0]).toBe(compression);
    expect(payload.uncompressedBytes).toBe(123_456);
    expect(payload.data).toEqual(Buffer.concat([Buffer.from(magic), Buffer.from('compressed bytes')]));
  });

  it('is not misled by a magic number in front of the payload', () => {
    const image = bzImage(payloadOf(ZSTD, 7));
    Buffer.from(LZ4).copy(image, 3 * 512 + 10);
    expect(findKernelPayload(image).compression).toBe('zstd');
  });

  it('counts a zero setup_sects as four', () => {
    const image = Buffer.concat([bzImage(payloadOf(LZ4, 1)), Buffer.alloc(2048)]);
    image.writeUInt8(0, 0x1f1);
    payloadOf(XZ, 2).copy(image, 5 * 512 + 100);
    expect(findKernelPayload(image).compression).toBe('xz');
  });

  it.each([
    ['a file without the boot header', Buffer.alloc(4096), /boot header/],
    ['a short file', Buffer.from('MZ'), /boot header/],
    ['an old boot protocol', bzImage(payloadOf(LZ4, 1), { protocol: 0x0207 }), /older than 2\.08/],
    ['a payload that reaches past the end', bzImage(payloadOf(LZ4, 1), { trailing: -8 }), /outside the file/],
    ['an unknown compression', bzImage(payloadOf([1, 2, 3, 4, 5, 6], 1)), /unknown compression.*010203040506/],
  ])('refuses %s', (_what, image, message) => {
    expect(() => findKernelPayload(image)).toThrow(message);
  });
});

describe('assertVmlinux', () => {
  it('takes a complete 64-bit x86 ELF file', () => {
    expect(() => assertVmlinux(elf(512), 512)).not.toThrow();
  });

  it.each([
    ['another size than recorded', elf(512), 513, /512 bytes.*513/],
    ['something else', Buffer.alloc(512), 512, /not an ELF/],
    ['a 32-bit file', elf(512, (file) => file.fill(1, 4, 5)), 512, /not a 64-bit x86/],
    ['another machine', elf(512, (file) => file.writeUInt16LE(183, 18)), 512, /not a 64-bit x86/],
    ['sections past the end', elf(512, (file) => file.writeUInt16LE(9, 60)), 512, /cut short/],
    ['program headers past the end', elf(512, (file) => file.writeUInt16LE(9, 56)), 512, /cut short/],
  ])('refuses %s', (_what, file, bytes, message) => {
    expect(() => assertVmlinux(file, bytes)).toThrow(message);
  });
});
