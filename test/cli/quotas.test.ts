import pg from "pg";
import { afterAll, expect, it } from "vitest";
import { createTestDatabase } from "../support/database.ts";
import { capstan, type CliResult } from "./support.ts";

const database = await createTestDatabase();
const db = new pg.Pool({ connectionString: database.url, max: 2 });
db.on("error", () => {});
afterAll(() => db.end());

const run = (...args: string[]): Promise<CliResult> => capstan(args, { env: { DATABASE_URL: database.url } });

it("limits are set, listed, shown with their use and removed", { timeout: 120_000 }, async () => {
  expect(await run("quotas", "set", "tokens/minute", "200000", "--tenant", "acme")).toEqual({ code: 0, stderr: "", stdout: "tenant acme  turn tokens/minute: 200,000\n" });
  expect((await run("quotas", "set", "cost/day", "12.5", "--tenant", "*")).stdout).toBe("each tenant  turn cost/day: $12.50\n");
  expect((await run("quotas", "set", "queued", "1")).stdout).toBe("everything  run queued: 1\n");
  expect((await run("quotas", "set", "queued", "1")).stdout).toContain("(as it was)");
  const first = await run("enqueue", "nobody", "hello");
  expect(first.code).toBe(0);
  const refused = await run("enqueue", "nobody", "hello", "--json");
  expect(refused.code).toBe(1);
  expect(JSON.parse(refused.stdout)).toMatchObject({ error: { code: "QUEUE_FULL", details: { scope: "overall", limit: 1, retry_after_s: 5 } } });
  const list = await run("quotas", "list");
  expect(list.stdout).toMatch(/^everything +run +queued +1 +1$/m);
  expect(list.stdout).toMatch(/^each tenant +turn +cost\/day +\$12\.50 +\$0\.000000 \(most\)$/m);
  expect(JSON.parse((await run("quotas", "show", "--json")).stdout)).toEqual({ buckets: [{ bucket: "run/queued/none/overall/*", used: 1, limit: 1 }] });
  expect((await run("quotas", "remove", "queued")).stdout).toBe("everything  run queued: removed\n");
  expect((await run("quotas", "remove", "queued")).stdout).toBe("everything  run queued: there was none\n");
  const { rows } = await db.query("select actor, action, target from capstan.audit_log where target like 'run/%' order by id");
  expect(rows).toEqual([
    { actor: expect.any(String), action: "quota.set", target: "run/queued/none/overall/*" },
    { actor: expect.any(String), action: "quota.remove", target: "run/queued/none/overall/*" },
  ]);
});

it.each([
  [["set", "tokens", "1"], "is no measure"],
  [["set", "tokens/day", "1.5"], "whole number"],
  [["set", "concurrent", "1", "--tenant", "a", "--agent", "b"], "exclude each other"],
  [["set", "queued", "1", "--model", "a:b"], "a queued run has no model yet"],
  [["set", "queued", "1", "--kind", "tool"], "does not go with queued"],
])("quotas %j is wrong usage", async (args, says) => {
  const { code, stderr } = await run("quotas", ...args);
  expect({ code, says: stderr.includes(says) }).toEqual({ code: 2, says: true });
});

it("usage is shown by group and by tree, and a run before its key says who holds it", { timeout: 120_000 }, async () => {
  await db.query(
    `insert into capstan.usage_rollup (tenant, day, agent, model, kind, calls, input_tokens, output_tokens, cost_usd_micros)
     values ('acme', '2026-01-02', 'writer', 'a:b', 'turn', 12, 34000, 1200, 2500000), ('small', '2026-01-02', 'writer', 'a:b', 'turn', 1, 10, 1, 0)`,
  );
  const time = ["--since", "2026-01-01T00:00:00Z", "--until", "2026-02-01T00:00:00Z"];
  const { stdout } = await run("usage", "--by", "tenant", ...time);
  expect(
    stdout
      .split("\n")
      .slice(1, 3)
      .map((line) => line.trim().split(/ +/)),
  ).toEqual([
    ["acme", "12", "0", "34k", "0", "1.2k", "$2.50"],
    ["small", "1", "0", "10", "0", "1"],
  ]);
  expect(JSON.parse((await run("usage", "--by", "day", "--tenant", "acme", ...time, "--json")).stdout)).toMatchObject({ by: "day", usage: [{ key: "2026-01-02", calls: 12 }] });
  const { rows } = await db.query<{ holder: string; next: string }>(
    "select capstan.enqueue_run(agent => 'nobody', input => '1', concurrency_key => 'k') as holder, capstan.enqueue_run(agent => 'nobody', input => '1', concurrency_key => 'k') as next",
  );
  const { holder = "", next = "" } = rows[0] ?? {};
  expect((await run("usage", "--run", next)).stdout).toContain(next);
  expect((await run("runs", "show", next)).stdout).toMatch(new RegExp(`^waits for +concurrency key k, held by ${holder}$`, "m"));
});
