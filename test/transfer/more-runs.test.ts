/** Runs that are not the plain case: with a base, with a summary under way, with somebody waited for, for another tenant, of a tree. */
import { randomBytes } from "node:crypto";
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from "vitest";
import { z } from "zod";
import { agent } from "../../src/agents/agent.ts";
import { tool } from "../../src/agents/tool.ts";
import type { CanonicalCall } from "../../src/domain/call.ts";
import { canonicalJson, type JsonValue } from "../../src/domain/json.ts";
import type { ImportOptions } from "../../src/transfer/import.ts";
import { scriptedModel, type ScriptedStep } from "../../src/testing/scripted-model.ts";
import { createTestDatabase } from "../support/database.ts";
import { collect, openLab, payloads, typesOf, until, type AnyAgent, type Lab } from "../engine/harness.ts";

const [here, there] = [await createTestDatabase(), await createTestDatabase()];
const seen: { readonly where: string; readonly runId: string; readonly call: string }[] = [];
const summaries: string[] = [];
const gate = { open: (): void => {}, opened: Promise.resolve() };
const long = "the ledger of this month holds entries, and one of them is odd; ".repeat(100);

const fetch = tool({ name: "fetch", description: "Fetches.", input: z.object({}), effect: "read", execute: () => randomBytes(200_000).toString("hex") });
const pay = tool({ name: "pay", description: "Pays.", input: z.object({}), effect: "once", approval: true, execute: () => "paid" });
const held = tool({ name: "held", description: "Takes its time.", input: z.object({}), effect: "read", execute: () => gate.opened.then(() => "late") });

const scripts: Readonly<Record<string, readonly ScriptedStep[]>> = {
  keeper: [{ toolCalls: [{ name: "fetch" }] }, "Fetched.", ...Array.from({ length: 20 }, (_, n) => `Answer ${n}.`)],
  talker: Array.from({ length: 40 }, (_, n) => `Answer ${n}.`),
  payer: [{ toolCalls: [{ name: "pay" }] }, "Paid."],
  parent: [{ toolCalls: [{ name: "agent", input: { op: "spawn", agent: "child", input: "x" } }] }, "Joined."],
  child: [{ toolCalls: [{ name: "held" }] }, "Done."],
};
const of = (name: string, more: Partial<Parameters<typeof agent>[0]> = {}): AnyAgent => agent({ name, model: `scripted:${name}`, instructions: "Work.", ...more }) as AnyAgent;
const agents = [
  of("keeper", { interactive: true, tools: [fetch] }),
  of("talker", { interactive: true, compaction: { enabled: true, keep_last_n: 1, prefetch_at_pct: 20, autocompact_at_pct: 70, summarizer: "counted" } }),
  of("payer", { tools: [pay] }),
  of("parent", { spawn: { agents: ["child"] } }),
  of("child", { tools: [held] }),
];
const modelsOf = (where: string) =>
  Object.entries(scripts).map(([name, steps]) => {
    const model = scriptedModel(steps, { name: `scripted:${name}`, by: "turn", windowTokens: 30_000 });
    return {
      ...model,
      call: (call: CanonicalCall, context: Parameters<typeof model.call>[1]) => (
        seen.push({ where, runId: context.runId, call: canonicalJson(call as unknown as JsonValue) }),
        model.call(call, context)
      ),
    };
  });
const summarizersOf = (where: string) => ({
  counted: async () => {
    summaries.push(where);
    if (where === "here") await gate.opened;
    return { summary: `Made ${where}.` };
  },
});

let source: Lab;
let target: Lab;
beforeAll(async () => {
  [source, target] = await Promise.all([
    openLab(here.url, { agents, models: modelsOf("here"), summarizers: summarizersOf("here") }),
    openLab(there.url, { agents, models: modelsOf("there"), summarizers: summarizersOf("there") }),
  ]);
});
afterAll(() => Promise.all([source[Symbol.asyncDispose](), target[Symbol.asyncDispose]()]));

/** Opened again when the test ends in any way: a summary that is held would hold the next test's too. */
function close(): void {
  gate.opened = new Promise((resolve) => (gate.open = resolve));
  onTestFinished(() => gate.open());
}
const awaits = (lab: Lab, id: string, turn: number) =>
  until(`turn ${turn}`, async () => {
    const { state, wait_reason: reason, turn: at } = await lab.capstan.run(id).status();
    const { rows } = await lab.db.query<{ pending: number }>("select inbox_pending as pending from capstan.runs where id = $1", [id]);
    return state === "waiting" && reason === "input" && at >= turn && rows[0]?.pending === 0;
  });
async function* from(lines: readonly string[]): AsyncGenerator<string> {
  yield* lines;
}
const lines = (id: string): Promise<string[]> => collect(source.capstan.exportRun(id));
const moved = async (id: string, options?: ImportOptions) => await target.capstan.importRun(from(await lines(id)), options);
const asked = (where: string, id: string): string[] => seen.filter((one) => one.where === where && one.runId === id).map(({ call }) => call);
const texts = async (lab: Lab, id: string): Promise<string[]> => payloads(await lab.events(id), "input.applied").map(({ content }) => content[0].text as string);

/** The same message in both databases: the copy that stayed shows what the one that moved has to ask. */
async function asksTheSame(id: string, turn: number): Promise<void> {
  const before = asked("here", id).length;
  for (const lab of [source, target]) {
    await lab.capstan.run(id).send("And now?");
    await awaits(lab, id, turn);
  }
  expect(asked("there", id).slice(-1)).toEqual(asked("here", id).slice(before));
  await target.intact(id);
}

describe("a run with a base", () => {
  it("brings what it begins with, blobs that only its base names included", async () => {
    const base = await source.capstan.enqueue("keeper", "begin");
    await awaits(source, base.id, 2);
    const fork = await base.fork({ input: "Otherwise?" });
    await awaits(source, fork.id, 3);
    const baseEvents = await source.events(base.id);
    expect(await moved(fork.id)).toMatchObject({ runId: fork.id, runs: 2, blobs: 1 });
    await asksTheSame(fork.id, 4);
    // Of the base nothing goes on: what is here is what the fork begins with.
    const { rows: part } = await target.db.query("select state, error_code, wait_reason, wake_at from capstan.runs where id = $1", [base.id]);
    expect(part).toEqual([{ state: "cancelled", error_code: "IMPORTED_PART", wait_reason: null, wake_at: null }]);
    expect((await target.events(base.id)).every((event, i) => JSON.stringify(event) === JSON.stringify(baseEvents[i]))).toBe(true);
    await target.intact(base.id);

    // Another fork of the same base finds it there; one that begins with more of it than is there does not.
    const second = await base.fork({ input: "Or so?" });
    await awaits(source, second.id, 3);
    expect(await moved(second.id)).toMatchObject({ runs: 2, events: (await source.events(second.id)).length });
    await asksTheSame(second.id, 4);
    await base.send("More.");
    await awaits(source, base.id, 3);
    const third = await base.fork({ input: "Or even so?" });
    await awaits(source, third.id, 4);
    await expect(moved(third.id)).rejects.toMatchObject({ code: "IMPORT_EXISTS" });
  });

  it("of a conversation goes on as a run of its own", async () => {
    const thread = await source.capstan.conversations.create({ agent: "keeper" });
    const first = await thread.send("begin", { interactive: false });
    expect(await first.result({ timeoutMs: 20_000 })).toBe("Fetched.");
    const next = await thread.send("and then?", { interactive: true });
    await awaits(source, next.id, 3);
    expect(await moved(next.id)).toMatchObject({ runs: 2 });
    await asksTheSame(next.id, 4);
    expect(await target.capstan.run(first.id).status()).toMatchObject({ state: "completed" });
  });
});

describe("a summary", () => {
  it("that is being made is asked for again, and put in", async () => {
    const run = await source.capstan.enqueue("talker", "begin");
    await awaits(source, run.id, 1);
    for (let turn = 2; turn <= 4; turn++) {
      await run.send(`${turn}: ${long}`);
      await awaits(source, run.id, turn);
    }
    close();
    const compacted = run.compact({ timeoutMs: 60_000 });
    await until("the summarizer", () => summaries.includes("here"));
    await moved(run.id);
    await until("the marker", async () => typesOf(await target.events(run.id)).includes("context.compacted"));
    expect(payloads(await target.events(run.id), "context.compacted")[0].head.summary).toContain("Made there.");
    expect(summaries.filter((where) => where === "there")).toHaveLength(1);
    await target.capstan.run(run.id).send("And now?");
    await awaits(target, run.id, 5);
    await target.intact(run.id);
    gate.open();
    expect(await compacted).toMatchObject({ applied: "live" });
  });

  it("that was made early and waits for its line comes along, and is not paid for twice", async () => {
    const run = await source.capstan.enqueue("talker", "begin");
    await awaits(source, run.id, 1);
    const isPrepared = async () => typesOf(await source.events(run.id)).includes("compaction.prepared");
    for (let turn = 2; !(await isPrepared()); turn++) {
      await run.send(`${turn}: ${long}`);
      await awaits(source, run.id, turn);
      await until(
        "no summary under way",
        async () => (await source.db.query("select from capstan.compaction_tasks where run_id = $1 and state in ('requested', 'summarizing')", [run.id])).rowCount === 0,
      );
    }
    expect(typesOf(await source.events(run.id))).not.toContain("context.compacted");
    const before = summaries.length;
    const { turn } = await run.status();
    await moved(run.id);
    const isPutIn = async () => typesOf(await target.events(run.id)).includes("context.compacted");
    for (let next = turn + 1; !(await isPutIn()) && next < turn + 20; next++) {
      await target.capstan.run(run.id).send(`${next}: ${long}`);
      await awaits(target, run.id, next);
    }
    expect(payloads(await target.events(run.id), "context.compacted")[0].head.summary).toContain("Made here.");
    expect(typesOf(await target.events(run.id))).not.toContain("compaction.failed");
    expect(summaries.slice(before).filter((where) => where === "there")).toEqual([]);
    await target.intact(run.id);
  });
});

it("a run that waits for a person or for children is refused, paused or not", async () => {
  close();
  const payer = await source.capstan.enqueue("payer", "begin");
  const parent = await source.capstan.enqueue("parent", "begin");
  for (const [run, reason] of [
    [payer, "approval"],
    [parent, "children"],
  ] as const) {
    await until(reason, async () => (await run.status()).wait_reason === reason);
    await expect(lines(run.id)).rejects.toMatchObject({ code: "RUN_BUSY", message: expect.stringContaining(reason) });
    await run.pause();
    await expect(lines(run.id)).rejects.toMatchObject({ code: "RUN_BUSY" });
    await run.cancel();
    // Then it is at an end, and may go.
    expect((await lines(run.id)).length).toBeGreaterThan(3);
  }
  gate.open();
});

it("a child moves alone: its parent is not there to be told", async () => {
  close();
  const parent = await source.capstan.enqueue("parent", "begin");
  const child = await until("the tool", async () => {
    const { rows } = await source.db.query<{ id: string }>(
      "select r.id from capstan.runs r where r.parent_run_id = $1 and exists (select from capstan.events e where e.run_id = r.id and e.type = 'model.responded')",
      [parent.id],
    );
    return rows[0]?.id;
  });
  await source.capstan.run(child).pause();
  gate.open();
  await until("the turn to end", async () => typesOf(await source.events(child)).includes("tool.completed"));
  const written = await until("rest", () => lines(child).catch((error: { code: string }) => (error.code === "RUN_BUSY" ? undefined : { problem: error.code })));
  expect(await target.capstan.importRun(from(written as string[]))).toMatchObject({ runId: child, runs: 1 });
  expect(await target.capstan.run(child).result({ timeoutMs: 20_000 })).toBe("Done.");
  await target.intact(child);
  await source.capstan.run(child).resume();
  expect(await parent.result({ timeoutMs: 20_000 })).toBe("Joined.");
});

it("another tenant gets all of it; what was sent is applied in its order, what was signalled is kept", async () => {
  const run = await source.capstan.enqueue("keeper", "begin", { tenant: "acme" });
  await awaits(source, run.id, 2);
  await run.send("zeroth", { dedupeKey: "zeroth" });
  await awaits(source, run.id, 3);
  await run.pause();
  const sent = ["first", "second", "third", ...Array.from({ length: 12 }, (_, n) => `message ${n}`)];
  for (const text of sent) await run.send(text, { dedupeKey: text });
  for (const n of [1, 2]) await run.signal("tick", n);
  expect(await moved(run.id, { tenant: "umbrella" })).toMatchObject({ tenant: "umbrella", blobs: 1 });
  await until("the last message", async () => (await texts(target, run.id)).includes("message 11"));
  await awaits(target, run.id, 4);
  // Sent again, by somebody who did not know that it had moved: one that was applied there, one that was applied here.
  for (const text of ["zeroth", "third"]) await target.capstan.run(run.id).send(text, { dedupeKey: text });
  await awaits(target, run.id, 4);
  expect(await texts(target, run.id)).toEqual(["zeroth", ...sent]);
  const { rows } = await target.db.query<{ tenants: string[]; chunks: number; signals: unknown[]; inbox: number }>(
    `select (select array_agg(distinct t) from (select tenant as t from capstan.runs where id = $1 union all select tenant from capstan.blob_refs where run_id = $1) a) as tenants,
       (select count(*)::int from capstan.blob_chunks where tenant = 'umbrella') as chunks, (select count(*)::int from capstan.inbox where run_id = $1) as inbox,
       (select array_agg(payload order by id) from capstan.signals where run_id = $1 and wait_id is null) as signals`,
    [run.id],
  );
  expect(rows[0]).toMatchObject({ tenants: ["umbrella"], signals: [1, 2], inbox: sent.length + 1 });
  expect(rows[0]?.chunks).toBeGreaterThan(0);
  await target.intact(run.id);
});
