import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, expect, test } from "vitest";
import type { Message } from "../../src/domain/transcript/message.ts";
import { createModelCatalogue, ModelConfigError } from "../../src/providers/catalogue.ts";
import { offlineModels } from "../../src/providers/offline/index.ts";
import { readRecordings, recordedTurns, type Recording } from "../../src/providers/offline/recording.ts";
import { offlineReplay, replayAnswer } from "../../src/providers/offline/replay.ts";
import { replayTools } from "../../src/tools/replay-tools.ts";
import { call as callTool } from "../tools/support.ts";

const folder = mkdtempSync(join(tmpdir(), "capstan-replay-"));
afterAll(() => rmSync(folder, { recursive: true, force: true }));
const airline = fileURLToPath(new URL("../fixtures/conversations/tau-airline.jsonl", import.meta.url));
const coding = fileURLToPath(new URL("../fixtures/conversations/swe-agent.jsonl", import.meta.url));

function thrown(run: () => unknown): ModelConfigError {
  try {
    run();
  } catch (error) {
    if (error instanceof ModelConfigError) return error;
    throw error;
  }
  throw new Error("expected a ModelConfigError");
}

/** The whole conversation, with results served by the tools. */
async function play(recording: Recording): Promise<Message[]> {
  const turns = recordedTurns(recording);
  const tools = replayTools(recording);
  const messages: Message[] = [{ role: "user", content: [{ type: "text", text: "go" }] }];
  for (let k = 0; k < turns.length; k++) {
    const content = replayAnswer(turns, { messages });
    messages.push({ role: "assistant", content });
    const calls = content.filter((part) => part.type === "tool_call");
    const results = await Promise.all(
      calls.map(async ({ call_id, name, input }) => {
        const output: string = await callTool(tools, name, (input ?? {}) as object, { callId: call_id }).catch((error: Error) => error.message as never);
        return { type: "tool_result" as const, call_id, name, output };
      }),
    );
    if (results.length > 0) messages.push({ role: "tool", content: results });
  }
  return messages;
}

test.each([airline, coding])("gives the recorded answers and results again, each call by a name of its own: %s", async (file) => {
  for (const recording of readRecordings(file).slice(0, 12)) {
    const messages = await play(recording);
    const turns = recordedTurns(recording);
    const played = messages.flatMap((message) => (message.role === "assistant" ? [message.content] : []));
    expect(played.map((parts) => parts.flatMap((part) => (part.type === "text" ? [part.text] : [])).join(""))).toEqual(turns.map((turn) => turn.text));
    const calls = played.flat().filter((part) => part.type === "tool_call");
    expect(calls.map(({ name }) => name)).toEqual(turns.flatMap((turn) => turn.calls.map(({ name }) => name)));
    expect(new Set(calls.map(({ call_id }) => call_id)).size).toBe(calls.length);
    const results = messages.flatMap((message) => (message.role === "tool" ? message.content.map(({ output }) => output) : []));
    for (const [i, { result }] of turns.flatMap((turn) => turn.calls).entries()) if (result !== undefined) expect(results[i]).toBe(result);
  }
});

const call = (id: string, args = '{"x":1}') => ({ id, function: { name: "f", arguments: args } });
const made: Recording = {
  id: "made",
  messages: [
    { role: "user", content: "go" },
    { role: "assistant", content: null, tool_calls: [call("a"), call("a", "{no json"), call("b", "")] },
    { role: "tool", tool_call_id: "a", content: "first" },
    { role: "tool", tool_call_id: "a", content: "second" },
    { role: "assistant", content: "bye" },
  ],
};

test("equal ids are told apart, arguments that do not parse stay as they were, a result that is missing is an error", async () => {
  const messages: Message[] = [{ role: "user", content: [{ type: "text", text: "go" }] }];
  expect(replayAnswer(recordedTurns(made), { messages })).toEqual([
    { type: "tool_call", call_id: "replay_0_0", name: "f", input: { x: 1 } },
    { type: "tool_call", call_id: "replay_0_1", name: "f", arguments: "{no json", invalid: expect.any(String) },
    { type: "tool_call", call_id: "replay_0_2", name: "f", input: {} },
  ]);
  const tools = replayTools(made);
  expect(await callTool(tools, "f", { x: 1 }, { callId: "replay_0_1" })).toBe("second");
  for (const callId of ["replay_0_2", "replay_7_0", "call_1", "replay_0_-1"]) {
    await expect(callTool(tools, "f", {}, { callId })).rejects.toMatchObject({ code: "RECORDING_HAS_NO_RESULT" });
  }
});

test("says that the recording is over instead of beginning again", () => {
  const messages: Message[] = Array.from({ length: 2 }, () => ({ role: "assistant", content: [] }));
  expect(replayAnswer(recordedTurns(made), { messages })).toEqual([{ type: "text", text: "The recorded conversation ends here." }]);
});

test("is found by id, or by file and id, through the catalogue too", () => {
  expect(offlineReplay({ conversations: [made] })("offline:replay:made").name).toBe("offline:replay:made");
  expect(createModelCatalogue().resolve(`offline:replay:${airline}#airline-0-0`, "t").name).toContain("#airline-0-0");
  expect(createModelCatalogue({ offline: offlineModels({ conversations: [made] }) }).resolve("offline:replay:made", "t").structuredOutput).toBe(false);
});

test("names what is there when an id or a file is not", () => {
  const unknown = thrown(() => offlineReplay({ conversations: [made] })("offline:replay:other"));
  expect(unknown).toMatchObject({ code: "MODEL_UNKNOWN", message: expect.stringContaining("known are: made") });
  expect(thrown(() => offlineReplay()(`offline:replay:${join(folder, "gone.jsonl")}#x`))).toMatchObject({ code: "MODEL_CONFIG_INVALID" });
  const file = join(folder, "bad.jsonl");
  for (const line of ["{", '{"id":"x"}', '{"id":"x","messages":[{"role":"robot"}]}']) {
    writeFileSync(file, `${JSON.stringify(made)}\n\n${line}\n`);
    expect(thrown(() => offlineReplay()(`offline:replay:${file}#made`))).toMatchObject({ code: "MODEL_CONFIG_INVALID", message: expect.stringContaining("line 3") });
  }
});

test("an unknown offline name lists the known ones; a think time that is none is refused", () => {
  expect(thrown(() => offlineModels()("offline:gpt"))).toMatchObject({
    code: "MODEL_UNKNOWN",
    message: expect.stringContaining("offline:auditor, offline:extractive, offline:replay:<id>"),
  });
  for (const CAPSTAN_OFFLINE_THINK_MS of ["-1", "1.5", "soon", "600001"]) {
    expect(thrown(() => offlineModels({ env: { CAPSTAN_OFFLINE_THINK_MS } })("offline:auditor"))).toMatchObject({ code: "MODEL_CONFIG_INVALID" });
  }
  expect(offlineModels({ env: { CAPSTAN_OFFLINE_THINK_MS: "5" } })("offline:auditor").name).toBe("offline:auditor");
});

test("the fixtures are what the other reader of recordings takes them for", () => {
  expect(readRecordings(airline)).toHaveLength(readFileSync(airline, "utf8").trim().split("\n").length);
});
