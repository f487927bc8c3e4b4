import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, it } from "vitest";
import { killChildrenAfterAll, startChild, type ChildWorker } from "../chaos/child-worker.ts";
import { openLab, payloads, until } from "../engine/harness.ts";
import { createTestDatabase } from "../support/database.ts";
import { isRunning, testServer, type TestServer } from "./support.ts";

const database = await createTestDatabase();
killChildrenAfterAll();

async function startWorker(server: TestServer, tool: string): Promise<ChildWorker> {
  return await startChild({
    url: database.url,
    effects: "",
    program: "../mcp/worker.ts",
    env: {
      CAPSTAN_LEASE_MS: "1200",
      CAPSTAN_HEARTBEAT_MS: "300",
      CAPSTAN_SWEEP_MS: "300",
      CAPSTAN_LOST_JOB_MS: "3000",
      CAPSTAN_POOL_MAX: "4",
      MCP_SERVER: JSON.stringify(server.spec),
      MCP_TOOL: tool,
      MCP_UNTIL: join(server.folder, "go"),
    },
  });
}

/** Killed outright while the server works on the call; another worker goes on. */
async function killMidCall(tool: string) {
  const server = testServer();
  const open = await openLab(database.url, { agents: [], idle: true });
  const first = await startWorker(server, tool);
  const run = await open.capstan.enqueue("held", "go");
  const [call] = await until("the call", () => (server.calls().length > 0 ? server.calls() : undefined));
  first.kill("SIGKILL");
  expect(await first.ended).toBe("SIGKILL");
  await until("the server to end with its worker", () => !isRunning(call?.pid ?? 0));
  const second = await startWorker(server, tool);
  return { server, open, run, second };
}

it("a call that reads is made again by the next worker, and answered once", async () => {
  const { server, open, run, second } = await killMidCall("mcp__notes__look");
  await using lab = open;
  await until("the call to be made again", () => server.calls().length === 2);
  writeFileSync(join(server.folder, "go"), "");
  expect(await run.result({ timeoutMs: 30_000 })).toBe('["look: held"]');
  expect(new Set(server.calls().map(({ pid }) => pid)).size).toBe(2);
  expect(payloads(await lab.events(run.id), "tool.completed")).toHaveLength(1);
  await lab.intact(run.id);
  await second.stop();
  expect(server.calls().filter(({ pid }) => isRunning(pid))).toEqual([]);
});

it("a call with side effects is never made again: it is recorded as interrupted, and the model is told", async () => {
  const { server, open, run, second } = await killMidCall("mcp__notes__create");
  await using lab = open;
  expect(await run.result({ timeoutMs: 30_000 })).toMatch(/"error":"OUTCOME_UNKNOWN/);
  expect(payloads(await lab.events(run.id), "tool.interrupted")).toMatchObject([{ name: "mcp__notes__create", reason: "worker_lost" }]);
  expect(server.calls().map(({ tool }) => tool)).toEqual(["create"]);
  await lab.intact(run.id);
  await second.stop();
});
