import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, it } from "vitest";
import { agent } from "../../src/agents/agent.ts";
import { scriptedModel, type ScriptedStep } from "../../src/testing/scripted-model.ts";
import { openLab, payloads, type Lab } from "../engine/harness.ts";
import { createTestDatabase } from "../support/database.ts";
import { startHttpToolServer } from "./http-tool-server.ts";
import { callsThenTell } from "./steps.ts";
import { makeFolder } from "./support.ts";
import type { NotedCall } from "./tool-server.ts";

const database = await createTestDatabase();
const notes = join(makeFolder(), "calls");
const calls = (): NotedCall[] => (existsSync(notes) ? readFileSync(notes, "utf8").trimEnd().split("\n") : []).map((line) => JSON.parse(line) as NotedCall);

let labs = 0;
async function lab(url: string, steps: readonly ScriptedStep[]): Promise<{ open: Lab; own: ReturnType<typeof agent> }> {
  const own = agent({ name: `caller-${++labs}`, model: "scripted:caller", instructions: "Use the tools.", mcp: ["web"] });
  const open = await openLab(database.url, {
    agents: [own],
    models: [scriptedModel(steps, { name: "scripted:caller", by: "turn" })],
    mcp: { web: { url, headers: { authorization: "Bearer s3cret" }, allowPrivate: true, connectTimeoutMs: 3_000 } },
  });
  return { open, own };
}

it("calls a server over streamable HTTP with its headers; a flood costs its own call and no other", async () => {
  await using server = await startHttpToolServer(notes);
  const { open, own } = await lab(server.url, callsThenTell(["mcp__web__look", { text: "1" }], ["mcp__web__flood"], ["mcp__web__put", { text: "2" }]));
  await using _ = open;
  const run = await open.run(own, "go");
  expect(
    payloads(run.events, "tool.completed")
      .map(({ output }) => output)
      .toSorted((a, b) => String(a).localeCompare(String(b))),
  ).toEqual(["look: 1", "put: 2"]);
  const [failed] = payloads(run.events, "tool.failed");
  expect([failed.name, failed.error.code, failed.error.message]).toEqual(["mcp__web__flood", "MCP_MESSAGE_TOO_LARGE", expect.stringContaining("more than 8388608 bytes")]);
  expect(server.lastHeaders()["authorization"]).toBe("Bearer s3cret");
});

it("does not ask a private address that is not allowed: the agent's runs wait, and say why", async () => {
  await using server = await startHttpToolServer(notes);
  const own = agent({ name: "outsider", model: "scripted:caller", instructions: "Use the tools.", mcp: ["inside"] });
  await using open = await openLab(database.url, {
    agents: [own],
    models: [scriptedModel([], { name: "scripted:caller" })],
    mcp: { inside: { url: server.url, connectTimeoutMs: 2_000 } },
  });
  const run = await open.run(own, "go");
  expect(payloads(run.events, "run.parked")[0].detail.missing).toMatch(/MCP server inside \(http:\/\/127\.0\.0\.1:\d+ must not be asked: its address is loopback/);
  expect(server.lastHeaders()).toEqual({});
});

it("finds a server that was restarted under it, which knows no session of before", async () => {
  await using server = await startHttpToolServer(notes);
  const steps: ScriptedStep[] = [
    { toolCalls: [{ id: "a", name: "mcp__web__create", input: { text: "before" } }] },
    async () => {
      await server.restart();
      return { toolCalls: [{ id: "b", name: "mcp__web__create", input: { text: "after" } }] };
    },
    "done",
  ];
  const { open, own } = await lab(server.url, steps);
  await using _ = open;
  const run = await open.run(own, "go");
  // What never reached it is sent again, also when it must not be done twice.
  expect(payloads(run.events, "tool.completed").map(({ output }) => output)).toEqual(["create: before", "create: after"]);
  expect(calls().filter(({ text }) => text === "after")).toHaveLength(1);
});

it("tells the model that nobody knows when a call with side effects is cut off, and that nothing was done when the server is gone", async () => {
  await using server = await startHttpToolServer(notes);
  const steps: ScriptedStep[] = [
    { toolCalls: [{ id: "a", name: "mcp__web__die_once", input: {} }] },
    async () => {
      await server.stop();
      return { toolCalls: [{ id: "b", name: "mcp__web__create", input: { text: "never" } }] };
    },
    "done",
  ];
  const { open, own } = await lab(server.url, steps);
  await using _ = open;
  const run = await open.run(own, "go");
  expect(payloads(run.events, "tool.failed").map(({ error }) => [error.code, /not known|not made/.exec(error.message)?.[0]])).toEqual([
    ["MCP_CONNECTION_LOST", "not known"],
    ["MCP_UNAVAILABLE", "not made"],
  ]);
  expect(calls().filter(({ tool }) => tool === "die_once")).toHaveLength(1);
});
