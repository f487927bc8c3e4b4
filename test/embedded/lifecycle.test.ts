import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { readdir, readFile, stat, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, describe, expect, it } from "vitest";
import { embeddedPostgresStatus, startEmbeddedPostgres, stopEmbeddedPostgres } from "../../src/embedded/index.ts";
import { isProcessAlive } from "../../src/embedded/processes.ts";
import { makeOpenFolder, queryValue, startInOtherProcess, startQuickly } from "./support.ts";

describe("an embedded Postgres", () => {
  let folder: Awaited<ReturnType<typeof makeOpenFolder>>;
  let dir: string;
  beforeAll(async () => {
    folder = await makeOpenFolder();
    dir = join(folder.path, "deep", "postgres");
  });
  afterEach(() => stopEmbeddedPostgres(dir, "immediate"));
  afterAll(() => folder.remove());

  it("starts from nothing, creates the database and says which version it is", async () => {
    const lines: string[] = [];
    const server = await startQuickly({ dir, onLog: (line) => lines.push(line) });
    expect(server.startedByUs).toBe(true);
    expect(server.version).toMatch(/^\d+\.\d+$/);
    expect(await queryValue(server.url, "show server_version")).toBe(server.version);
    expect(await queryValue(server.url, "select current_database()")).toBe("capstan");
    expect(await queryValue(server.url, "show server_encoding")).toBe("UTF8");
    expect(lines.some((line) => line.includes("ready to accept connections"))).toBe(true);
  });

  it("keeps data over a stop and a start, on the same port", async () => {
    const first = await startQuickly({ dir });
    await queryValue(first.url, "create table if not exists kept as select 42 as answer");
    await first.stop();
    const second = await startQuickly({ dir });
    expect(second.url).toBe(first.url);
    expect(await queryValue(second.url, "select answer from kept")).toBe(42);
  });

  it("asks for the password, keeps it from others and listens on the loopback only", async () => {
    const server = await startQuickly({ dir });
    const withoutPassword = server.url.replace(/:[^:@]+@/, ":wrong@");
    await expect(queryValue(withoutPassword, "select 1")).rejects.toMatchObject({ code: "28P01" });
    expect((await stat(join(server.dataDir, "capstan.json"))).mode & 0o777).toBe(0o600);
    expect((await stat(server.dataDir)).mode & 0o077).toBe(0);
    expect(await queryValue(server.url, "show listen_addresses")).toBe("127.0.0.1");
    expect(await queryValue(server.url, "show unix_socket_directories")).toBe("");
  });

  it("has settings fit for a developer's machine, and takes others", async () => {
    const server = await startQuickly({ dir, settings: { work_mem: "7MB", application_name: "it's \\ here" } });
    expect(await queryValue(server.url, "show max_connections")).toBe("200");
    expect(await queryValue(server.url, "show max_wal_size")).toBe("2GB");
    expect(await queryValue(server.url, "show work_mem")).toBe("7MB");
    expect(await queryValue(server.url, "show application_name")).toBe("it's \\ here");
    await server.stop();
    const safe = await startEmbeddedPostgres({ dir });
    expect(await queryValue(safe.url, "show fsync")).toBe("on");
  });

  it("does not take orders from PG variables in the caller's shell", async () => {
    process.env["PGPORT"] = "1";
    process.env["PGDATA"] = "/nonexistent";
    process.env["PGOPTIONS"] = "-c work_mem=9MB";
    try {
      await startQuickly({ dir });
      expect((await embeddedPostgresStatus(dir)).running).toBe(true);
    } finally {
      for (const name of ["PGPORT", "PGDATA", "PGOPTIONS"]) delete process.env[name];
    }
  });

  it("tells whether it runs, where, and as which version", async () => {
    expect(await embeddedPostgresStatus(join(folder.path, "nothing"))).toEqual({ running: false });
    const server = await startQuickly({ dir });
    const status = await embeddedPostgresStatus(dir);
    expect(status).toMatchObject({ running: true, port: server.port, url: server.url, version: server.version });
    await server.stop();
    expect(await embeddedPostgresStatus(dir)).toEqual({ running: false, version: server.version.split(".")[0] });
  });

  it("is found again by a second start, which can also stop it", async () => {
    const first = await startQuickly({ dir });
    const second = await startQuickly({ dir, database: "another" });
    expect(second.startedByUs).toBe(false);
    expect(second.port).toBe(first.port);
    expect(await queryValue(second.url, "select current_database()")).toBe("another");
    await second.stop();
    expect((await embeddedPostgresStatus(dir)).running).toBe(false);
  });

  it("survives a kill -9 of the process that started it and is taken over by the next", async () => {
    const other = await startInOtherProcess(dir);
    await other.kill();
    expect(await isProcessAlive(other.report.pid)).toBe(true);
    const server = await startQuickly({ dir });
    expect(server.startedByUs).toBe(false);
    expect(server.url).toBe(other.report.url);
    await server.stop();
    expect(await isProcessAlive(other.report.pid)).toBe(false);
  });

  it("is stopped by several at once, and leaves no process and no pid file", async () => {
    const server = await startQuickly({ dir });
    const { pid } = await embeddedPostgresStatus(dir);
    const stopped = await Promise.all([stopEmbeddedPostgres(dir), stopEmbeddedPostgres(dir, "immediate"), server.stop()]);
    expect(stopped.filter((value) => value === true).length).toBeLessThanOrEqual(1);
    await server.stop();
    expect(await isProcessAlive(pid ?? 0)).toBe(false);
    expect(await processesOn(server.dataDir)).toEqual([]);
    expect(await readdir(server.dataDir)).not.toContain("postmaster.pid");
  });

  it("recovers after it was itself killed hard", async () => {
    const first = await startQuickly({ dir });
    await queryValue(first.url, "create table if not exists survived as select 1 as one");
    const { pid } = await embeddedPostgresStatus(dir);
    process.kill(pid ?? 0, "SIGKILL");
    const second = await startQuickly({ dir });
    expect(second.startedByUs).toBe(true);
    expect(await queryValue(second.url, "select one from survived")).toBe(1);
  });

  it("clears a stale pid file, be its number free or a stranger's", async () => {
    const { dataDir, stop } = await startQuickly({ dir });
    await stop();
    const { uid, gid } = await stat(dataDir);
    const ended = spawn("true");
    await once(ended, "exit");
    // As the server's own user: that is the one case in which Postgres itself would refuse to start.
    const stranger = spawn("sleep", ["600"], { ...(process.getuid?.() === 0 && { uid, gid }) });
    await once(stranger, "spawn");
    try {
      for (const pid of [ended.pid, stranger.pid]) {
        await writeFile(join(dataDir, "postmaster.pid"), `${pid}\n${dataDir}\n1\n5432\n\n127.0.0.1\n 1 1\nready   \n`);
        expect((await embeddedPostgresStatus(dir)).running).toBe(false);
        const server = await startQuickly({ dir });
        expect(server.startedByUs).toBe(true);
        await server.stop();
      }
    } finally {
      stranger.kill("SIGKILL");
    }
  });

  it("goes to another port when its own is taken, and stays there", async () => {
    const first = await startQuickly({ dir });
    await first.stop();
    const squatter = createServer().listen(first.port, "127.0.0.1");
    await once(squatter, "listening");
    const moved = await startQuickly({ dir, port: first.port });
    squatter.close();
    expect(moved.port).not.toBe(first.port);
    expect(await queryValue(moved.url, "select 1")).toBe(1);
    await moved.stop();
    const again = await startQuickly({ dir });
    expect(again.port).toBe(moved.port);
  });

  it("refuses data of another major version and touches nothing", async () => {
    const server = await startQuickly({ dir });
    await server.stop();
    const versionFile = join(server.dataDir, "PG_VERSION");
    const rightVersion = await readFile(versionFile, "utf8");
    await writeFile(versionFile, "14\n");
    try {
      const failure = startQuickly({ dir });
      await expect(failure).rejects.toMatchObject({ code: "EMBEDDED_VERSION_MISMATCH", dataMajor: "14" });
      await expect(failure).rejects.toThrow(/move the folder away.*dump it with Postgres 14/);
      expect(await readdir(server.dataDir)).toContain("global");
    } finally {
      await writeFile(versionFile, rightVersion);
    }
  });

  it("gives the end of the server's log when it does not start", async () => {
    const failure = startQuickly({ dir, settings: { work_mem: "a lot" } });
    await expect(failure).rejects.toMatchObject({ code: "EMBEDDED_START_FAILED" });
    await expect(failure).rejects.toThrow(/invalid value for parameter "work_mem"/);
    expect((await startQuickly({ dir })).startedByUs).toBe(true);
  });
});

/** Command lines that still name the data folder. */
async function processesOn(dataDir: string): Promise<string[]> {
  const lines = execFileSync("ps", ["-eo", "command="], { encoding: "utf8" }).split("\n");
  return lines.filter((line) => line.includes(dataDir));
}
