import { chmod, cp, lstat, mkdir, readFile, rm } from "node:fs/promises";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { locateNativeFolder, prepareBinaries } from "../../src/embedded/binaries.ts";
import { makeOpenFolder } from "./support.ts";

describe("the server's binaries", () => {
  let folder: Awaited<ReturnType<typeof makeOpenFolder>>;
  beforeEach(async () => {
    folder = await makeOpenFolder();
  });
  afterEach(() => folder.remove());

  it("are found in the installed package and say their version", async () => {
    const binaries = await prepareBinaries(locateNativeFolder(), { identity: undefined, copyRoot: folder.path });
    expect(binaries.version).toMatch(/^\d+\.\d+$/);
    expect(binaries.version.startsWith(`${binaries.major}.`)).toBe(true);
  });

  it("are refused with a code on a platform that has none", () => {
    expect(() => locateNativeFolder("win32-x64")).toThrow(expect.objectContaining({ code: "EMBEDDED_PLATFORM_UNSUPPORTED" }));
    expect(() => locateNativeFolder("linux-ppc64")).toThrow(expect.objectContaining({ code: "EMBEDDED_BINARIES_MISSING" }));
  });

  it("get the links and execute bits that an install without scripts leaves out", async () => {
    const native = join(folder.path, "package", "native");
    await mkdir(join(folder.path, "package"));
    await cp(locateNativeFolder(), native, { recursive: true, verbatimSymlinks: true });
    const list = JSON.parse(await readFile(join(native, "pg-symlinks.json"), "utf8")) as { target: string }[];
    const links = list.map(({ target }) => join(folder.path, "package", target));
    for (const link of links) await rm(link, { force: true });
    await chmod(join(native, "bin", "postgres"), 0o644);

    const { version } = await prepareBinaries(native, { identity: undefined, copyRoot: folder.path });

    expect(version).toMatch(/^\d+\.\d+$/);
    for (const link of links) expect((await lstat(link)).isSymbolicLink()).toBe(true);
  });
});
