import { mkdtemp, realpath, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll } from "vitest";
import type { Tool } from "../../src/agents/tool.ts";
import type { ToolContext } from "../../src/engine/code.ts";
import { silentLog } from "../../src/telemetry/log.ts";

/** A folder of this test file's own. */
export async function makeFolder(): Promise<string> {
  const folder = await realpath(await mkdtemp(join(tmpdir(), "capstan-tools-")));
  afterAll(() => rm(folder, { recursive: true, force: true }));
  return folder;
}

/** Calls a tool as the engine does: input checked and completed first. */
export async function call(tools: readonly Tool[], name: string, input: object, context: Partial<ToolContext> = {}): Promise<never> {
  const tool = tools.find(({ definition }) => definition.name === name);
  if (tool === undefined) throw new Error(`no tool ${name}`);
  const checked = tool.check(input as never);
  if (!checked.ok) throw new Error(checked.issues.map(({ path, message }) => `${path}: ${message}`).join("; "));
  return (await tool.execute(checked.value, {
    signal: new AbortController().signal,
    runId: "01a22d45-af5d-7604-8cb9-ef7899cf15a9",
    tenant: "t",
    turn: 1,
    callId: "c1",
    completionToken: "token",
    idempotencyKey: "k",
    secret: () => undefined,
    saveFile: () => Promise.reject(new Error("no files are kept here")),
    log: silentLog,
    ...context,
  })) as never;
}
