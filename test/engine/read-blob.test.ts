/** `read_blob`: what is kept outside the transcript, page by page, to the run that refers to it and to no other. */
import { createHash } from "node:crypto";
import { expect, it } from "vitest";
import { readBlobTool } from "../../src/agents/engine-tools.ts";
import type { AgentSpec } from "../../src/agents/agent.ts";
import type { CanonicalCall } from "../../src/domain/call.ts";
import type { JsonObject } from "../../src/domain/json.ts";
import type { ScriptedStep } from "../../src/testing/scripted-model.ts";
import { Cases, calls, doing } from "../bad-input/cases.ts";
import { createTestDatabase } from "../support/database.ts";
import { payloads, sha256Hex, type Settled } from "./harness.ts";

const database = await createTestDatabase();
const cases = new Cases();
const claimCheck = { tools: ["fetch"], overBytes: 256 };

/** Reads on from where the answer before says, until nothing is left. */
function reader(sha256: string, limit: number | undefined): ScriptedStep {
  return ({ messages }: CanonicalCall) => {
    const answer = messages.at(-1)?.content.at(0);
    if (answer?.type !== "tool_result") throw new Error("the script reads on after a result only");
    const { name, output } = answer;
    if (name === "read_blob" && !/^\[[^\]]* are left: read on with offset (\d+)\]/.test(output as string)) return "Read.";
    const offset = name === "read_blob" ? Number(/read on with offset (\d+)/.exec(output as string)?.[1]) : 0;
    return calls("read_blob", { sha256: `sha256:${sha256}`, offset, ...(limit === undefined ? {} : { limit }) });
  };
}
const paged = (name: string, text: string, limit: number | undefined, spec: Partial<AgentSpec> = {}) => ({
  text,
  ...cases.add(name, [calls("fetch"), ...Array.from({ length: 60 }, () => reader(sha256Hex(text), limit))], {
    tools: [doing("fetch", () => text), readBlobTool()],
    claimCheck,
    ...spec,
  }),
});

const mixed = paged("mixed", `${"😀é€a".repeat(60)} [read on with offset 7]`, 67);
const MIB = 1024 * 1024;
const large = `${"0123456789abcde\n".repeat(MIB / 16 - 1)}0123456789abcde€${"fedcba9876543210".repeat(MIB / 8)}`;
const ranges = [MIB - 7, MIB - 1, MIB, MIB + 1, 2 * MIB - 5, 2 * MIB];
const across = cases.add(
  "across",
  [calls("fetch"), { toolCalls: ranges.map((offset) => ({ name: "read_blob", input: { sha256: sha256Hex(large), offset, limit: 64 } })) }, "Read."],
  { tools: [doing("fetch", () => large), readBlobTool()], claimCheck },
);
const small = paged("small", "short enough for one page ".repeat(20), undefined);
const control = paged("control", "\u0001".repeat(3_000), undefined, { limits: { inlinePayloadBytes: 4_096 } });

const secret = "what the other tenant holds ".repeat(30);
const asks = (name: string, ...inputs: JsonObject[]) =>
  cases.add(name, [{ toolCalls: inputs.map((input) => ({ name: "read_blob", input })) }, "Read."], { tools: [readBlobTool()] }, { by: "turn" });
const holder = cases.later(cases.add("holder", [calls("fetch"), "Read."], { tools: [doing("fetch", () => secret)], claimCheck }, { by: "turn" }).agent);
const stranger = cases.later(asks("stranger", { sha256: sha256Hex(secret) }, { sha256: sha256Hex("nobody has this") }).agent);
const pastEnd = cases.add(
  "past-end",
  [calls("fetch"), { toolCalls: [0, 1, 299, 300, 301, 2 ** 40].map((offset) => ({ name: "read_blob", input: { sha256: sha256Hex("e".repeat(300)), offset } })) }, "Read."],
  { tools: [doing("fetch", () => "e".repeat(300)), readBlobTool()], claimCheck },
);
const image = Buffer.from([0x89, 0x50, 0x4e, 0x47, 0, 1, 2, 3]);
const imageDigest = createHash("sha256").update(image).digest("hex");
const picture = cases.later(asks("picture", { sha256: imageDigest }).agent);
cases.openOn(database.url);

const pages = (run: Settled): string[] =>
  payloads(run.events, "tool.completed").flatMap(({ name, output }: { name: string; output: string }) => (name === "read_blob" ? [output] : []));
const textOf = (page: string): string => page.slice(page.indexOf("\n") + 1);
const headingOf = (page: string): string => page.slice(0, page.indexOf("\n"));

it("gives the whole text in pages that never cut a code point, and says how much is left", async () => {
  const run = await cases.outcome(mixed.agent);
  const read = pages(run);
  expect(read.map(textOf).join("")).toBe(mixed.text);
  expect(read.length).toBeGreaterThan(8);
  for (const page of read) {
    expect(page).not.toContain("\uFFFD");
    expect(Buffer.byteLength(textOf(page))).toBeLessThanOrEqual(67);
  }
  const size = Buffer.byteLength(mixed.text);
  expect(headingOf(read[0] ?? "")).toBe(`[blob sha256:${sha256Hex(mixed.text)}, text/plain, ${size} bytes; bytes 0 to 66 follow, ${size - 66} are left: read on with offset 66]`);
  expect(headingOf(read.at(-1) ?? "")).toMatch(/follow, nothing is left\]$/);
  await cases.lab.intact(run.id);
});

it("reads across the chunks that a blob is stored in, also where a code point lies across them", async () => {
  const bytes = Buffer.from(large);
  expect(bytes.subarray(MIB - 1, MIB + 2).toString()).toBe("€");
  const read = pages(await cases.outcome(across.agent));
  const starts = ranges.map((offset) => (offset === MIB || offset === MIB + 1 ? MIB - 1 : offset));
  for (const start of starts) expect(read.map(textOf)).toContain(bytes.subarray(start, start + 64).toString());
  expect(read).toHaveLength(ranges.length);
});

it("gives a page of 16,384 bytes by default: a short text is one", async () => {
  expect(pages(await cases.outcome(small.agent)).map(textOf)).toEqual([small.text]);
});

it("makes pages small enough for the event, so that a page is never withheld itself", async () => {
  const run = await cases.outcome(control.agent);
  expect(pages(run).map(textOf).join("")).toBe(control.text);
  expect(payloads(run.events, "tool.completed").filter(({ name, blob }: { name: string; blob?: unknown }) => name === "read_blob" && blob !== undefined)).toEqual([]);
});

it("answers for another run's and another tenant's blob as for one that does not exist", async () => {
  await cases.lab.run(holder, "go");
  await cases.lab.run(holder, "go", { tenant: "rival" });
  for (const tenant of ["default", "rival", "third"]) {
    const run = await cases.lab.run(stranger, "go", { tenant });
    const errors = payloads(run.events, "tool.failed").map(({ error }: { error: { code: string; message: string } }) => ({
      ...error,
      message: error.message.replace(/[0-9a-f]{64}/, "…"),
    }));
    expect(errors).toHaveLength(2);
    expect(errors[0]).toEqual(errors[1]);
    expect(errors[0]).toMatchObject({ code: "BLOB_NOT_FOUND" });
    expect(JSON.stringify(run.events)).not.toContain("what the other tenant holds");
  }
});

it("refuses an offset past the end with the size", async () => {
  const run = await cases.outcome(pastEnd.agent);
  expect(new Set(pages(run).map(textOf))).toEqual(new Set(["e".repeat(300), "e".repeat(299), "e"]));
  const errors = payloads(run.events, "tool.failed").map(({ error }: { error: { code: string; message: string } }) => error);
  expect(errors.map(({ code }) => code)).toEqual(["BLOB_OFFSET_INVALID", "BLOB_OFFSET_INVALID", "BLOB_OFFSET_INVALID"]);
  expect(errors[0]?.message).toContain("the blob has 300 bytes");
});

it("describes what is no text, such as a picture of the run's input", async () => {
  const run = await cases.lab.run(picture, [
    { type: "file", media_type: "image/png", data: image },
    { type: "text", text: "what is this?" },
  ]);
  expect(pages(run)).toEqual([`[blob sha256:${imageDigest}, image/png, 8 bytes: this is no text and cannot be read by pages]`]);
});
