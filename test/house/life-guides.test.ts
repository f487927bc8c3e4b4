/** The guides about people and runs at work show examples that run, and say what the code has. */
import { spawn } from "node:child_process";
import pg from "pg";
import { afterAll, describe, expect, it } from "vitest";
import { z } from "zod";
import { agent } from "../../src/agents/agent.ts";
import { tool } from "../../src/agents/tool.ts";
import { scriptedModel } from "../../src/testing/scripted-model.ts";
import { startModelServer, type ModelServerOptions } from "../../src/testing/index.ts";
import { openLab, until } from "../engine/harness.ts";
import { createTestDatabase } from "../support/database.ts";
import { readRoot, root } from "./sources.ts";

const database = await createTestDatabase();
const db = new pg.Pool({ connectionString: database.url, max: 1 });
db.on("error", () => {});
afterAll(() => db.end());

/** Standard output of an example, against a server that speaks a vendor's protocol. */
async function outputOf(example: string, respond: ModelServerOptions["respond"]): Promise<string[]> {
  await using server = await startModelServer({ respond });
  const env = { DATABASE_URL: database.url, ANTHROPIC_API_KEY: "for-the-test", ANTHROPIC_BASE_URL: server.anthropicBaseUrl, CAPSTAN_MODEL: "anthropic:claude-sonnet-5" };
  const child = spawn(process.execPath, [`examples/${example}`], { cwd: root, env: { ...process.env, ...env }, stdio: ["ignore", "pipe", "pipe"] });
  let [stdout, stderr] = ["", ""];
  child.stdout.on("data", (chunk: Buffer) => (stdout += chunk.toString()));
  child.stderr.on("data", (chunk: Buffer) => (stderr += chunk.toString()));
  const exit = await new Promise<number | null>((resolve) => child.once("close", resolve));
  expect(exit, stderr).toBe(0);
  expect(server.refused).toEqual([]);
  return stdout.trimEnd().split("\n");
}

// Each example is a process with a worker of its own.
describe("the guides", { timeout: 120_000 }, () => {
  it.each(["approvals", "interactive", "spawning", "pausing"])("docs/%s.md shows its example", (name) => {
    const [, code] = /```ts\n([\s\S]*?)\n```/.exec(readRoot(`docs/${name}.md`)) ?? [];
    expect(code).toBe(
      readRoot(`examples/${name}.ts`)
        .replace(/"\.\.\/src\/index\.ts";.*/, '"capstan";')
        .trimEnd(),
    );
  });

  it("docs/approvals.md: a question and an approval with other arguments", async () => {
    const said = await outputOf("approvals.ts", ({ index }) => {
      if (index === 0) return { toolCalls: [{ name: "ask_human", arguments: { question: "Which order?" } }] };
      return index === 1 ? { toolCalls: [{ name: "refund", arguments: { order: "7", amount: 30 } }] } : { text: "You get 25 dollars back." };
    });
    expect(said).toEqual(['question: ask_human "Which order?"', 'approval: refund {"order":"7","amount":30}', "You get 25 dollars back."]);
    const { rows } = await db.query("select actor, payload -> 'reason' as reason from capstan.events where type = 'approval.decided'");
    expect(rows).toEqual([{ actor: "ann", reason: "less the voucher" }]);
  });

  it("docs/interactive.md: a turn that is stopped, and the next one", async () => {
    const said = await outputOf("interactive.ts", ({ index }) => (index === 0 ? { hang: true } : { text: "Saturday: the Forum. Sunday: home." }));
    expect(said).toEqual(["stopped: too long", "Saturday: the Forum. Sunday: home."]);
  });

  it("docs/spawning.md: three children, results in the order of the call", async () => {
    const texts = ["the tide tables", "a recipe for bread", "an old map"];
    const said = await outputOf("spawning.ts", ({ raw }) => {
      const own = texts.find((text) => raw.includes(`\\"text\\":\\"${text}\\"`) || raw.includes(`\\"text\\": \\"${text}\\"`));
      if (!raw.includes("Let a reader sum up")) return { text: `It is about ${own}.` };
      if (raw.includes("tool_result")) return { text: "All read." };
      return { toolCalls: [{ name: "agent", arguments: { op: "parallel_spawn", children: texts.map((text) => ({ agent: "reader", input: { text } })) } }] };
    });
    expect(said).toEqual(["the readers are at work", ...texts.map((text, i) => `${i}: It is about ${text}.`), "All read."]);
    expect((await db.query("select from capstan.runs where agent = 'reader' and depth = 1 and state = 'completed'")).rowCount).toBe(3);
  });

  it("docs/pausing.md: a tenant stands still, and goes on", async () => {
    const said = await outputOf("pausing.ts", () => ({ text: "Yes." }));
    expect(said).toEqual(["acme stands still, says ann: an invoice is open", "the run is queued", "Yes."]);
    const { rows } = await db.query("select action, actor from capstan.audit_log where target = 'acme' order by action");
    expect(rows).toEqual([
      { action: "pause", actor: "ann" },
      { action: "resume", actor: "ann" },
    ]);
  });

  it("examples/decide.sql approves what its rule allows, and nothing else", async () => {
    const refund = tool({ name: "refund", description: "Pays back.", input: z.object({ amount: z.number() }), approval: true, execute: ({ amount }) => amount });
    const model = scriptedModel([({ messages }) => ({ toolCalls: [{ name: "refund", input: { amount: JSON.stringify(messages[0]).includes("large") ? 51 : 50 } }] }), "Done."], {
      name: "scripted:refunds",
      by: "turn",
    });
    const clerk = agent({ name: "refunds", model: "scripted:refunds", instructions: "Work.", tools: [refund] });
    await using lab = await openLab(database.url, { agents: [clerk], models: [model] });
    const [small, large] = [await lab.capstan.enqueue(clerk, "small"), await lab.capstan.enqueue(clerk, "large")];
    for (const run of [small, large]) await until("the question", async () => (await run.status()).wait_reason === "approval");
    const sql = readRoot("examples/decide.sql");
    const [open, decided] = (await db.query(sql)) as unknown as pg.QueryResult[];
    expect(open?.rows).toHaveLength(2);
    expect(decided?.rows).toHaveLength(1);
    expect(await small.result({ timeoutMs: 20_000 })).toBe("Done.");
    expect(await large.status()).toMatchObject({ wait_reason: "approval" });
    await large.cancel();
    expect(readRoot("docs/approvals.md")).toContain(sql.trimEnd());
  });
});
