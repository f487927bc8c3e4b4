import { mkdtemp, readdir, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, it } from "vitest";
import { withDirectoryLock } from "../../src/embedded/directory-lock.ts";

let folder: string;
let lockFile: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), "capstan-lock-"));
  lockFile = join(folder, "lock");
});
afterEach(() => rm(folder, { recursive: true, force: true }));

it("lets one holder work at a time and leaves no file behind", async () => {
  let inside = 0;
  let most = 0;
  const work = async () => {
    most = Math.max(most, ++inside);
    await new Promise((resolve) => setImmediate(resolve));
    inside--;
  };
  await Promise.all(Array.from({ length: 8 }, () => withDirectoryLock(lockFile, { waitMs: 10_000 }, work)));
  expect(most).toBe(1);
  expect(await readdir(folder)).toEqual([]);
});

it("is released when the work throws", async () => {
  const failing = withDirectoryLock(lockFile, { waitMs: 1_000 }, () => Promise.reject(new Error("no")));
  await expect(failing).rejects.toThrow("no");
  expect(await withDirectoryLock(lockFile, { waitMs: 1_000 }, () => Promise.resolve("held again"))).toBe("held again");
});

it("is taken over once from a dead holder, by however many wait", async () => {
  await writeFile(lockFile, JSON.stringify({ pid: 2147483646, token: "dead" }));
  let inside = 0;
  let most = 0;
  const work = async () => {
    most = Math.max(most, ++inside);
    await new Promise((resolve) => setImmediate(resolve));
    inside--;
  };
  await Promise.all(Array.from({ length: 4 }, () => withDirectoryLock(lockFile, { waitMs: 10_000 }, work)));
  expect(most).toBe(1);
});

it("is taken over from a holder whose number went to a later process", async () => {
  await writeFile(lockFile, JSON.stringify({ pid: process.pid, processStart: "1", token: "earlier" }));
  const taken = withDirectoryLock(lockFile, { waitMs: 1_000 }, () => Promise.resolve(true));
  if (process.platform === "linux") expect(await taken).toBe(true);
  else await expect(taken).rejects.toMatchObject({ code: "EMBEDDED_START_BUSY" });
});

it("is taken over when its content is not ours", async () => {
  await writeFile(lockFile, "");
  expect(await withDirectoryLock(lockFile, { waitMs: 1_000 }, () => Promise.resolve(true))).toBe(true);
});

it("names the holder when waiting for a live one takes too long", async () => {
  await withDirectoryLock(lockFile, { waitMs: 0 }, async () => {
    const second = withDirectoryLock(lockFile, { waitMs: 50 }, () => Promise.resolve());
    await expect(second).rejects.toMatchObject({ code: "EMBEDDED_START_BUSY" });
    await expect(second).rejects.toThrow(`process ${process.pid}`);
  });
});
