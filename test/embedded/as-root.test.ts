import { execFileSync } from "node:child_process";
import { existsSync } from "node:fs";
import { chmod, chown, cp, mkdir, readFile, rm, stat } from "node:fs/promises";
import { dirname, join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { locateNativeFolder } from "../../src/embedded/binaries.ts";
import { deleteEmbeddedPostgres, embeddedPostgresStatus, stopEmbeddedPostgres } from "../../src/embedded/index.ts";
import { ensureUnprivilegedUser } from "../../src/embedded/os-user.ts";
import { makeOpenFolder, queryValue, runsAsRoot, startInOtherProcess, startQuickly } from "./support.ts";

// Becoming another user, or making one, takes root; the other files run the same server as whoever runs them.
describe.runIf(runsAsRoot)("as root, an embedded Postgres", () => {
  let folder: Awaited<ReturnType<typeof makeOpenFolder>>;
  beforeEach(async () => {
    folder = await makeOpenFolder();
  });
  afterEach(() => folder.remove());

  it("runs as an unprivileged user", async () => {
    const dir = join(folder.path, "postgres");
    const server = await startQuickly({ dir });
    const { pid } = await embeddedPostgresStatus(dir);
    expect((await stat(`/proc/${pid}`)).uid).not.toBe(0);
    expect(server.dataDir).toBe(join(dir, "data"));
    await server.stop();
  });

  it("lives in a shared folder when the wanted one is closed to others, and is found there again", async () => {
    const closed = join(folder.path, "root");
    const dir = join(closed, "clone", ".capstan", "postgres");
    const native = join(closed, "clone", "node_modules", "package", "native");
    await mkdir(dirname(native), { recursive: true });
    await chmod(closed, 0o700);
    await cp(locateNativeFolder(), native, { recursive: true, verbatimSymlinks: true });
    await cp(join(locateNativeFolder(), "..", "package.json"), join(native, "..", "package.json"));

    const first = await startQuickly({ dir, nativeDir: native });
    const pointer = JSON.parse(await readFile(join(dir, "location.json"), "utf8")) as { home: string };
    expect(first.dataDir).toBe(join(pointer.home, "data"));
    expect(first.dataDir.startsWith(folder.path)).toBe(false);
    await queryValue(first.url, "create table kept as select 7 as answer");
    await stopEmbeddedPostgres(dir);
    const second = await startQuickly({ dir, nativeDir: native });
    expect(await queryValue(second.url, "select answer from kept")).toBe(7);
    expect((await embeddedPostgresStatus(dir)).port).toBe(second.port);

    await deleteEmbeddedPostgres(dir);
    expect(existsSync(pointer.home)).toBe(false);
  });

  it("makes a user when none of the usual ones exists, also when two starts do so at once", async () => {
    const name = `capstan-t${process.pid}`;
    try {
      const [one, two] = await Promise.all([ensureUnprivilegedUser([name]), ensureUnprivilegedUser([name])]);
      expect(one).toEqual(two);
      expect(one.uid).toBeGreaterThan(0);
    } finally {
      execFileSync("userdel", [name]);
    }
  });

  it("leaves data to the user who made them, and that user runs it directly", async () => {
    const nobody = { uid: 65534, gid: 65534 };
    const dir = join(folder.path, "postgres");
    await mkdir(dir);
    await chown(dir, nobody.uid, nobody.gid);
    const other = await startInOtherProcess(dir, nobody);
    await other.kill();
    expect((await stat(`/proc/${other.report.pid}`)).uid).toBe(nobody.uid);
    expect(await queryValue(other.report.url, "select 1")).toBe(1);
    await stopEmbeddedPostgres(dir);

    const asRoot = await startQuickly({ dir });
    expect(asRoot.startedByUs).toBe(true);
    expect((await stat(`/proc/${(await embeddedPostgresStatus(dir)).pid}`)).uid).toBe(nobody.uid);
    await asRoot.stop();
    await rm(dir, { recursive: true });
  });
});
