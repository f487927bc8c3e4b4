import { describe, expect, it } from "vitest";
import { importsOf, loadedBy, sourceFiles } from "./sources.ts";

/**
 * What each room may import of ours: rooms by name, single files by path. Its own room always may. Files at the top of
 * src (main, worker, summarize-pool, mcp-runtime, cli, index) are the composition root and may import everything; `config.ts` is not.
 */
const mayImport: Readonly<Record<string, readonly string[]>> = {
  domain: [],
  engine: ["domain", "telemetry/names.ts"],
  agents: ["domain", "engine"],
  capabilities: ["domain", "engine"],
  compaction: ["domain", "engine"],
  providers: ["domain", "engine"],
  mcp: ["domain", "engine", "agents", "client", "capabilities/outgoing.ts", "store/agent-list.ts", "store/run-list.ts"],
  http: ["domain", "engine", "client", "store", "telemetry"],
  queue: ["domain", "engine"],
  store: ["domain", "engine"],
  telemetry: ["domain", "engine"],
  tools: ["domain", "engine", "agents"],
  // What `createClient` needs to reach the database, and nothing that writes journals: see the second test.
  client: [
    "domain",
    "store/agent-list.ts",
    "store/blobs.ts",
    "store/definitions.ts",
    "store/journal-reader.ts",
    "store/line.ts",
    "store/names.ts",
    "store/pool.ts",
    "store/uuid.ts",
  ],
  // Rows as they are, from one database to another.
  transfer: ["domain", "store/definitions.ts", "store/line.ts"],
  embedded: ["domain"],
  // Users' tests start servers and whole workers: this room stands outside the product, as cli does.
  testing: ["domain", "engine", "compaction/effect.ts", "embedded", "agents", "client", "providers/estimate-usage.ts", "main.ts"],
  cli: [
    // What a webhook may name is judged where it is made, too.
    "capabilities/outgoing.ts",
    "domain",
    "engine",
    "agents",
    "client",
    "embedded",
    "http",
    "mcp",
    "providers",
    "queue",
    "store",
    "telemetry",
    "testing",
    "tools",
    "transfer",
    "compaction/outcomes.ts",
    "main.ts",
    "worker.ts",
    "config.ts",
    "index.ts",
  ],
  "config.ts": ["agents/config-error.ts"],
  "version.ts": [],
};

/** Packages by room; rooms that are not listed may import any. Node's own modules count as packages. */
const mayImportPackages: Readonly<Record<string, readonly string[]>> = {
  domain: ["zod"],
  engine: ["zod"],
  agents: ["zod"],
  capabilities: ["node:dns/promises", "node:http", "node:https", "node:net", "node:stream"],
  compaction: [],
  client: ["pg", "zod", "drizzle-orm", "node:crypto"],
};

/** Single files that need a package which their room may not have, and why. */
const packageExceptions: Readonly<Record<string, readonly string[]>> = {
  // Hashes the canonical call; the domain takes the function as an argument.
  "engine/run-memory.ts": ["node:crypto"],
  // Ids that a tool is given before any database knows of them.
  "engine/wait-id.ts": ["node:crypto"],
  // Reads cron lines: a function of line, zone and instant.
  "domain/schedule.ts": ["croner"],
  // Bounds the time of patterns of users' own: a function of pattern and text.
  "domain/redact/bounded-pattern.ts": ["node:vm"],
};

/** Single files that may import more than their room, and why. */
const exceptions: Readonly<Record<string, readonly string[]>> = {
  // The demo's agent is put together from the folder's tools and the offline model's settings.
  "agents/auditor.ts": ["tools/folder-tools.ts", "providers/offline/auditor/settings.ts"],
  // Registered as a summarizer where the auditor is compacted.
  "providers/offline/auditor/summarizer.ts": ["compaction/effect.ts"],
  // The tools of a recording and the model that replays it read the same file format.
  "tools/replay-tools.ts": ["providers/offline/recording.ts"],
};

/** Importable by every room outside the core: they import nothing themselves, which is checked. */
const shared = ["version.ts", "store/pg-errors.ts"];

const roots = new Set(["main.ts", "worker.ts", "summarize-pool.ts", "mcp-runtime.ts", "cli.ts", "index.ts"]);

function roomOf(file: string): string {
  return file.includes("/") ? (file.split("/")[0] ?? file) : file;
}

describe("import direction", () => {
  const files = sourceFiles().filter((file) => !roots.has(file));

  it("knows every room", () => {
    expect([...new Set(files.map(roomOf))].filter((room) => !Object.hasOwn(mayImport, room))).toEqual([]);
  });

  it("lets each room import only what the table allows", () => {
    const violations = files.flatMap((file) => {
      const room = roomOf(file);
      const allowed = [...(mayImport[room] ?? []), ...(exceptions[file] ?? [])];
      return importsOf(file)
        .flatMap(({ path }) => (path === undefined ? [] : [path]))
        .filter((path) => roomOf(path) !== room && !allowed.includes(roomOf(path)) && !allowed.includes(path) && !(shared.includes(path) && room !== "domain" && room !== "engine"))
        .map((path) => `${file} imports ${path}`);
    });
    expect(violations).toEqual([]);
  });

  it("shares only files that import nothing", () => {
    expect(shared.flatMap((file) => importsOf(file))).toEqual([]);
  });

  it("keeps packages out of the inner rooms", () => {
    const violations = files.flatMap((file) => {
      const allowed = mayImportPackages[roomOf(file)];
      if (allowed === undefined) return [];
      const mine = [...allowed, ...(packageExceptions[file] ?? [])];
      return importsOf(file)
        .filter(({ path, specifier }) => path === undefined && !mine.includes(specifier))
        .map(({ specifier }) => `${file} imports ${specifier}`);
    });
    expect(violations).toEqual([]);
  });

  it("loads no worker code with capstan/client", () => {
    const { files: loaded, packages } = loadedBy("client/index.ts");
    expect([...loaded].map(roomOf).filter((room) => !["client", "domain", "store"].includes(room))).toEqual([]);
    expect([...loaded].filter((file) => file.startsWith("store/")).toSorted()).toEqual([
      "store/agent-list.ts",
      "store/blobs.ts",
      "store/definitions.ts",
      "store/journal-reader.ts",
      "store/line.ts",
      "store/names.ts",
      "store/pg-errors.ts",
      "store/pool.ts",
      "store/sql/run-row.ts",
      "store/until-connected.ts",
      "store/uuid.ts",
    ]);
    // drizzle-orm is loaded only for callers that hand over a drizzle transaction, which have it.
    expect([...packages].toSorted()).toEqual(["croner", "drizzle-orm", "node:crypto", "node:vm", "pg", "zod"]);
  });
});
