/** The audit log: deeds are in it whichever way they come, it cannot be changed, and an export misses nothing. */
import { afterAll, beforeAll, expect, it } from "vitest";
import { z } from "zod";
import { agent } from "../../src/agents/agent.ts";
import { tool } from "../../src/agents/tool.ts";
import { AuditClient, recordAudit } from "../../src/client/audit.ts";
import { scriptedModel } from "../../src/testing/scripted-model.ts";
import { collect, openLab, until, type Lab } from "../engine/harness.ts";
import { createTestDatabase } from "../support/database.ts";

const database = await createTestDatabase();
const same = (text: string): string => text;
const pay = tool({ name: "pay", description: "pays", input: z.object({}), effect: "once", approval: true, execute: () => "paid" });
const payer = agent({ name: "payer", model: "scripted:payer", instructions: "Pay.", tools: [pay] });
let lab: Lab;
beforeAll(async () => {
  lab = await openLab(database.url, { agents: [payer], models: [scriptedModel([{ toolCalls: [{ name: "pay", input: {} }] }, "done"], { name: "scripted:payer", by: "turn" })] });
});
afterAll(() => lab[Symbol.asyncDispose]());

const actions = async (target: string) => (await lab.capstan.audit.list({ target })).items.map(({ action, actor }) => `${actor} ${action}`);

it("decisions, cancels and promotions are there, with who did them; what was changed by nobody is not there twice", async () => {
  const approved = await lab.capstan.enqueue("payer", "x");
  const wait = await until("the approval", async () => (await approved.waits())[0]);
  await lab.capstan.waits.approve(wait.id, { actor: "ada" });
  await approved.result({ timeoutMs: 20_000 });
  expect(await approved.cancel("late", { actor: "ada" })).toBe(false);
  expect(await actions(approved.id)).toEqual(["ada approval.approve"]);
  const denied = await lab.capstan.enqueue("payer", "x");
  const open = await until("the approval", async () => (await denied.waits())[0]);
  await lab.db.query("select capstan.decide($1, 'deny')", [open.id]);
  await denied.result({ timeoutMs: 20_000 });
  // By SQL: the login.
  const { rows } = await lab.db.query<{ me: string }>("select session_user as me");
  expect(await actions(denied.id)).toEqual([`${rows[0]?.me} approval.deny`]);
  const cancelled = await lab.capstan.enqueue("payer", "x");
  await cancelled.cancel("no", { actor: "bob" });
  expect(await actions(cancelled.id)).toEqual(["bob run.cancel"]);
  expect((await lab.capstan.audit.list({ action: "agent.promote", target: "payer" })).items).toHaveLength(1);
});

it("an entry cannot be changed, removed or truncated", async () => {
  await lab.capstan.audit.record({ tenant: "t", actor: "eve", action: "transcript.read", target: "r" });
  for (const text of ["update capstan.audit_log set actor = 'nobody'", "delete from capstan.audit_log", "truncate capstan.audit_log"]) {
    await expect(lab.db.query(text), text).rejects.toThrow(/append-only/);
  }
});

it("an entry is there exactly if the transaction of its deed is", async () => {
  const client = await lab.db.connect();
  try {
    await client.query("begin");
    await recordAudit(client, same, { tenant: "t", actor: "ada", action: "quota.set", target: "undone", detail: { amount: 3 } });
    await client.query("rollback");
    await client.query("begin");
    await recordAudit(client, same, { tenant: "t", actor: "ada", action: "quota.set", target: "done", detail: { amount: 3 } });
    await client.query("commit");
  } finally {
    client.release();
  }
  expect(await actions("undone")).toEqual([]);
  expect((await lab.capstan.audit.list({ target: "done" })).items).toMatchObject([{ tenant: "t", actor: "ada", action: "quota.set", detail: { amount: 3 } }]);
});

it("pages go back through all entries, newest first, and filters narrow them", async () => {
  const audit = new AuditClient(lab.db, same);
  for (let i = 0; i < 25; i++) await audit.record({ tenant: i % 2 === 0 ? "even" : "odd", actor: "ada", action: `page.${i}`, target: `${i}` });
  const seen: string[] = [];
  for (let before: number | undefined; ;) {
    const page = await audit.list({ action: "page.*", limit: 10, ...(before === undefined ? {} : { before }) });
    seen.push(...page.items.map(({ target }) => target));
    if (page.next_before === undefined) break;
    before = page.next_before;
  }
  expect(seen).toEqual(Array.from({ length: 25 }, (_, i) => `${24 - i}`));
  expect((await audit.list({ tenant: "even", action: "page.*" })).items).toHaveLength(13);
  expect((await audit.list({ action: "page.2" })).items).toHaveLength(1);
  expect((await audit.list({ since: new Date(Date.now() + 60_000) })).items).toEqual([]);
  await expect(audit.list({ limit: 0 })).rejects.toMatchObject({ code: "ARGUMENT_INVALID" });
});

it("an export that goes on where the last one ended misses nothing that was being written meanwhile", async () => {
  const audit = new AuditClient(lab.db, same);
  const slow = await lab.db.connect();
  try {
    await slow.query("begin");
    // It has the smaller id, and is committed later.
    await recordAudit(slow, same, { tenant: "x", actor: "slow", action: "export.a", target: "slow" });
    await audit.record({ tenant: "x", actor: "quick", action: "export.b", target: "quick" });
    let isDone = false;
    const exported = collect(audit.export({ action: "export.*" })).finally(() => (isDone = true));
    // What comes behind the export's beginning is for the next one, however long this one waits.
    await until("the export to wait for the transaction", async () => {
      const { rows } = await lab.db.query(
        "select from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() and query like '%virtualtransaction = any%'",
      );
      return rows.length > 0;
    });
    await audit.record({ tenant: "x", actor: "late", action: "export.c", target: "late" });
    expect(isDone).toBe(false);
    await slow.query("commit");
    const first = await exported;
    expect(first.map(({ target }) => target)).toEqual(["slow", "quick"]);
    expect((await collect(audit.export({ action: "export.*", after: first.at(-1)?.id ?? 0 }))).map(({ target }) => target)).toEqual(["late"]);
  } finally {
    slow.release();
  }
});
