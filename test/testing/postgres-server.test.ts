import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import pg from "pg";
import { afterAll, beforeAll, describe, expect, inject, it, vi } from "vitest";
import { startTestPostgres, type TestPostgres } from "../../src/testing/postgres.ts";

// A container where the suite itself runs on one; the lane that has an engine runs both.
const modes = inject("postgresDescribe").startsWith("container") ? (["embedded", "container"] as const) : (["embedded"] as const);

describe.each(modes)("a test Postgres, %s", (mode) => {
  let postgres: TestPostgres;
  beforeAll(async () => {
    postgres = await startTestPostgres({ mode });
  });
  afterAll(() => postgres.stop());

  it("says which Postgres it is", async () => {
    expect(postgres.describe).toMatch(mode === "embedded" ? /^embedded Postgres \d+\.\d+$/ : /^container \S+ \(\d+\.\d+\)$/);
  });

  it("creates databases, also as clones, and drops them under open connections", async () => {
    const origin = await postgres.createDatabase("origin");
    await query(origin.url, "create table letters as select 'a' as letter");
    const clone = await postgres.createDatabase(undefined, { template: "origin" });
    expect(await query(clone.url, "select letter from letters")).toEqual([{ letter: "a" }]);
    const open = new pg.Client({ connectionString: clone.url });
    const cut = once(open, "error");
    open.on("error", () => {}); // the server's farewell is one event, the end of the connection another
    await open.connect();
    await clone.drop();
    await clone.drop();
    await cut;
    await expect(query(clone.url, "select 1")).rejects.toMatchObject({ code: "3D000" });
    await origin.drop();
  });

  it.each(["fast", "immediate"] as const)("restarts (%s) at the same address with its data", async (how) => {
    const database = await postgres.createDatabase();
    await query(database.url, "create table kept as select 1 as one");
    const before = await query(database.url, "select pg_postmaster_start_time()::text as at");
    const { url } = postgres;
    await postgres.restart(how);
    expect(postgres.url).toBe(url);
    expect(await query(database.url, "select one from kept")).toEqual([{ one: 1 }]);
    expect(await query(database.url, "select pg_postmaster_start_time()::text as at")).not.toEqual(before);
    await database.drop();
  });

  it("is removed when its process is killed", async () => {
    const program = fileURLToPath(new URL("./kill-me.ts", import.meta.url));
    const child = spawn(process.execPath, [program, mode], { stdio: ["ignore", "pipe", "inherit"] });
    const [url] = (await once(createInterface(child.stdout), "line")) as [string];
    expect(await query(url, "select 1 as one")).toEqual([{ one: 1 }]);
    child.kill("SIGKILL");
    await vi.waitFor(() => expect(query(url, "select 1")).rejects.toMatchObject({ code: "ECONNREFUSED" }), {
      timeout: 40_000,
      interval: 100,
    });
  });
});

describe("a given test Postgres", () => {
  it("is used and left alone", async () => {
    vi.stubEnv("CAPSTAN_TEST_POSTGRES", "url");
    vi.stubEnv("CAPSTAN_TEST_DATABASE_URL", inject("postgresUrl"));
    try {
      const postgres = await startTestPostgres();
      expect(postgres.describe).toMatch(/^CAPSTAN_TEST_DATABASE_URL .*:\d+\/postgres \(\d+\.\d+\)$/);
      expect(postgres.describe).not.toContain(new URL(postgres.url).password);
      await expect(postgres.restart("fast")).rejects.toMatchObject({ code: "TEST_POSTGRES_UNAVAILABLE" });
      const database = await postgres.createDatabase();
      await database.drop();
      await postgres.stop();
      expect(await query(postgres.url, "select 1 as one")).toEqual([{ one: 1 }]);
    } finally {
      vi.unstubAllEnvs();
    }
  });

  it("must be named, and the mode must be one of three", async () => {
    vi.stubEnv("DATABASE_URL", "");
    vi.stubEnv("CAPSTAN_TEST_DATABASE_URL", "");
    vi.stubEnv("CAPSTAN_TEST_POSTGRES", "sqlite");
    try {
      await expect(startTestPostgres({ mode: "url" })).rejects.toMatchObject({ code: "TEST_POSTGRES_UNAVAILABLE" });
      await expect(startTestPostgres()).rejects.toThrow(/"sqlite".*container, embedded or url/);
    } finally {
      vi.unstubAllEnvs();
    }
  });
});

async function query(url: string, text: string): Promise<unknown[]> {
  const client = new pg.Client({ connectionString: url });
  client.on("error", () => {});
  try {
    await client.connect();
    return (await client.query<Record<string, unknown>>(text)).rows;
  } finally {
    await client.end();
  }
}
