/** What a user's agents module looks like to the worker command; its model is in this process and asks by the input. */
import { existsSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { z } from "zod";
import { agent, tool } from "../../src/index.ts";
import type { Model } from "../../src/engine/model-port.ts";

const usage = { input: 1_200, output: 30, scale: "provider" } as const;

/** Two turns with tools, then the answer; an input that begins with "fail" is refused, one with ESC comes back. */
const model: Model = {
  name: "fixture:model",
  structuredOutput: false,
  window: { tokens: 8_000, source: "setting" },
  call: async (call) => {
    const asked = call.messages.filter((message) => message.role === "assistant").length;
    const first = call.messages[0]?.content[0];
    const task = first?.type === "text" ? first.text : "";
    if (task.startsWith("fail")) return { kind: "failed", code: "PROVIDER_BAD_REQUEST", message: "the fixture refuses", retryable: false, countsAsAttempt: true };
    const done = { kind: "responded", content: [{ type: "text", text: `done: ${task}` }], finish: { reason: "stop" }, usage } as const;
    if (asked >= 2 || task.startsWith("quick")) return done;
    const name = task.startsWith("gate") ? "wait_for_gate" : "look_up";
    return { kind: "responded", content: [{ type: "tool_call", call_id: `c${asked}`, name, input: { key: task } }], finish: { reason: "tool_calls" }, usage };
  },
};

const lookUp = tool({
  name: "look_up",
  description: "Looks a key up.",
  input: z.object({ key: z.string() }),
  effect: "read",
  execute: ({ key }) => ({ found: `\u001B[31m${key}\u001B[0m` }),
});

/** Ends when the file named by CAPSTAN_TEST_GATE is there, so that a test decides when. */
const waitForGate = tool({
  name: "wait_for_gate",
  description: "Waits for the gate.",
  input: z.object({ key: z.string() }),
  effect: "once",
  execute: async (_input, { signal }) => {
    while (!existsSync(process.env["CAPSTAN_TEST_GATE"] ?? "")) await sleep(20, undefined, { signal });
    return "the gate is open";
  },
});

export const models = { "fixture:model": model };
export const helper = agent({ name: "helper", model: "fixture:model", instructions: "Help.", tools: [lookUp, waitForGate] });
export default [agent({ name: "talker", model: "fixture:model", instructions: "Talk.", interactive: true })];
