/** Structured output: natively where the provider has it, else by `submit_output`; told twice when it does not fit. */
import { describe, expect, it } from "vitest";
import { z } from "zod";
import { payloads, typesOf } from "../engine/harness.ts";
import { createTestDatabase } from "../support/database.ts";
import { Cases, calls, doing } from "./cases.ts";

const database = await createTestDatabase();
const cases = new Cases();
const output = z.object({ total: z.number().min(0), note: z.string().optional() });
const lookup = doing("lookup", () => "42");
const right = { total: 42 };
const submit = (input: object) => calls("submit_output", input as never);

const native = cases.add("native", [JSON.stringify(right)], { output }, { structuredOutput: true });
const nativeLearns = cases.add("native-learns", ["It is 42.", '{"total":"42"}', JSON.stringify(right)], { output }, { structuredOutput: true });
const nativeNever = cases.add(
  "native-never",
  Array.from({ length: 3 }, () => '{"total":-1}'),
  { output },
  { structuredOutput: true },
);
const submitted = cases.add("submitted", [calls("lookup"), submit(right)], { output, tools: [lookup] });
const submitLearns = cases.add("submit-learns", [submit({ total: "42" }), submit({}), submit(right)], { output });
const submitNever = cases.add(
  "submit-never",
  Array.from({ length: 3 }, () => submit({ total: -1 })),
  { output },
);
const answersText = cases.add("answers-text", ["The total is 42.", submit(right)], { output });
const answersJson = cases.add("answers-json", [JSON.stringify(right)], { output });
const besides = cases.add("besides", [{ toolCalls: [{ name: "lookup" }, { name: "submit_output", input: right }] }], { output, tools: [lookup] });
const twice = cases.add(
  "twice",
  [
    {
      toolCalls: [
        { name: "submit_output", input: { total: 1 } },
        { name: "submit_output", input: { total: 2 } },
      ],
    },
  ],
  { output },
);
const broken = cases.add("broken", [{ toolCalls: [{ name: "submit_output", arguments: "{" }] }, submit(right)], { output });
const wire = (["openai-chat", "anthropic", "openai-responses"] as const).map((protocol) => ({
  protocol,
  agent: cases.addHttp(`output-${protocol}`, protocol, [{ text: '{"total":"x"}' }, { text: JSON.stringify(right) }], { output }),
}));

cases.openOn(database.url);

describe("structured output of the provider", () => {
  it("is asked for with the schema, and the answer is the result", async () => {
    const run = await cases.outcome(native.agent);
    expect(run.status.output).toEqual(right);
    expect(native.model.calls[0]?.output?.schema).toMatchObject({ type: "object", required: ["total"] });
    expect(native.model.calls[0]?.tools).toEqual([]);
  });

  it("that does not fit twice and then does: told each time what was wrong", async () => {
    const run = await cases.outcome(nativeLearns.agent);
    expect(run.status).toMatchObject({ state: "completed", output: right });
    expect(payloads(run.events, "model.corrected").map(({ text }) => text)).toEqual([expect.stringMatching(/not JSON/), expect.stringMatching(/total: .*number/)]);
    await cases.lab.intact(run.id);
  });

  it("that never fits: OUTPUT_INVALID with the last issues, after three answers", async () => {
    const run = await cases.outcome(nativeNever.agent);
    expect(run.status).toMatchObject({ state: "failed", error: { code: "OUTPUT_INVALID", message: expect.stringContaining("total") } });
    expect(typesOf(run.events).filter((type) => type === "model.responded")).toHaveLength(3);
    await cases.lab.intact(run.id);
  });

  it.each(wire)("over $protocol, as its client asks for it", async ({ agent }) => {
    const run = await cases.outcome(agent);
    expect(run.status).toMatchObject({ state: "completed", output: right });
    expect(payloads(run.events, "model.corrected")).toHaveLength(1);
    expect(cases.server.refused).toEqual([]);
    await cases.lab.intact(run.id);
  });
});

describe("submit_output", () => {
  it("ends the run with its arguments", async () => {
    const run = await cases.outcome(submitted.agent);
    expect(run.status).toMatchObject({ state: "completed", output: right, turn: 2 });
    expect(submitted.model.calls[0]?.tools.map((t) => t.name)).toEqual(["lookup", "submit_output"]);
    await cases.lab.intact(run.id);
  });

  it("refused twice, then right", async () => {
    const run = await cases.outcome(submitLearns.agent);
    expect(run.status).toMatchObject({ state: "completed", output: right });
    expect(payloads(run.events, "tool.failed").map(({ error }) => error.code)).toEqual(["OUTPUT_INVALID", "OUTPUT_INVALID"]);
    await cases.lab.intact(run.id);
  });

  it("that never fits: OUTPUT_INVALID after three", async () => {
    const run = await cases.outcome(submitNever.agent);
    expect(run.status).toMatchObject({ state: "failed", error: { code: "OUTPUT_INVALID" } });
    expect(submitNever.model.calls).toHaveLength(3);
    await cases.lab.intact(run.id);
  });

  it("forgotten: the model is told to call it", async () => {
    const run = await cases.outcome(answersText.agent);
    expect(run.status).toMatchObject({ state: "completed", output: right });
    expect(payloads(run.events, "model.corrected")[0].text).toContain("submit_output");
  });

  it("not called, but the answer is the JSON asked for: taken", async () => {
    expect((await cases.outcome(answersJson.agent)).status).toMatchObject({ state: "completed", output: right });
  });

  it("beside another call: both are answered before the run ends", async () => {
    const run = await cases.outcome(besides.agent);
    expect(run.status).toMatchObject({ state: "completed", output: right });
    expect(payloads(run.events, "tool.completed")).toHaveLength(2);
    await cases.lab.intact(run.id);
  });

  it("twice in one response: the last one counts, and each is answered", async () => {
    const run = await cases.outcome(twice.agent);
    expect(run.status).toMatchObject({ state: "completed", output: { total: 2 } });
    await cases.lab.intact(run.id);
  });

  it("with arguments that do not parse: told, then right", async () => {
    const run = await cases.outcome(broken.agent);
    expect(run.status).toMatchObject({ state: "completed", output: right });
    expect(payloads(run.events, "tool.failed")[0].error.code).toBe("TOOL_ARGUMENTS_INVALID");
  });
});
