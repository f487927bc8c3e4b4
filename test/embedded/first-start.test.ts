import { existsSync } from "node:fs";
import { mkdir, readdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { stopEmbeddedPostgres } from "../../src/embedded/index.ts";
import { makeOpenFolder, queryValue, startInOtherProcess, startQuickly } from "./support.ts";

describe("the first start of an embedded Postgres", () => {
  let folder: Awaited<ReturnType<typeof makeOpenFolder>>;
  let dir: string;
  beforeEach(async () => {
    folder = await makeOpenFolder();
    dir = join(folder.path, "postgres");
  });
  afterEach(async () => {
    await stopEmbeddedPostgres(dir, "immediate");
    await folder.remove();
  });

  it("lets one of several processes and calls win, and gives all the same server", async () => {
    const [first, second, here, hereToo] = await Promise.all([startInOtherProcess(dir), startInOtherProcess(dir), startQuickly({ dir }), startQuickly({ dir })]);
    await Promise.all([first.kill(), second.kill()]);
    const all = [first.report, second.report, here, hereToo];
    expect(new Set(all.map((server) => server.url)).size).toBe(1);
    expect(all.filter((server) => server.startedByUs)).toHaveLength(1);
    expect(await readdir(dir)).not.toContain("lock");
  });

  it("takes over the lock of a process that died, and starts initdb again where it was cut off", async () => {
    await mkdir(join(dir, "data", "base"), { recursive: true });
    await mkdir(join(dir, "data.init-2147483646-abcd", "data"), { recursive: true });
    await writeFile(join(dir, "data", "postgresql.conf"), "half");
    await writeFile(join(dir, "lock"), JSON.stringify({ pid: 2147483646, token: "dead" }));
    const server = await startQuickly({ dir });
    expect(await queryValue(server.url, "select 1")).toBe(1);
    const names = await readdir(dir);
    const aside = names.find((name) => name.startsWith("data.incomplete-")) ?? "";
    expect(existsSync(join(dir, aside, "postgresql.conf"))).toBe(true);
    expect(names.some((name) => name.startsWith("data.init-"))).toBe(false);
  });

  it("works in a folder with blanks and quotes in its name, and refuses one that a shell would expand", async () => {
    const odd = join(folder.path, "it's an odd Ünicode folder");
    const server = await startQuickly({ dir: odd });
    expect(await queryValue(server.url, "select 1")).toBe(1);
    await server.stop();
    const expanding = startQuickly({ dir: join(folder.path, "$HOME") });
    await expect(expanding).rejects.toMatchObject({ code: "EMBEDDED_START_FAILED" });
  });

  it("says what initdb said when that fails, and leaves nothing half made", async () => {
    const broken = join(folder.path, "broken", "native", "bin");
    await mkdir(broken, { recursive: true });
    await writeFile(join(broken, "postgres"), "#!/bin/sh\necho 'postgres (PostgreSQL) 18.4'\n");
    await writeFile(join(broken, "initdb"), "#!/bin/sh\necho 'initdb: error: no space left'\nexit 1\n");
    await writeFile(join(broken, "pg_ctl"), "#!/bin/sh\nexit 1\n");
    const failure = startQuickly({ dir, nativeDir: join(folder.path, "broken", "native") });
    await expect(failure).rejects.toMatchObject({ code: "EMBEDDED_INIT_FAILED", lastLines: ["initdb: error: no space left"] });
    expect((await readdir(dir)).filter((name) => name.startsWith("data"))).toEqual([]);
  });
});
