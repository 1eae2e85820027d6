import { createFakeClock, createRecordingLog } from '@agentenv/core/testing';
import { expect, test } from 'vitest';
import { createDiskUsage, type FileSystemFacts } from './disk-usage.ts';

const MOUNT = { mountPoint: '/data', device: 'server:/data', filesystemType: 'nfs4' };
const FACTS = { blocks: 100, bfree: 40, bsize: 10 };
const USAGE = { usedBytes: 600, totalBytes: 1000 };

function setup() {
  const clock = createFakeClock();
  const log = createRecordingLog();
  const answers: PromiseWithResolvers<FileSystemFacts>[] = [];
  const statfs = () => {
    const answer = Promise.withResolvers<FileSystemFacts>();
    answers.push(answer);
    return answer.promise;
  };
  const usage = createDiskUsage({ clock, log, statfs });
  return { clock, log, answers, ask: () => usage(MOUNT, '/data/home') };
}

test('a file system tells its usage', async () => {
  const { answers, ask, log } = setup();
  const asked = [ask(), ask()];
  answers[0]?.resolve(FACTS);
  expect(await Promise.all(asked)).toEqual([USAGE, USAGE]);
  expect(answers).toHaveLength(1);
  expect(log.lines).toEqual([]);
});

test('one that hangs is waited for a second once, not asked again, and has its last figures', async () => {
  const { clock, answers, ask, log } = setup();
  const first = ask();
  answers[0]?.resolve(FACTS);
  await first;
  const second = ask();
  await clock.advance(999);
  await clock.advance(1);
  expect(await second).toEqual(USAGE);
  for (let count = 0; count < 10; count++) expect(await ask()).toEqual(USAGE);
  expect(answers).toHaveLength(2);
  expect(log.lines).toMatchObject([{ level: 'warn', message: 'a file system hangs' }]);

  answers[1]?.resolve({ ...FACTS, bfree: 0 });
  await clock.advance(0);
  const third = ask();
  expect(answers).toHaveLength(3);
  await clock.advance(1000);
  expect(await third).toEqual({ usedBytes: 1000, totalBytes: 1000 });
});

test('one that never told anything, and one that refuses, have no usage', async () => {
  const hanging = setup();
  const asked = hanging.ask();
  await hanging.clock.advance(1000);
  expect(await asked).toBeUndefined();

  const refusing = setup();
  const refused = refusing.ask();
  refusing.answers[0]?.reject(new Error('stale file handle'));
  expect(await refused).toBeUndefined();
  expect(refusing.log.lines).toMatchObject([{ level: 'warn', message: 'a file system does not tell its usage' }]);
});
