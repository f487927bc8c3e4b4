/** Everything of a tenant or a subject goes; a planted text is looked for in every column of every table. */
import pg from "pg";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { z } from "zod";
import { agent } from "../../src/agents/agent.ts";
import { tool } from "../../src/agents/tool.ts";
import { ErasureClient } from "../../src/client/erasure.ts";
import { RetentionClient } from "../../src/client/retention.ts";
import type { Model } from "../../src/engine/model-port.ts";
import { capstan, startCapstan } from "../cli/support.ts";
import { createTestDatabase } from "../support/database.ts";
import { openLab, until, type Lab } from "../engine/harness.ts";
import { whereTextIs } from "./tables.ts";

const database = await createTestDatabase();
let held: { readonly marker: string; readonly release: () => void } | undefined;

/** Says the last thing that it was told again, in many ways; "hold" waits until the test lets it go. */
const parrot: Model = {
  name: "scripted:parrot",
  structuredOutput: false,
  window: { tokens: undefined, source: "unknown" },
  async call(call) {
    const said = call.messages.flatMap((message) => (message.role === "user" ? message.content.flatMap((part) => (part.type === "text" ? [part.text] : [])) : []));
    const last = said.at(-1) ?? "";
    const isAnswered = call.messages.some(({ role }) => role === "tool");
    const respond = (content: object[]) =>
      ({ kind: "responded", content, finish: { reason: isAnswered ? "stop" : "tool_calls" }, usage: { input: 1, output: 1, scale: "estimate" } }) as unknown as Awaited<
        ReturnType<Model["call"]>
      >;
    if (isAnswered) return respond([{ type: "text", text: `done: ${last}` }]);
    const name = last.startsWith("approve") ? "publish" : last.startsWith("slow") ? "slow" : "store";
    return respond([{ type: "tool_call", call_id: "c1", name, input: { text: last } }]);
  },
};
const text = z.object({ text: z.string() });
const tools = [
  tool({ name: "store", description: "Stores.", input: text, effect: "read", execute: ({ text: given }) => `${given} `.repeat(20_000) }),
  tool({ name: "publish", description: "Publishes.", input: text, approval: true, execute: ({ text: given }) => given }),
  tool({
    name: "slow",
    description: "Takes its time.",
    input: text,
    effect: "read",
    async execute({ text: given }) {
      await new Promise<void>((resolve) => (held = { marker: given, release: resolve }));
      return `${given} `.repeat(20_000);
    },
  }),
];
const teller = agent({ name: "teller", model: "scripted:parrot", instructions: "Tell.", tools });

let lab: Lab;
let erasure: ErasureClient;
let client: pg.Client;
beforeAll(async () => {
  lab = await openLab(database.url, { agents: [teller], models: [parrot] });
  erasure = new ErasureClient(lab.db, (sql) => sql);
  client = new pg.Client({ connectionString: database.url });
  await client.connect();
});
afterAll(async () => {
  held?.release();
  await client.end();
  await lab[Symbol.asyncDispose]();
});

/** Plants the marker wherever a text of a user's can be. */
async function plant(tenant: string, subject: string, marker: string): Promise<void> {
  const options = { tenant, subject };
  const engine = lab.capstan;
  const done = await lab.run("teller", marker, options);
  expect(done.status).toMatchObject({ state: "completed" });
  await engine.run(done.id).fork({ input: `again ${marker}` });
  const waiting = await engine.enqueue("teller", `approve ${marker}`, options);
  await until("the approval", async () => (await waiting.waits()).length > 0);
  await waiting.signal("news", { text: marker });
  await waiting.send(`more ${marker}`);
  await engine.enqueue("teller", `later ${marker}`, { ...options, runAt: new Date(Date.now() + 3_600_000), metadata: { marker }, labels: [marker], idempotencyKey: marker });
  await engine.enqueue("teller", [{ type: "file", media_type: "text/plain", data: Buffer.from(`file ${marker}`) }], options);
  const thread = await engine.conversations.create({ agent: "teller", title: marker, ...options });
  await lab.settled((await thread.send(`first ${marker}`)).id);
  await lab.settled((await thread.send(`second ${marker}`)).id);
  await engine.schedules.create(`nightly-${subject}`, { agent: "teller", input: marker, cron: "0 3 * * *", timezone: "UTC", tenant });
  await client.query(`update capstan.schedules set options = coalesce(options, '{}') || jsonb_build_object('subject', $2::text) where tenant = $1 and name = $3`, [
    tenant,
    subject,
    `nightly-${subject}`,
  ]);
  await new RetentionClient(lab.db, (sql) => sql).hold(done.id, { reason: marker });
  await new RetentionClient(lab.db, (sql) => sql).release(done.id);
}

describe("erasing", () => {
  it("a subject takes all of it and nothing of others, and says so", async () => {
    await plant("acme", "ann", "MARKER-ann");
    await plant("acme", "bob", "MARKER-bob");
    expect((await whereTextIs(client, "MARKER-ann")).length).toBeGreaterThan(8);

    const preview = await erasure.erase({ tenant: "acme", subject: "ann" }, { dryRun: true });
    expect(preview).toMatchObject({ dry_run: true, complete: false, tables: { runs: { rows: 7 }, conversations: { rows: 1 }, schedules: { rows: 1 } } });
    const bobs = await whereTextIs(client, "MARKER-bob");
    const report = await erasure.erase({ tenant: "acme", subject: "ann" }, { batch: 2, actor: "operator" });
    expect(report).toMatchObject({ complete: true, remains: [], tables: { runs: { rows: 7 }, conversations: { rows: 1 }, schedules: { rows: 1 } } });
    expect(report.cancelled).toBeGreaterThanOrEqual(2);
    expect(report.content.blobs).toBeGreaterThanOrEqual(2);
    expect(await whereTextIs(client, "MARKER-ann")).toEqual([]);
    expect(await whereTextIs(client, "MARKER-bob")).toEqual(bobs);
    const { rows } = await client.query<{ detail: object; target: string; actor: string }>("select actor, target, detail from capstan.audit_log where action = 'erase'");
    expect(rows).toEqual([{ actor: "operator", target: expect.stringMatching(/^subject sha256:[0-9a-f]{64}$/), detail: { rows: expect.objectContaining({ runs: 7 }) } }]);

    // Again: nothing is there, nothing is said twice.
    expect(await erasure.erase({ tenant: "acme", subject: "ann" })).toMatchObject({ complete: true, cancelled: 0, remains: [], content: { blobs: 0 } });
    expect((await client.query("select from capstan.audit_log where action = 'erase'")).rowCount).toBe(1);
  });

  it("a tenant takes everything but who did what", async () => {
    await client.query(
      "insert into capstan.webhooks (id, tenant, name, url, secret, events) values (gen_random_uuid(), 'acme', 'MARKER-bob', 'https://example.com', 'MARKER-bob', '{}')",
    );
    await client.query("insert into capstan.api_tokens (id, name, hash, tenant, scopes) values (gen_random_uuid(), 'MARKER-bob', 'x', 'acme', '{}')");
    await lab.capstan.pauses.pause({ tenant: "acme", reason: "MARKER-bob" });
    const report = await erasure.erase({ tenant: "acme" }, { actor: "operator" });
    expect(report).toMatchObject({ complete: true, tables: { runs: { rows: 7 }, webhooks: { rows: 1 }, api_tokens: { rows: 1 }, pauses: { rows: 1 } } });
    expect(report.remains).toEqual([{ what: "audit_log", rows: expect.any(Number), why: expect.stringContaining("without content") }]);
    expect(await whereTextIs(client, "MARKER-bob")).toEqual([]);
    expect(await whereTextIs(client, "acme")).toEqual(["audit_log.target", "audit_log.tenant"]);
  });

  it("a run at work stops it, and what its tool gives afterwards is stored nowhere", async () => {
    const run = await lab.capstan.enqueue("teller", "slow MARKER-slow", { tenant: "busy" });
    await until("the tool", () => held?.marker.includes("MARKER-slow"));
    expect(await erasure.erase({ tenant: "busy" })).toMatchObject({ complete: true, cancelled: 1 });
    held?.release();
    // The bystander, which the lab runs when it is closed, shows that the worker is well; its slot is free again here.
    await until("the worker to let the run go", async () => (await lab.db.query("select from capstan.workers where busy = 0 and ended_at is null")).rowCount === 1);
    expect(await whereTextIs(client, "MARKER-slow")).toEqual([]);
    await expect(run.status()).rejects.toMatchObject({ code: "RUN_MISSING" });
    expect((await client.query("select from capstan.blobs where tenant = 'busy' union all select from capstan.blob_chunks where tenant = 'busy'")).rowCount).toBe(0);
  });

  it("leaves what is held, names it, and does the rest when it is released", async () => {
    const retention = new RetentionClient(lab.db, (sql) => sql);
    const [one, two] = [await lab.run("teller", "one", { tenant: "kept" }), await lab.run("teller", "two", { tenant: "kept" })];
    await retention.hold(one.id);
    expect(await erasure.erase({ tenant: "kept" })).toMatchObject({
      complete: false,
      tables: { runs: { rows: 1 } },
      remains: [{ what: "runs", rows: 1, why: expect.stringContaining("held") }, {}],
    });
    await lab.intact(one.id);
    await expect(two.handle.status()).rejects.toMatchObject({ code: "RUN_MISSING" });
    await retention.release(one.id);
    expect(await erasure.erase({ tenant: "kept" })).toMatchObject({ complete: true, tables: { runs: { rows: 1 } } });
    expect((await client.query("select from capstan.usage_by_day where tenant = 'kept'")).rowCount).toBe(0);
  });

  it("killed on the way it does the rest when it is started again, and only counts until --yes is given", async () => {
    for (let n = 0; n < 12; n++) await lab.capstan.enqueue("teller", `later MARKER-killed ${n}`, { tenant: "killed", runAt: new Date(Date.now() + 3_600_000) });
    const env = { DATABASE_URL: database.url };
    const left = async () => (await client.query("select from capstan.runs where tenant = 'killed'")).rowCount ?? 0;
    const counted = await capstan(["erase", "--tenant", "killed"], { env });
    expect(counted).toMatchObject({ code: 0, stderr: expect.stringContaining("--yes does it"), stdout: expect.stringMatching(/runs +12/) });
    expect(await left()).toBe(12);
    const child = startCapstan(["erase", "--tenant", "killed", "--yes", "--batch", "1"], { env });
    await until("some of it to go", async () => (await left()) < 12);
    child.child.kill("SIGKILL");
    await child.exited;
    const done = await capstan(["erase", "--tenant", "killed", "--yes", "--json"], { env });
    expect(done).toMatchObject({ code: 0, stderr: expect.not.stringContaining("not all of it") });
    expect(JSON.parse(done.stdout)).toMatchObject({ complete: true });
    expect(await whereTextIs(client, "MARKER-killed")).toEqual([]);
    expect(await whereTextIs(client, "killed")).toEqual(["audit_log.target", "audit_log.tenant"]);
    expect(await capstan(["erase", "--yes"], { env })).toMatchObject({ code: 2 });
  });
});
