import { describe, expect, test } from 'vitest';
import { GUEST_ADDRESSING } from '../network/addressing.ts';
import {
  type Accelerator,
  type EngineSpec,
  engineArguments,
  engineFingerprint,
  kernelCommandLine,
} from './qemu-args.ts';

const TCG: Accelerator = { kind: 'tcg', tscKhz: 2_096_000 };
const KVM: Accelerator = { kind: 'kvm', cpuModel: 'Some CPU', group: undefined };

function spec(overrides: Partial<EngineSpec> = {}): EngineSpec {
  return {
    name: 'aenv-x',
    uuid: '6f1d3c4e-0000-4000-8000-000000000000',
    accelerator: TCG,
    resources: { vcpus: 2, memoryMB: 1024 },
    mac: GUEST_ADDRESSING.mac,
    start: { kind: 'incoming' },
    ...overrides,
  };
}

const optionValue = (args: readonly string[], option: string): string | undefined => args[args.indexOf(option) + 1];

describe('engine arguments', () => {
  test('two instances differ in their name and uuid only', () => {
    const first = engineArguments(spec());
    const second = engineArguments(spec({ name: 'aenv-y', uuid: '6f1d3c4e-0000-4000-8000-000000000001' }));
    const different = first.filter((argument, index) => argument !== second[index]);
    expect(different).toEqual(['guest=aenv-x,debug-threads=on', spec().uuid]);
    expect(second).toHaveLength(first.length);
  });

  test('name no path of the host', () => {
    const boot = engineArguments(
      spec({ start: { kind: 'boot', commandLine: kernelCommandLine(TCG, GUEST_ADDRESSING) } }),
    );
    const paths = boot.flatMap((argument) => argument.match(/(?<=[=,]|^)\/[^,\s]*/g) ?? []);
    expect(paths.filter((path) => !path.startsWith('/proc/self/fd/') && !path.startsWith('/dev/vd'))).toEqual([]);
  });

  test('a boot and a restore have the same devices', () => {
    const boot = engineArguments(spec({ start: { kind: 'boot', commandLine: 'x' } }));
    const restore = engineArguments(spec());
    const bootOnly = ['-kernel', '-initrd', '-append'].flatMap((option) => [option, optionValue(boot, option)]);
    expect(boot.filter((argument) => !bootOnly.includes(argument))).toEqual(
      restore.filter((argument) => !['-S', '-incoming', 'defer'].includes(argument)),
    );
  });

  test('stay within the 24 virtio devices of a microvm', () => {
    const devices = engineArguments(spec()).filter((argument) => /^virtio-.*-device/.test(argument));
    expect(devices).toHaveLength(13);
  });

  test('map the memory privately, confine the engine and keep its console bounded', () => {
    const args = engineArguments(spec());
    expect(args).toContain('memory-backend-file,id=mem,size=1024M,mem-path=/proc/self/fd/7,share=off');
    expect(optionValue(args, '-sandbox')).toBe(
      'on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny',
    );
    expect(optionValue(args, '-serial')).toBe('chardev:console');
    expect(args).toContain('ringbuf,id=console,size=65536');
    expect(args.join(' ')).not.toContain('balloon');
  });

  test('every disk reports its errors to the guest', () => {
    const disks = engineArguments(spec()).filter((argument) => argument.startsWith('virtio-blk-device'));
    expect(disks).toHaveLength(10);
    for (const disk of disks) expect(disk).toMatch(/werror=report,rerror=report$/);
  });
});

describe('kernel command line', () => {
  test('gives an emulated guest the rate of the counter and an accelerated one nothing', () => {
    expect(kernelCommandLine(TCG, GUEST_ADDRESSING)).toContain('tsc_early_khz=2096000 lpj=8384000');
    expect(kernelCommandLine(KVM, GUEST_ADDRESSING)).not.toContain('tsc');
  });

  test('tells the guest its disks and its addresses and ends it on a panic', () => {
    const line = kernelCommandLine(TCG, GUEST_ADDRESSING);
    expect(line).toContain('panic=-1 reboot=t');
    expect(line).toContain(
      'aenv.root=/dev/vda aenv.upper=/dev/vdb aenv.ip4=169.254.0.22/30 aenv.gw4=169.254.0.21 aenv.ip6=fd00:ae::2/64 aenv.gw6=fd00:ae::1',
    );
  });
});

describe('engine fingerprint', () => {
  const facts = { engineVersion: '7.2.22', accelerator: TCG, kernelDigest: 'k', mac: GUEST_ADDRESSING.mac };

  test('is the same for the same facts', () => {
    expect(engineFingerprint(facts)).toEqual(engineFingerprint({ ...facts }));
  });

  test.each([
    ['engine', { engineVersion: '8.2.0' }],
    ['kernel', { kernelDigest: 'other' }],
    ['cpu', { accelerator: { kind: 'tcg', tscKhz: 1_000_000 } as const }],
    ['accelerator', { accelerator: KVM }],
    ['devices', { mac: '02:00:00:00:00:01' }],
  ])('changes its %s', (key, change) => {
    expect(engineFingerprint({ ...facts, ...change })[key]).not.toBe(engineFingerprint(facts)[key]);
  });
});
