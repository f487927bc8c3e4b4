import { randomUUID } from "node:crypto";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { afterAll, describe, expect, it } from "vitest";
import { z } from "zod";
import { agent } from "../../src/agents/agent.ts";
import { tool } from "../../src/agents/tool.ts";
import { TokensClient, type TokenScope } from "../../src/client/tokens.ts";
import { defaultNames, namedSql } from "../../src/store/names.ts";
import { scriptedModel } from "../../src/testing/scripted-model.ts";
import { openLab, until } from "../engine/harness.ts";
import { createTestDatabase } from "../support/database.ts";
import { isRunning, makeFolder } from "./support.ts";

const cli = fileURLToPath(new URL("../../src/cli.ts", import.meta.url));
const database = await createTestDatabase();

const talker = agent({ name: "talker", model: "scripted:talker", instructions: "Talk.", interactive: true });
const payer = agent({
  name: "payer",
  model: "scripted:payer",
  instructions: "Pay.",
  tools: [tool({ name: "pay", description: "Pays.", input: z.object({ amount: z.number() }), approval: true, execute: ({ amount }) => `paid ${amount}` })],
});
const writer = agent({ name: "writer", model: "scripted:writer", instructions: "Write." });
const models = [
  scriptedModel(["Hello.", "You said more."], { name: "scripted:talker", by: "turn" }),
  scriptedModel([{ toolCalls: [{ id: "p", name: "pay", input: { amount: 100 } }] }, ({ messages }) => JSON.stringify(messages.at(-1)?.content)], {
    name: "scripted:payer",
    by: "turn",
  }),
  scriptedModel(["w".repeat(200_000)], { name: "scripted:writer", by: "turn" }),
];
const lab = await openLab(database.url, { agents: [talker, payer, writer], models });
afterAll(() => lab[Symbol.asyncDispose]());

interface Assistant extends AsyncDisposable {
  readonly client: Client;
  readonly pid: number;
  /** The answer of a tool, or the error that it gave. */
  ask(name: string, input?: object): Promise<Answer>;
}

// oxlint-disable-next-line typescript/no-explicit-any
type Answer = any;

/** `capstan mcp` as a child process, driven by the SDK's own client. */
async function assistant({ args = [], env = {} }: { readonly args?: readonly string[]; readonly env?: Record<string, string> } = {}): Promise<Assistant> {
  const transport = new StdioClientTransport({
    command: process.execPath,
    args: [cli, "mcp", ...args],
    env: { DATABASE_URL: database.url, NODE_NO_WARNINGS: "1", ...env },
    stderr: "ignore",
  });
  const client = new Client({ name: "assistant", version: "1" });
  await client.connect(transport);
  return {
    client,
    pid: transport.pid ?? 0,
    async ask(name, input = {}) {
      const { content, isError } = (await client.callTool({ name, arguments: input as Record<string, unknown> })) as { content: { text: string }[]; isError?: boolean };
      const value = JSON.parse(content[0]?.text ?? "null");
      return isError === true ? { error: value } : value;
    },
    [Symbol.asyncDispose]: () => client.close(),
  };
}

async function makeToken({ tenant = "acme", scopes }: { readonly tenant?: string; readonly scopes: readonly TokenScope[] }) {
  const tokens = new TokensClient(lab.db, namedSql(defaultNames));
  return await tokens.create({ name: `helper ${randomUUID()}`, tenant, subject: "ada", scopes, expiresAt: new Date(Date.now() + 3_600_000) });
}

describe("capstan mcp", () => {
  it("starts a run once, follows it until it waits, steers it, and cancels it", async () => {
    await using me = await assistant();
    const { agents } = await me.ask("list_agents");
    expect(agents).toContainEqual({ name: "talker", model: "scripted:talker", tools: 0, retired: false, workers: 1 });
    const started = await me.ask("enqueue_run", { agent: "talker", input: "hi", idempotency_key: "k1", labels: ["from-mcp"] });
    expect(started).toMatchObject({ agent: "talker", tenant: "default" });
    expect((await me.ask("enqueue_run", { agent: "talker", input: "hi", idempotency_key: "k1", labels: ["from-mcp"] })).run_id).toBe(started.run_id);
    const { run_id } = started;
    const first = await me.ask("follow_run", { run_id, wait_ms: 20_000 });
    expect(first).toMatchObject({ state: "waiting", wait_reason: "input", has_more: false });
    expect(first.events.map(({ type }: { type: string }) => type)).toEqual(["run.created", "model.requested", "model.responded", "run.parked"]);
    await me.ask("send_input", { run_id, content: "more", dedupe_key: "d1" });
    const second = await me.ask("follow_run", { run_id, after: first.next_after, wait_ms: 20_000 });
    expect(second).toMatchObject({ state: "waiting", wait_reason: "input" });
    expect(JSON.stringify(second.events)).toContain("You said more.");
    expect(second.events[0].seq).toBe(first.next_after + 1);
    expect(await me.ask("list_runs", { agent: "talker", state: "waiting" })).toMatchObject({ runs: [{ run_id }], next_cursor: null });
    expect(await me.ask("stop_run", { run_id })).toMatchObject({ error: { code: "NOT_MID_TURN" } });
    expect(await me.ask("compact_run", { run_id })).toMatchObject({ run_id, applied: "noop" });
    expect(await me.ask("cancel_run", { run_id, reason: "enough" })).toEqual({ run_id, cancelled: true });
    expect(await me.ask("get_run", { run_id })).toMatchObject({ state: "cancelled", waits: [] });
    expect(await me.ask("send_input", { run_id, content: "late" })).toMatchObject({ error: { code: "RUN_FINISHED" } });
  });

  it("shows what waits for a person, and decides it, once", async () => {
    await using me = await assistant();
    const { run_id } = await me.ask("enqueue_run", { agent: "payer", input: "pay" });
    expect(await me.ask("follow_run", { run_id, wait_ms: 20_000 })).toMatchObject({ state: "waiting", wait_reason: "approval" });
    expect(await me.ask("list_approvals", { run_id })).toMatchObject({ waits: [{ run_id, call_id: "p", kind: "approval", name: "pay", detail: { input: { amount: 100 } } }] });
    expect(await me.ask("decide_approval", { run_id, call_id: "p", decision: "approve", input: { amount: "3" } })).toMatchObject({ error: { code: "INPUT_INVALID" } });
    await me.ask("decide_approval", { run_id, call_id: "p", decision: "approve", input: { amount: 3 } });
    const done = await me.ask("follow_run", { run_id, wait_ms: 20_000 });
    expect(done.state).toBe("completed");
    expect(done.output).toContain("paid 3");
    expect(await me.ask("decide_approval", { run_id, call_id: "p", decision: "deny" })).toMatchObject({ error: { code: "WAIT_UNKNOWN" } });
  });

  it("bounds what it answers", async () => {
    await using me = await assistant();
    const { run_id } = await me.ask("enqueue_run", { agent: "writer", input: "write" });
    const look = await me.ask("follow_run", { run_id, wait_ms: 20_000 });
    expect(look).toMatchObject({ state: "completed", output: { truncated: true } });
    expect(JSON.stringify(look).length).toBeLessThan(60_000);
    expect((await me.ask("follow_run", { run_id, limit: 1 })).has_more).toBe(true);
  });

  it("refuses what does not fit with field and reason, and what does not exist", async () => {
    await using me = await assistant();
    expect(await me.ask("enqueue_run", { agent: "talker", input: 1, prority: 3, priority: 5_000 })).toMatchObject({
      error: {
        code: "ARGUMENT_INVALID",
        details: {
          issues: expect.arrayContaining([
            { path: "prority", message: "is not a known field" },
            { path: "priority", message: expect.stringContaining("from -1000 to 1000") },
          ]),
        },
      },
    });
    expect(await me.ask("get_run", { run_id: randomUUID() })).toMatchObject({ error: { code: "RUN_MISSING" } });
    expect(await me.ask("get_run", { run_id: "x" })).toMatchObject({ error: { code: "ARGUMENT_INVALID" } });
    expect(await me.ask("rm_rf")).toMatchObject({ error: { code: "TOOL_UNKNOWN" } });
  });

  it("ends with its input, and when its client is gone", async () => {
    const me = await assistant();
    await me.client.close();
    await until("the process to end", () => !isRunning(me.pid));
    expect(isRunning(me.pid)).toBe(false);
  });
});

describe("capstan mcp with a token", () => {
  it("shows and allows what its scopes allow, in its tenant alone, and names it in the journal", async () => {
    const { id, name, token } = await makeToken({ scopes: ["runs:create", "runs:read"] });
    const file = join(makeFolder(), "token");
    writeFileSync(file, `${token}\n`);
    await using me = await assistant({ args: ["--token-file", file] });
    expect((await me.client.listTools()).tools.map((each) => each.name)).toEqual([
      "list_agents",
      "list_runs",
      "get_run",
      "follow_run",
      "list_approvals",
      "enqueue_run",
      "compact_run",
    ]);
    const { run_id, tenant } = await me.ask("enqueue_run", { agent: "talker", input: "hi" });
    expect(tenant).toBe("acme");
    const { events } = await me.ask("follow_run", { run_id, limit: 1 });
    expect(events[0].actor).toBe(`token:${name}`);
    const audit = await lab.db.query("select actor, action, token_id from capstan.audit_log where target = $1", [run_id]);
    expect(audit.rows).toEqual([{ actor: `token:${name}`, action: "run.create", token_id: id }]);
    const { rows } = await lab.db.query("select subject from capstan.runs where id = $1", [run_id]);
    expect(rows).toEqual([{ subject: "ada" }]);
    expect(await me.ask("cancel_run", { run_id })).toMatchObject({ error: { code: "FORBIDDEN", message: expect.stringContaining("runs:steer") } });

    const foreign = await makeToken({ tenant: "other", scopes: ["admin"] });
    await using other = await assistant({ env: { CAPSTAN_TOKEN: foreign.token } });
    for (const [asked, more] of [
      ["get_run", {}],
      ["follow_run", {}],
      ["send_input", { content: "x" }],
      ["stop_run", {}],
      ["cancel_run", {}],
      ["compact_run", {}],
      ["list_approvals", {}],
      ["decide_approval", { call_id: "p", decision: "deny" }],
      ["answer_question", { call_id: "p", answer: 1 }],
    ] as const)
      expect(await other.ask(asked, { run_id, ...more }), asked).toMatchObject({ error: { code: "RUN_MISSING" } });
    expect(await other.ask("list_runs")).toEqual({ runs: [], next_cursor: null });
  });

  it("stops at once when the token is revoked, and does not start with one that is not good", async () => {
    const { id, token } = await makeToken({ scopes: ["admin"] });
    await using me = await assistant({ env: { CAPSTAN_TOKEN: token } });
    expect(await me.ask("list_runs")).toMatchObject({ next_cursor: null });
    await lab.db.query("update capstan.api_tokens set revoked_at = capstan.now() where id = $1", [id]);
    expect(await me.ask("list_runs")).toMatchObject({ error: { code: "UNAUTHORIZED" } });
    const expired = await makeToken({ scopes: ["admin"] });
    await lab.db.query("update capstan.api_tokens set expires_at = capstan.now() where id = $1", [expired.id]);
    for (const bad of ["nonsense", expired.token]) await expect(assistant({ env: { CAPSTAN_TOKEN: bad } })).rejects.toThrow("Connection closed");
  });
});
