import { execFileSync } from "node:child_process";
import { mkdir, mkdtemp, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { auditorAgent, auditorModel } from "../../src/agents/auditor.ts";
import type { CanonicalCall } from "../../src/domain/call.ts";
import { canonicalJson, toJsonValue, type JsonValue } from "../../src/domain/json.ts";
import type { AssistantPart, Message, ToolCallPart, ToolResultPart } from "../../src/domain/transcript/message.ts";
import { renderFrame } from "../../src/domain/transcript/render.ts";
import { auditorAnswer, offlineAuditor } from "../../src/providers/offline/auditor.ts";
import { silentLog } from "../../src/telemetry/log.ts";

const root = await mkdtemp(join(tmpdir(), "capstan-audit-"));
const auditor = auditorAgent({ root, reportsDir: join(root, ".capstan"), env: {} });
const { tools } = renderFrame(auditor.definition, "offline:auditor", false);
// Put together here, or this file would hold what looks like a secret itself.
const key = `AKIA${"B".repeat(16)}`;

beforeAll(async () => {
  await mkdir(join(root, "src", "lib"), { recursive: true });
  await mkdir(join(root, "node_modules"));
  await writeFile(
    join(root, "README.md"),
    `# Read me\n[good](src/a.ts) [bad](docs/gone.md) [web](https://x.y/z) [anchor](#a) \`[code](no.md)\`\n\`\`\`\n[fenced](no.md)\n\`\`\`\n[out](../elsewhere.md)\n`,
  );
  await writeFile(join(root, "src", "a.ts"), `import { b } from "./b.js";\nimport { gone } from "./gone.ts";\n// TODO: later\nexport const k = "${key}";\n`);
  await writeFile(join(root, "src", "b.ts"), `${Array.from({ length: 30 }, (_, i) => `export const line${i} = ${i};`).join("\n")}\n`);
  await writeFile(join(root, "src", "lib", "copy.ts"), `${Array.from({ length: 30 }, (_, i) => `export const line${i} = ${i};`).join("\n")}\n`);
  // A finding for the auditor: the text of a file that is audited, not a test of ours.
  await writeFile(join(root, "src", "a.test.ts"), `test.only("x", () => {});\n`);
  await writeFile(join(root, "conflict.txt"), "<<<<<<< ours\na\n>>>>>>> theirs\n");
  await writeFile(join(root, "blob.bin"), Buffer.from([0, 1, 2]));
  await writeFile(join(root, "empty.txt"), "");
  await writeFile(join(root, "node_modules", "x.ts"), "// TODO not ours\n");
  await symlink("/etc", join(root, "etc"));
  execFileSync("mkfifo", [join(root, "pipe")]);
});
afterAll(() => rm(root, { recursive: true, force: true }));

type Break = (call: ToolCallPart, turn: number) => Pick<ToolResultPart, "output" | "is_error"> | undefined;

/** Plays a whole conversation with the real tools; `instead` replaces a result. */
async function audit(input: unknown, instead: Break = () => undefined): Promise<{ messages: Message[]; answer: string; turns: number }> {
  const messages: Message[] = [{ role: "user", content: [{ type: "text", text: typeof input === "string" ? input : canonicalJson(input as JsonValue) }] }];
  for (let turn = 1; turn < 200; turn++) {
    const content = auditorAnswer({ messages, tools });
    messages.push({ role: "assistant", content });
    const calls = content.filter((part) => part.type === "tool_call");
    if (calls.length === 0) return { messages, answer: textOf(content), turns: turn };
    messages.push({
      role: "tool",
      content: await Promise.all(
        calls.map(async (call) => ({ type: "tool_result" as const, call_id: call.call_id, name: call.name, ...(instead(call, turn) ?? (await execute(call))) })),
      ),
    });
  }
  throw new Error("the auditor does not end");
}

async function execute(call: ToolCallPart): Promise<Pick<ToolResultPart, "output" | "is_error">> {
  const code = auditor.code.tools.get(call.name);
  const checked = code?.check(call.input ?? {});
  if (code === undefined || checked?.ok !== true) throw new Error(`the auditor made a call that ${call.name} does not take: ${canonicalJson(call.input ?? null)}`);
  try {
    const context = {
      signal: new AbortController().signal,
      runId: "r",
      tenant: "t",
      turn: 1,
      callId: call.call_id,
      completionToken: "token",
      idempotencyKey: "k",
      secret: () => undefined,
      log: silentLog,
    };
    const json = toJsonValue(await code.execute(checked.value, context));
    if (!json.ok) throw new Error(json.problem.problem);
    return { output: json.value };
  } catch (error) {
    return { output: `${(error as { code?: string }).code}: ${(error as Error).message}`, is_error: true };
  }
}

function textOf(parts: readonly AssistantPart[]): string {
  return parts.flatMap((part) => (part.type === "text" ? [part.text] : [])).join("\n");
}

test("finds what is wrong in a folder, with file and line, and nothing in what is right", async () => {
  const { answer, messages } = await audit({ lines_per_read: 10 });
  for (const line of [
    "- README.md:2: link to docs/gone.md, but there is no docs/gone.md",
    "- src/a.ts:2: import to ./gone.ts, but there is no src/gone.ts",
    "- src/a.ts:3: // TODO: later",
    "- src/a.ts:4: AKIABB… (20 characters)",
    // What the report says of the file above.
    "- src/a.test.ts:1: test.only",
    "- conflict.txt:1: <<<<<<< ours",
    "- conflict.txt:3: >>>>>>> theirs",
    "- empty.txt: 0 bytes",
    "- src/lib/copy.ts: same ",
  ]) {
    expect(answer).toContain(line);
  }
  expect(answer).toContain("| TypeScript | 4 | 65 |");
  for (const absent of ["node_modules/x.ts", "no.md", "elsewhere", "good", "./b.js", "etc/", key]) expect(answer).not.toContain(absent);
  expect(answer).toContain("not a language model");
  expect(textOf(messages[1]?.content as AssistantPart[])).toContain("I am not a language model");
  expect(messages.some((message) => message.role === "assistant" && message.content.filter((part) => part.type === "tool_call").length > 1)).toBe(true);
});

test("the same messages give the same answer, at every point of a conversation", async () => {
  const { messages } = await audit({ lines_per_read: 10, calls_per_turn: 2 });
  const copy = JSON.parse(JSON.stringify(messages)) as Message[];
  expect(messages.filter((message) => message.role === "assistant").length).toBeGreaterThan(3);
  for (const [i, message] of messages.entries()) {
    if (message.role === "assistant") expect(auditorAnswer({ messages: copy.slice(0, i), tools })).toEqual(message.content);
  }
});

test("goes to the end whatever single result fails, is cut, or is of another form", async () => {
  const { messages } = await audit({});
  const calls = messages.flatMap((message) => (message.role === "assistant" ? message.content.filter((part) => part.type === "tool_call") : []));
  const wrongs: Pick<ToolResultPart, "output" | "is_error">[] = [
    { output: "TOOL_FAILED: disk on fire", is_error: true },
    { output: '{"path":".","entr\n[… 9 characters left out …]\n' },
    { output: { surprising: [1, 2, 3] } },
    { output: null },
  ];
  for (const [i, broken] of calls.entries()) {
    const wrong = wrongs[i % wrongs.length] as (typeof wrongs)[number];
    const { answer } = await audit({}, (call) => (call.call_id === broken.call_id ? wrong : undefined));
    expect(answer).toContain("# Audit of");
    // A report that was not saved is saved again.
    if (!["save_report", "check_report"].includes(broken.name)) expect(answer).toContain("Could not be looked at");
    expect(answer).toContain("Saved as");
  }
});

test("ends when every call fails, and says so", async () => {
  const { answer, turns } = await audit({}, () => ({ output: "TOOL_FAILED: no", is_error: true }));
  expect(turns).toBeLessThan(10);
  expect(answer).toContain("list_folder: TOOL_FAILED: no");
  expect(answer).toContain("The report was not saved as a file.");
});

test("looks before it saves again when the outcome of saving is unknown", async () => {
  const names = (messages: readonly Message[]): string[] =>
    messages.flatMap((message) => (message.role === "assistant" ? message.content.flatMap((part) => (part.type === "tool_call" ? [part.name] : [])) : [])).slice(-3);
  const unknown = { output: "OUTCOME_UNKNOWN: this call was started", is_error: true };
  const first = (call: ToolCallPart): boolean => call.name === "save_report";
  let saves = 0;
  const written = await audit({}, (call) => (first(call) ? unknown : call.name === "check_report" ? { output: { exists: true, file: "r.md", size_bytes: 9 } } : undefined));
  expect(names(written.messages).slice(-2)).toEqual(["save_report", "check_report"]);
  const lost = await audit({}, (call) => (first(call) && ++saves === 1 ? unknown : call.name === "check_report" ? { output: { exists: false } } : undefined));
  expect(names(lost.messages)).toEqual(["save_report", "check_report", "save_report"]);
});

test("keeps to the limits it is given", async () => {
  const { answer, messages } = await audit({ max_files: 3, max_reads: 2, calls_per_turn: 1 });
  expect(answer).toContain("3 files in");
  expect(answer).toContain("the limit of 3");
  const reads = messages.flatMap((message) => (message.role === "assistant" ? message.content : [])).filter((part) => part.type === "tool_call" && part.name === "read_file");
  expect(reads).toHaveLength(2);
});

test("a folder that is not there, prose for input, a tool that is missing: said plainly", async () => {
  expect((await audit({ folder: "nowhere" })).answer).toContain("PATH_NOT_FOUND");
  expect((await audit("please look at my code")).answer).toContain("I cannot read instructions in prose");
  expect((await audit({ max_files: -1 })).answer).toContain("The input did not fit (max_files:");
  expect(textOf(auditorAnswer({ messages: [], tools: [] }))).toContain("no list_folder tool");
});

test("does not pretend to answer questions about its report", async () => {
  const { messages } = await audit({ max_reads: 0 });
  messages.push({ role: "user", content: [{ type: "text", text: "why?" }] });
  expect(textOf(auditorAnswer({ messages, tools }))).toContain("cannot answer questions");
});

test("takes the time it is told, counts words as an offline model, and ends at once when aborted", async () => {
  const call = {
    renderVersion: 1,
    model: "offline:auditor",
    system: "two words",
    tools,
    messages: [{ role: "user", content: [{ type: "text", text: "{}" }] }],
    settings: {},
    breakpoints: [],
  } satisfies CanonicalCall;
  const context = { signal: new AbortController().signal, tenant: "t", runId: "r", turn: 1 };
  const outcome = await offlineAuditor().call(call, context);
  expect(outcome).toMatchObject({ kind: "responded", usage: { scale: "offline" }, finish: { reason: "tool_calls" } });
  expect(outcome.kind === "responded" && outcome.usage.input).toBeGreaterThan(3);
  const stop = new AbortController();
  const slow = offlineAuditor({ thinkMs: 600_000 }).call(call, { ...context, signal: stop.signal });
  stop.abort();
  expect(await slow).toEqual({ kind: "aborted" });
});

test.each([
  [{}, "offline:auditor"],
  [{ CAPSTAN_MODEL: "ollama:x", ANTHROPIC_API_KEY: "k" }, "ollama:x"],
  [{ ANTHROPIC_API_KEY: "k", OPENAI_API_KEY: "k" }, "anthropic:claude-haiku-5-5"],
  [{ OPENAI_API_KEY: "k", ANTHROPIC_API_KEY: "" }, "openai:gpt-6-luna"],
])("with %j the model is %s", (env, model) => {
  expect(auditorModel(env)).toBe(model);
});
