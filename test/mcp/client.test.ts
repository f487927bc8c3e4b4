import { rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { agent } from "../../src/agents/agent.ts";
import { scriptedModel, type ScriptedStep } from "../../src/testing/scripted-model.ts";
import { openLab, payloads, until, type Lab, type LabOptions } from "../engine/harness.ts";
import { createTestDatabase } from "../support/database.ts";
import { callsThenTell } from "./steps.ts";
import { isRunning, testServer } from "./support.ts";
import { PICTURE } from "./tool-server.ts";

const database = await createTestDatabase();

let labs = 0;
/** Agents of a test have names of their own: what is promoted in one must not be there in the next. */
function clerk(more: Partial<Parameters<typeof agent>[0]> = {}) {
  return agent({ name: `clerk-${++labs}`, model: "scripted:clerk", instructions: "Use the tools.", mcp: ["notes"], ...more });
}

async function lab(steps: readonly ScriptedStep[], options: Omit<LabOptions, "models">): Promise<Lab> {
  return await openLab(database.url, { ...options, models: [scriptedModel(steps, { name: "scripted:clerk", by: "turn" })] });
}

const answer = async (open: Lab, runId: string): Promise<unknown> => JSON.parse(String(await open.capstan.run(runId).result({ timeoutMs: 20_000 })));

describe("tools of an MCP server", () => {
  it("are the agent's: in its definition, called with their arguments, tainted with their server", async () => {
    const server = testServer();
    const own = clerk();
    await using open = await lab(callsThenTell(["mcp__notes__look", { text: "tides" }], ["mcp__notes__create", { text: "a" }], ["mcp__notes__structured"]), {
      agents: [own],
      mcp: { notes: server.spec },
    });
    const run = await open.run(own, "go");
    expect(await answer(open, run.id)).toEqual(["look: tides", "create: a", { n: 1 }]);
    expect(server.calls().map(({ tool, text }) => [tool, text])).toEqual([
      ["look", "tides"],
      ["create", "a"],
      ["structured", undefined],
    ]);
    expect(run.events.filter(({ type }) => type === "tool.completed").map(({ origin }) => origin)).toEqual(["mcp:notes", "mcp:notes", "mcp:notes"]);
    const { definition } = await open.capstan.agents.get(own.name);
    const effects = Object.fromEntries(definition.tools.map(({ name, effect }) => [name, effect]));
    expect(effects).toMatchObject({ mcp__notes__look: "read", mcp__notes__put: "idempotent", mcp__notes__create: "once" });
    expect(Object.keys(effects)).toContainEqual(expect.stringMatching(/^mcp__notes__odd_name_of_a_tool_[0-9a-f]{8}$/));
    expect(await open.intact(run.id)).toBeDefined();
  });

  it("that give pictures and resources: bytes go to blobs, the model sees what there is", async () => {
    const server = testServer();
    const own = clerk();
    await using open = await lab(callsThenTell(["mcp__notes__picture"], ["mcp__notes__fail", { text: "x" }]), { agents: [own], mcp: { notes: server.spec } });
    const run = await open.run(own, "go");
    const [picture, failure] = (await answer(open, run.id)) as [{ content: { sha256: string }[] }, unknown];
    const bytes = Buffer.from(PICTURE, "base64");
    expect(picture).toEqual({
      content: [
        { type: "text", text: "a dot" },
        { type: "file", media_type: "image/png", size_bytes: bytes.length, sha256: expect.stringMatching(/^[0-9a-f]{64}$/) },
        { type: "resource", uri: "note://1", media_type: "text/plain", text: "in the note" },
      ],
    });
    const { rows } = await open.db.query<{ n: number }>("select count(*)::int as n from capstan.blob_refs where run_id = $1 and sha256 = $2", [run.id, picture.content[1]?.sha256]);
    expect(rows[0]?.n).toBe(1);
    expect(JSON.stringify(failure)).toContain("no such note: x");
    expect(payloads(run.events, "tool.failed")[0].error.code).toBe("MCP_TOOL_ERROR");
  });

  it("are those that the agent names, under the grants that it has", async () => {
    const server = testServer();
    const own = clerk({ mcp: [{ server: "notes", tools: ["l*", "create"] }], grants: ["model:*", "mcp:notes/l*"] });
    await using open = await lab(callsThenTell(["mcp__notes__look"], ["mcp__notes__create"], ["mcp__notes__put"]), { agents: [own], mcp: { notes: server.spec } });
    const run = await open.run(own, "go");
    const { definition } = await open.capstan.agents.get(own.name);
    expect(definition.tools.map(({ name }) => name)).toEqual(["mcp__notes__create", "mcp__notes__linger", "mcp__notes__look"]);
    expect(Object.fromEntries(payloads(run.events, "tool.failed").map(({ name, error }) => [name, error.code]))).toEqual({
      mcp__notes__create: "GRANT_DENIED",
      mcp__notes__put: "TOOL_UNKNOWN",
    });
    expect(server.calls().map(({ tool }) => tool)).toEqual(["look"]);
  });

  it("are none to a child whose parent may not hand them down", async () => {
    const server = testServer();
    const child = clerk();
    const parent = agent({
      name: `boss-${labs}`,
      model: "scripted:boss",
      instructions: "Delegate.",
      spawn: { agents: [child.name] },
      grants: ["model:*", "tool:*", "agent:*", "mcp:notes/look"],
    });
    const boss = scriptedModel([{ toolCalls: [{ id: "s", name: "agent", input: { op: "spawn", agent: child.name, input: "go" } }] }, "done"], {
      name: "scripted:boss",
      by: "turn",
    });
    const clerkModel = scriptedModel(callsThenTell(["mcp__notes__look"], ["mcp__notes__create"]), { name: "scripted:clerk", by: "turn" });
    await using open = await openLab(database.url, { agents: [parent, child], models: [boss, clerkModel], mcp: { notes: server.spec } });
    expect(await (await open.capstan.enqueue(parent, "go")).result({ timeoutMs: 20_000 })).toBe("done");
    expect(server.calls().map(({ tool }) => tool)).toEqual(["look"]);
  });
});

describe("a server that", () => {
  it("hangs costs its own call its time, is told, and hurts no other", async () => {
    const server = testServer({ timeoutMs: 1_500 });
    const other = testServer();
    const own = clerk({ mcp: ["notes", "other"] });
    await using open = await lab(callsThenTell(["mcp__notes__hang"], ["mcp__notes__look", { text: "1" }], ["mcp__other__look", { text: "2" }]), {
      agents: [own],
      mcp: { notes: server.spec, other: other.spec },
    });
    const run = await open.run(own, "go");
    expect(payloads(run.events, "tool.failed").map(({ name, error }) => [name, error.code])).toEqual([["mcp__notes__hang", "TOOL_TIMEOUT"]]);
    expect(
      payloads(run.events, "tool.completed")
        .map(({ output }) => output)
        .toSorted((a, b) => String(a).localeCompare(String(b))),
    ).toEqual(["look: 1", "look: 2"]);
    await until("the cancellation", () => server.calls().some(({ cancelled }) => cancelled));
    // It answers a ping, so it is kept.
    expect(new Set(server.calls().map(({ pid }) => pid)).size).toBe(1);
  });

  it.each(["flood", "chatter"])("sends 100 MB (%s) is cut off: its call fails, the process stays small, the next call finds it begun anew", async (tool) => {
    const server = testServer();
    const own = clerk();
    const steps: ScriptedStep[] = [
      { toolCalls: [{ id: "f", name: `mcp__notes__${tool}`, input: {} }] },
      { toolCalls: [{ id: "l", name: "mcp__notes__look", input: { text: "on" } }] },
      "done",
    ];
    await using open = await lab(steps, { agents: [own], mcp: { notes: server.spec } });
    const before = process.memoryUsage().rss;
    const run = await open.run(own, "go");
    expect(run.status.state).toBe("completed");
    const [failed] = payloads(run.events, "tool.failed");
    expect([failed.error.code, failed.error.message]).toEqual(["MCP_MESSAGE_TOO_LARGE", expect.stringContaining("more than 8388608 bytes")]);
    expect(payloads(run.events, "tool.completed").map(({ output }) => output)).toEqual(["look: on"]);
    expect(process.memoryUsage().rss - before).toBeLessThan(250 * 1024 * 1024);
  });

  it("prints what is no JSON is heard all the same", async () => {
    const server = testServer();
    const own = clerk();
    await using open = await lab(callsThenTell(["mcp__notes__garbage"]), { agents: [own], mcp: { notes: server.spec } });
    const run = await open.run(own, "go");
    expect(await answer(open, run.id)).toEqual(["after the garbage"]);
    expect(open.log.some(({ level, message }) => level === "warn" && message.includes("does not keep to the protocol"))).toBe(true);
    expect(open.log.some(({ fields }) => String(fields["line"]).includes("tool server"))).toBe(true);
  });

  it("dies in a call with side effects is not asked twice, and the model is told that nobody knows", async () => {
    const server = testServer();
    const own = clerk();
    const steps: ScriptedStep[] = [
      { toolCalls: [{ id: "d", name: "mcp__notes__die_once", input: {} }] },
      { toolCalls: [{ id: "l", name: "mcp__notes__look", input: { text: "on" } }] },
      "done",
    ];
    await using open = await lab(steps, { agents: [own], mcp: { notes: server.spec } });
    const run = await open.run(own, "go");
    const [failed] = payloads(run.events, "tool.failed");
    expect([failed.error.code, failed.error.message]).toEqual(["MCP_CONNECTION_LOST", expect.stringMatching(/exited with code 3.*not known/)]);
    expect(server.calls().map(({ tool }) => tool)).toEqual(["die_once", "look"]);
    expect(run.status.state).toBe("completed");
  });

  it("dies in a call that reads is asked again, a few times", async () => {
    const server = testServer();
    const own = clerk();
    await using open = await lab(callsThenTell(["mcp__notes__die"]), { agents: [own], mcp: { notes: server.spec } });
    const run = await open.run(own, "go");
    expect(payloads(run.events, "tool.failed").map(({ error }) => error.code)).toEqual(["MCP_CONNECTION_LOST"]);
    expect(server.calls().map(({ tool }) => tool)).toEqual(["die", "die", "die"]);
  });

  it("changes its tools: a run goes on with its own definition and reads of the tool that is gone; the new list is stored, not promoted", async () => {
    const server = testServer();
    const own = clerk();
    const steps: ScriptedStep[] = [
      { toolCalls: [{ id: "c", name: "mcp__notes__change", input: {} }] },
      async () => {
        await until("the new list", () => definitionsOf(own.name).then((n) => n === 2));
        return { toolCalls: [{ id: "l", name: "mcp__notes__look", input: {} }] };
      },
      "done",
    ];
    await using open = await lab(steps, { agents: [own], mcp: { notes: server.spec } });
    const definitionsOf = async (name: string): Promise<number> =>
      (await open.db.query<{ n: number }>("select count(*)::int as n from capstan.agent_definitions where name = $1", [name])).rows[0]?.n ?? 0;
    const before = (await open.capstan.agents.get(own.name)).sha;
    const run = await open.run(own, "go");
    const [failed] = payloads(run.events, "tool.failed");
    expect([failed.error.code, failed.error.message]).toEqual(["MCP_TOOL_GONE", expect.stringContaining("mcp__notes__look_closer")]);
    expect(run.status.state).toBe("completed");
    expect((await open.capstan.agents.get(own.name)).sha).toBe(before);
    // What is enqueued with the agent itself gets what its servers offer now.
    const next = await open.capstan.enqueue(own, "go");
    const { rows } = await open.db.query<{ tools: string }>(
      "select d.definition -> 'tools' #>> '{}' as tools from capstan.runs r join capstan.agent_definitions d on d.sha = r.definition_sha where r.id = $1",
      [next.id],
    );
    expect(rows[0]?.tools).toContain("look_closer");
    await next.cancel();
  });

  it("gives a tool side effects that the run's definition does not know of is not asked to use it", async () => {
    const server = testServer();
    const own = clerk();
    const steps: ScriptedStep[] = [
      { toolCalls: [{ id: "c", name: "mcp__notes__turn_dangerous", input: {} }] },
      async () => {
        await until("the new list", () => definitionsOf(own.name).then((n) => n === 2));
        return { toolCalls: [{ id: "l", name: "mcp__notes__look", input: {} }] };
      },
      "done",
    ];
    await using open = await lab(steps, { agents: [own], mcp: { notes: server.spec } });
    const definitionsOf = async (name: string): Promise<number> =>
      (await open.db.query<{ n: number }>("select count(*)::int as n from capstan.agent_definitions where name = $1", [name])).rows[0]?.n ?? 0;
    const run = await open.run(own, "go");
    expect(payloads(run.events, "tool.failed").map(({ error }) => [error.code, error.message.includes("side effects")])).toEqual([["MCP_TOOL_GONE", true]]);
    expect(server.calls().map(({ tool }) => tool)).toEqual(["turn_dangerous"]);
  });

  it("is late holds up its agent's runs alone, which say why and go on when it comes", async () => {
    const folder = testServer().folder;
    const go = join(folder, "go");
    const server = testServer({ env: { MCP_START_AFTER: go }, connectTimeoutMs: 5_000 });
    const own = clerk();
    await using open = await lab(callsThenTell(["mcp__notes__look", { text: "late" }]), { agents: [own], mcp: { notes: server.spec } });
    const handle = await open.capstan.enqueue(own, "go");
    await until("the run to wait", async () => (await handle.status()).wait_reason === "agent_missing");
    const [parked] = payloads(await open.events(handle.id), "run.parked");
    expect(parked.detail.missing).toMatch(/^MCP server notes \(it (was not ready within 5000 ms|has not been reached yet)\) cannot be reached/);
    expect((await open.run("bystander", "how are you?")).status.state).toBe("completed");
    writeFileSync(go, "");
    expect(await answer(open, handle.id)).toEqual(["look: late"]);
    rmSync(go);
  });

  it("does not end by itself is ended with its worker", async () => {
    const server = testServer();
    const own = clerk();
    {
      await using open = await lab(callsThenTell(["mcp__notes__linger"]), { agents: [own], mcp: { notes: server.spec } });
      await open.run(own, "go");
    }
    const [call] = server.calls();
    expect(call?.pid).toBeGreaterThan(1);
    expect(isRunning(call?.pid ?? 0)).toBe(false);
  });
});

it("an agent of a server that is not configured is refused at the worker's start", async () => {
  const own = clerk({ mcp: ["elsewhere"] });
  await using open = await lab([], { agents: [own], idle: true });
  await expect(open.capstan.startWorker()).rejects.toThrow(/names elsewhere; configured with createCapstan\(\{ mcp \}\) are none/);
});
