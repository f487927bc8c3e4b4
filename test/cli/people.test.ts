/** The commands by which people decide, answer, stop and pause: each call is a process, so several are asked at once. */
import { userInfo } from "node:os";
import { afterAll, afterEach, beforeAll, describe, expect, it } from "vitest";
import { z } from "zod";
import { agent } from "../../src/agents/agent.ts";
import { later } from "../../src/agents/deferred.ts";
import { askHumanTool, waitTool } from "../../src/agents/engine-tools.ts";
import { tool } from "../../src/agents/tool.ts";
import type { RunHandle } from "../../src/client/handle.ts";
import type { Model } from "../../src/engine/model-port.ts";
import { scriptedModel, type ScriptedStep } from "../../src/testing/scripted-model.ts";
import { openLab, payloads, until, type AnyAgent, type Lab } from "../engine/harness.ts";
import { createTestDatabase } from "../support/database.ts";
import { capstan, type CliOptions } from "./support.ts";

const database = await createTestDatabase();
const cli = (args: readonly string[], options: CliOptions = {}) => capstan(args, { ...options, env: { DATABASE_URL: database.url } });
const me = userInfo().username;
const nobody = "0190c0de-0000-7000-8000-000000000000";
/** The result of a command with --json. */
// oxlint-disable-next-line typescript/no-explicit-any
async function json(...args: string[]): Promise<any> {
  const { code, stdout, stderr } = await cli([...args, "--json"]);
  expect(code, stderr).toBe(0);
  return JSON.parse(stdout);
}

const models: Model[] = [];
const agents: AnyAgent[] = [];
function made(name: string, steps: readonly ScriptedStep[], spec: Partial<Parameters<typeof agent>[0]> = {}): AnyAgent {
  models.push(scriptedModel(steps, { name: `scripted:${name}`, by: "turn" }));
  const own = agent({ name, model: `scripted:${name}`, instructions: "Work.", ...spec }) as AnyAgent;
  agents.push(own);
  return own;
}

const paid: unknown[] = [];
const tokens: string[] = [];
const call = (name: string, input: object = {}) => ({ toolCalls: [{ name, input: input as never }] });
const lastOutput: ScriptedStep = (request) => {
  const last = request.messages.at(-1)?.content[0];
  return JSON.stringify(last?.type === "tool_result" ? last.output : undefined);
};
const pay = tool({
  name: "pay",
  description: "Pays.",
  input: z.object({ amount: z.number() }),
  approval: { expiresMs: 3_600_000 },
  execute: (input) => (paid.push(input), { paid: input.amount }),
});
const order = tool({ name: "order", description: "Orders.", input: z.object({}), execute: (_, { completionToken }) => (tokens.push(completionToken), later()) });
const payer = made("payer", [call("pay", { amount: 5 }), lastOutput], { tools: [pay] });
const asker = made("asker", [call("ask_human", { question: "Which \u001B[31mcolour?", options: ["red", "blue"] }), lastOutput], { tools: [askHumanTool()] });
const waiter = made("waiter", [call("wait", { signal: "go" }), lastOutput], { tools: [waitTool()] });
const orderer = made("orderer", [call("order"), lastOutput], { tools: [order] });
made("echo", ["done"]);
made("hanging", [{ hang: true }]);
const boss = made(
  "boss",
  [
    call("agent", {
      op: "parallel_spawn",
      children: [
        { agent: "echo", input: "a" },
        { agent: "hanging", input: "b" },
        { agent: "echo", input: "c" },
      ],
    }),
    "never",
  ],
  {
    spawn: { agents: ["*"], concurrency: 2 },
  },
);
const talker = made("talker", [{ hang: true }], { interactive: true });

let lab: Lab;
beforeAll(async () => {
  lab = await openLab(database.url, { agents, models });
});
afterAll(() => lab[Symbol.asyncDispose]());

const start = (own: AnyAgent, tenant = "default") => lab.capstan.enqueue(own.name, "begin", { tenant });
/** The id of what the run waits for, once it does. */
async function waiting(run: RunHandle, reason: string): Promise<string> {
  await until(`${reason} of ${run.id}`, async () => (await run.status()).wait_reason === reason);
  const [wait] = await run.waits();
  if (wait === undefined) throw new Error("the run waits for nothing");
  return wait.id;
}

describe("approvals", () => {
  it("are listed with what is asked, shown in full, and approved once, with other arguments, by a name", async () => {
    const run = await start(payer, "acme");
    const id = await waiting(run, "approval");
    const [table, shown, page] = await Promise.all([cli(["approvals", "list", "--tenant", "acme"]), cli(["approvals", "show", id]), cli(["runs", "show", run.id])]);
    expect(table.stdout).toMatch(new RegExp(`^${id} +approval +acme/payer +pay +\\{"amount":5\\} +\\d+m?s +in (59m|1h) +${run.id}$`, "m"));
    expect(shown.stdout).toMatch(/^expires .*\(in (59m|1h)\)$/m);
    expect(shown.stdout).toContain('"amount": 5');
    expect(page.stdout).toContain(`approval  pay  {"amount":5}`);
    expect(page.stdout).toContain(`capstan approvals approve ${id}`);

    const refused = await cli(["approvals", "approve", id, "--input", '{"amount": "three"}']);
    expect(refused).toMatchObject({ code: 1, stderr: expect.stringMatching(/^INPUT_INVALID: /) as string });
    expect(await json("approvals", "approve", id, "--input", '{"amount": 3}', "--reason", "enough")).toEqual({ id, outcome: "approved" });
    expect(JSON.parse((await run.result({ timeoutMs: 20_000 })) as string)).toMatchObject({ result: { paid: 3 } });
    expect(paid).toEqual([{ amount: 3 }]);
    expect((await lab.events(run.id)).find(({ type }) => type === "approval.decided")).toMatchObject({ actor: me, payload: { reason: "enough" } });

    const [again, after, none] = await Promise.all([cli(["approvals", "deny", id]), json("approvals", "show", id), cli(["approvals", "list", "--tenant", "acme"])]);
    expect(again).toMatchObject({ code: 1, stdout: "", stderr: expect.stringMatching(/^WAIT_DECIDED: .*already by /) as string });
    expect(after).toMatchObject({ answered_by: me, answer: { decision: "approve", input: { amount: 3 } }, settled_at: expect.any(String) as string });
    expect(none).toEqual({ code: 0, stdout: "", stderr: "nobody is waited for\n" });
  });

  it("are denied with a reason that the model reads; questions are answered and declined", async () => {
    const [denied, answered, declined] = [await start(payer), await start(asker), await start(asker)];
    const ids = await Promise.all([denied, answered, declined].map((run) => waiting(run, "approval")));
    const [no = "", which = "", none = ""] = ids;
    const [question] = await Promise.all([cli(["approvals", "show", which]), json("approvals", "deny", no, "--reason", "too much"), json("approvals", "decline", none)]);
    expect(question.stdout).toMatch(/^Which colour\?\n {2}- red\n {2}- blue$/m);
    await json("approvals", "answer", which, "blue");
    const outputs = await Promise.all([denied, answered, declined].map((run) => run.result({ timeoutMs: 20_000 })));
    expect(outputs).toEqual([expect.stringMatching(/APPROVAL_DENIED.*too much/), '"blue"', expect.stringContaining("ANSWER_DECLINED")]);
    expect(paid).toHaveLength(1);
  });

  it("that are not there are refused by name", async () => {
    const [unknown, strange] = await Promise.all([cli(["approvals", "approve", nobody]), cli(["approvals", "show", "foo"])]);
    expect(unknown).toMatchObject({ code: 1, stdout: "", stderr: expect.stringMatching(/^WAIT_UNKNOWN: /) as string });
    expect(strange).toMatchObject({ code: 2, stdout: "", stderr: expect.stringMatching(/^USAGE: /) as string });
  });
});

describe("runs", () => {
  it("get the signal that they wait for, and the results of calls that others complete", async () => {
    const [signalled, completed, failed] = [await start(waiter), await start(orderer), await start(orderer)];
    await Promise.all([signalled, completed, failed].map((run) => waiting(run, "signal")));
    const tokenOf = (run: RunHandle) => tokens.find((token) => token.startsWith(run.id)) ?? "";
    const every = await json("approvals", "list", "--all-kinds", "--run", signalled.id);
    expect(every.waits).toMatchObject([{ kind: "signal", name: "go", run_id: signalled.id }]);
    const [first, second] = await Promise.all([
      json("runs", "signal", signalled.id, "go", '{"at": 7}', "--dedupe-key", "once"),
      json("runs", "complete", tokenOf(completed), '{"shipped": true}'),
      json("runs", "complete", tokenOf(failed), "--fail", "out of stock"),
    ]);
    expect([first.run_id, second.outcome]).toEqual([signalled.id, "completed"]);
    expect(await Promise.all([signalled, completed, failed].map((run) => run.result({ timeoutMs: 20_000 })))).toEqual([
      '{"at":7}',
      '{"shipped":true}',
      expect.stringContaining("out of stock"),
    ]);
    expect((await json("runs", "signal", signalled.id, "go", "--dedupe-key", "once")).signal_id).toBe(first.signal_id);
  });

  it("are stopped, and refuse it when there is nothing to stop", async () => {
    const run = await start(talker);
    await until("the call", async () => payloads(await lab.events(run.id), "model.requested").length === 1);
    await json("runs", "stop", run.id, "--reason", "wrong folder");
    await until("the stop", async () => (await run.status()).wait_reason === "input");
    expect((await lab.events(run.id)).find(({ type }) => type === "turn.stopped")).toMatchObject({ actor: me, payload: { reason: "wrong folder" } });
    expect(await cli(["runs", "stop", run.id])).toMatchObject({ code: 1, stderr: expect.stringMatching(/^NOT_MID_TURN: /) as string });
  });

  it("are shown with those that they started, and what all used", async () => {
    const run = await start(boss);
    await until("the end of two", async () => {
      const { rows } = await lab.db.query("select from capstan.runs where parent_run_id = $1 and state = 'completed'", [run.id]);
      return rows.length === 2;
    });
    const [tree, lines, page] = await Promise.all([json("runs", "tree", run.id), cli(["runs", "tree", run.id]), cli(["runs", "show", run.id])]);
    expect(tree.root).toMatchObject({ id: run.id, state: "waiting", wait_reason: "children" });
    expect(tree.root.children).toMatchObject([
      { agent: "echo", state: "completed", child_index: 0 },
      { agent: "hanging", state: "running" },
      { agent: "echo", state: "completed", child_index: 2 },
    ]);
    const { rows } = await lab.db.query<{ n: number }>("select sum(input_tokens)::int as n from capstan.runs where id = $1 or parent_run_id = $1", [run.id]);
    expect(tree).toMatchObject({ runs: 4, is_cut: false, sum: { input_tokens: rows[0]?.n } });
    expect(lines.stdout).toMatch(/^├─ \S+ {2}echo {2}completed {2}turn 1, took .*\n├─ \S+ {2}hanging {2}running {2}turn 1 .*\n└─ \S+ {2}echo {2}completed/m);
    expect(page.stdout).toMatch(/^children {2}agent {2}1 still at work/m);
    const child = await cli(["runs", "show", tree.root.children[0].id]);
    expect(child.stdout).toMatch(new RegExp(`^started by +${run.id} \\(call t1\\.0\\)$`, "m"));
    await run.cancel();
  });
});

describe("pause", () => {
  // Also after a failure: the bystander has to run yet.
  afterEach(() => lab.capstan.pauses.resume());
  it("of a run, a tenant and everything is said where one looks, by whom, and how to go on", async () => {
    const [one, other] = [await lab.capstan.enqueue("echo", "x", { tenant: "still", runAt: new Date(Date.now() + 3_600_000) }), await start(waiter, "still")];
    await waiting(other, "signal");
    expect(await json("runs", "pause", one.id)).toEqual({ run_id: one.id, paused: true, changed: true });
    await Promise.all([json("pause", "--tenant", "still"), json("pause", "--reason", "an outage")]);
    const [again, list, page, doctor] = await Promise.all([cli(["pause"]), cli(["runs", "list", "--tenant", "still"]), cli(["runs", "show", one.id]), cli(["doctor", "--json"])]);
    expect(again.stdout).toBe("everything  was paused already\n");
    expect(list.stdout).toMatch(/queued \(paused\)/);
    expect(list.stderr).toMatch(new RegExp(`^everything is paused since .*, by ${me}: an outage; to go on: capstan resume$`, "m"));
    expect(page.stdout).toMatch(/^paused +by itself \(capstan runs resume .*\); everything .*; tenant still is paused .*\(capstan resume --tenant still\)$/m);
    // The test's server is fast and forgets (fsync): doctor calls that an error.
    const { findings: all } = JSON.parse(doctor.stdout) as { readonly findings: readonly { readonly check: string }[] };
    const findings = all.filter(({ check }) => check.startsWith("paused"));
    expect(findings).toMatchObject([
      { level: "warning", found: expect.stringMatching(/^everything is paused since .*: an outage$/) as string, do: "capstan resume" },
      { level: "warning", found: expect.stringMatching(/^tenant still is paused/) as string, do: "capstan resume --tenant still" },
      { level: "info", check: "paused_runs", do: expect.stringContaining(`capstan runs resume ${one.id}`) as string },
    ]);

    const resumed = await json("resume");
    expect(resumed).toMatchObject({ paused: false, changed: true, still_paused: [{ tenant: "still" }] });
    expect(await Promise.all([json("resume", "--tenant", "still"), json("runs", "resume", one.id)])).toMatchObject([{ changed: true }, { paused: false, changed: true }]);
    await other.signal("go");
    await other.result({ timeoutMs: 20_000 });
  });
});
