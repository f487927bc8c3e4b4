/** Chapter E of the reported cases: what happens beside a summary, in the middle of one, and when a run is taken up again. */
import { randomUUID } from "node:crypto";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { agent } from "../../src/agents/agent.ts";
import { contextTool } from "../../src/agents/engine-tools.ts";
import type { SummarizerFunction } from "../../src/compaction/effect.ts";
import { DEFAULT_SUMMARIZER_INSTRUCTION } from "../../src/compaction/instruction.ts";
import type { Head } from "../../src/domain/compaction/types.ts";
import { messageText } from "../../src/domain/transcript/message.ts";
import { createTestDatabase } from "../support/database.ts";
import { openLab, payloads, typesOf, until, type Lab } from "../engine/harness.ts";
import { act, actTool, driver, gate, look, lookTool, patient, ran, reading, sound, textOf, user } from "./support.ts";

const database = await createTestDatabase();
const system = "Read.";
const TASK = 'Clone each repository once: {"repos": ["a", "b"]}. Then say so.\n  - do not clone twice 🧭';
const isCompacted = (text: string): boolean => text.includes("<capstan-summary");

/** Reads on until it has been compacted, and two pages more. */
const onward = (name: string) =>
  driver(name, {
    windowTokens: 20_000,
    turn: ({ turn, call }) => ((isCompacted(textOf(call.messages[0])) && call.messages.length > 16) || turn > 90 ? undefined : { asks: [look(turn, 3_000)] }),
  });
const beside = onward("beside");
const cleared = driver("cleared", { turn: reading(12) });
const stopped = onward("stopped");
const fenced = onward("fenced");
const cloning = driver("cloning", { turn: ({ turn }) => (turn > 20 ? undefined : { asks: [act(`clone ${turn}`)] }) });
const rows = driver("rows", { turn: reading(9) });
/** Asked a question, it looks, asks for a compaction, and looks on until that is done. */
const questions = driver("questions", {
  turn: patient(
    () => lab,
    ({ call, turn }) => {
      const text = JSON.stringify(call.messages);
      if (!text.includes("QUESTION")) return turn > 6 ? { text: "Skill x is done." } : { asks: [look(turn)] };
      if (isCompacted(textOf(call.messages[0])) || turn > 60) return { text: "The answer." };
      const hasLooked = call.messages.at(-1)?.role === "tool";
      return { asks: [hasLooked && !text.includes("scheduled") ? { name: "context", input: { op: "compact" } } : look(turn)] };
    },
  ),
});
const prompts = driver("prompts", { turn: patient(() => lab, reading(14)) });

const gates = { beside: gate(), stopped: gate(), fenced: gate() };
const made = { stopped: 0, fenced: 0, cleared: 0 };
const stopsOnce: SummarizerFunction = async ({ signal }) => {
  if (made.stopped++ > 0) return { summary: "the second try" };
  gates.stopped.open();
  await new Promise((resolve) => signal?.addEventListener("abort", resolve));
  return { summary: "the first try" };
};
const losesItsTask: SummarizerFunction = async () => {
  const n = ++made.fenced;
  if (n === 1) await gates.fenced.opened;
  return { summary: `try ${n}` };
};

const common = { instructions: system, tools: [lookTool], limits: { maxTurns: 500 } };
const soft = { enabled: true, autocompact_at_pct: 50 } as const;
const oddSystem = "You are one prompt.\n\n<capstan-summary>\nnever compacted &amp; \u{1F9ED}\n</capstan-summary>";
const agents = {
  beside: agent({ ...common, name: "beside", model: beside.name, compaction: { ...soft, summarizer: "gated" }, settings: { maxOutputTokens: 500 } }),
  cleared: agent({ ...common, name: "cleared", model: cleared.name, interactive: true, compaction: { summarizer: "counted" } }),
  stopped: agent({ ...common, name: "stopped", model: stopped.name, compaction: { ...soft, summarizer: "stopsOnce" }, settings: { maxOutputTokens: 500 } }),
  fenced: agent({ ...common, name: "fenced", model: fenced.name, compaction: { ...soft, summarizer: "losesItsTask" }, settings: { maxOutputTokens: 500 } }),
  cloning: agent({ ...common, name: "cloning", model: cloning.name, tools: [actTool()], interactive: true, compaction: { keep_last_n: 0 } }),
  rows: agent({ ...common, name: "rows", model: rows.name, interactive: true }),
  questions: agent({ ...common, name: "questions", model: questions.name, tools: [lookTool, contextTool()], interactive: true, compaction: { keep_last_n: 1 } }),
  prompts: agent({ ...common, name: "prompts", model: prompts.name, instructions: oddSystem, compaction: { after_bytes: 12_000, keep_first: false } }),
};

let lab: Lab;
beforeAll(async () => {
  lab = await openLab(database.url, {
    agents: Object.values(agents),
    models: [beside, cleared, stopped, fenced, cloning, rows, questions, prompts],
    settings: { graceMs: 300 },
    summarizers: {
      gated: async () => {
        await gates.beside.opened;
        return { summary: "what was read" };
      },
      counted: async () => {
        made.cleared++;
        return { summary: "what was read" };
      },
      stopsOnce,
      losesItsTask,
    },
  });
});
afterAll(async () => {
  for (const each of Object.values(gates)) each.open();
  await lab[Symbol.asyncDispose]();
});

describe("beside, during and after", () => {
  it("C40 what was appended while the summary was made is the tail, every page of it", async () => {
    const handle = await lab.capstan.enqueue(agents.beside, TASK);
    const requested = await until("the request", async () => (await lab.events(handle.id)).find(({ type }) => type === "compaction.requested"));
    await until("four turns more", async () => (await handle.status()).turn >= requested.turn + 4);
    gates.beside.open();
    await lab.settled(handle.id, 30_000);
    const { requests, events } = await sound(lab, handle.id, beside, { system, task: TASK });
    const marker = events.find(({ type }) => type === "context.compacted");
    const first = requests.find(({ messages }) => isCompacted(textOf(messages[0])));
    const kept = events.filter(({ type, seq }) => type === "tool.completed" && seq >= payloads(events, "context.compacted")[0].cut.first_kept_seq && seq < (marker?.seq ?? 0));
    expect(kept.length).toBeGreaterThanOrEqual(8);
    expect(first?.messages.filter(({ role }) => role === "tool").map(messageText)).toEqual(
      kept.map(({ payload }) => expect.stringContaining(JSON.stringify((payload as { output: string }).output))),
    );
  });

  it("C40 a summary of a view that is not there any more is superseded", async () => {
    // Nothing but a compaction or a pruning changes a view's epoch today: the task is made to be of another one.
    await lab.db.query(`create function public.other_epoch() returns trigger language plpgsql as $$ begin new.view_epoch := new.view_epoch + 5; return new; end $$`);
    await lab.db.query(`create trigger other_epoch before insert on capstan.compaction_tasks for each row when (new.agent = 'cleared') execute function public.other_epoch()`);
    const run = await ran(lab, agents.cleared, TASK);
    expect(await run.handle.compact()).toMatchObject({ applied: "failed", reason: "superseded" });
    expect(made.cleared).toBe(0);
    const { state } = await sound(lab, run.id, cleared, { system, task: TASK });
    expect(state.epoch).toBe(0);
    expect((await lab.db.query("select state from capstan.compaction_tasks where run_id = $1", [run.id])).rows).toEqual([{ state: "superseded" }]);
  });

  it("C42 a worker that stops in the middle of a summary gives the task back, and it is applied once", async () => {
    const handle = await lab.capstan.enqueue(agents.stopped, TASK);
    await gates.stopped.opened;
    await lab.worker?.stop();
    await lab.startWorker();
    await lab.settled(handle.id, 30_000);
    const { events } = await sound(lab, handle.id, stopped, { system, task: TASK });
    expect(payloads(events, "context.compacted").map(({ head }) => head.summary)).toEqual(["the second try"]);
    expect(payloads(events, "compaction.failed")).toEqual([]);
    expect(made.stopped).toBe(2);
  });

  it("C42 a task whose worker is gone is made again, and the lost worker's summary is refused", async () => {
    const handle = await lab.capstan.enqueue(agents.fenced, TASK);
    await until("the claim", () => made.fenced === 1);
    // As if the process had died: its incarnation is unknown to everybody.
    await lab.db.query("update capstan.compaction_tasks set worker_id = $2 where run_id = $1 and state = 'summarizing'", [handle.id, randomUUID()]);
    await until("the second try", () => made.fenced === 2);
    await until("the marker", async () => typesOf(await lab.events(handle.id)).includes("context.compacted"));
    gates.fenced.open();
    await lab.settled(handle.id, 30_000);
    const { events } = await sound(lab, handle.id, fenced, { system, task: TASK });
    expect(payloads(events, "context.compacted").map(({ head }) => head.summary)).toEqual(["try 2"]);
    expect((await lab.db.query("select state from capstan.compaction_tasks where run_id = $1", [handle.id])).rows).toEqual([{ state: "applied" }]);
  });

  it("C44 side effects stand in the ledger, and the task byte for byte", async () => {
    const run = await ran(lab, agents.cloning, TASK);
    expect(await run.handle.compact()).toMatchObject({ applied: "live" });
    const { state } = await sound(lab, run.id, cloning, { system, task: TASK });
    expect(state.view).toHaveLength(1);
    const head = textOf(state.view[0]);
    for (let n = 1; n <= 20; n++) expect(head).toContain(`act {"what":"clone ${n}"}: 1 ok`);
    expect(state.view[0]?.content).toContainEqual(user(TASK).content[0]);
  });

  it("C45 a run that is taken up again sees the head and the tail, and nothing that was replaced", async () => {
    const run = await ran(lab, agents.rows, TASK);
    await run.handle.compact();
    const { state, events } = await sound(lab, run.id, rows, { system, task: TASK });
    const [marker] = payloads(events, "context.compacted");
    const tail = events.filter(({ type, seq }) => ["model.responded", "tool.completed", "input.applied"].includes(type) && seq >= marker.cut.first_kept_seq);
    expect(state.view).toHaveLength(1 + tail.length);
    expect(JSON.stringify(state.view)).not.toContain("page 2:");
    expect(JSON.stringify(state.view)).toContain("page 9:");
  });

  it("C48 the newest message stands word for word behind the head, and the task is labelled as begun", async () => {
    const run = await ran(lab, agents.questions, "U1 use skill x");
    expect(run.status.wait_reason).toBe("input");
    await run.handle.send("QUESTION: what is odd on page 3?");
    await until("the answer", async () => (await run.handle.status()).wait_reason === "input" && payloads(await lab.events(run.id), "run.parked").length === 2);
    const { requests } = await sound(lab, run.id, questions, { system, task: "U1 use skill x" });
    const compacted = requests.filter(({ messages }) => isCompacted(textOf(messages[0])));
    expect(compacted.length).toBeGreaterThan(0);
    for (const { messages } of compacted) {
      expect(messages.slice(1).some((message) => textOf(message) === "QUESTION: what is odd on page 3?")).toBe(true);
      expect(textOf(messages[0])).toContain('<capstan-task status="original task (verbatim; parts of it may be done, see below)">');
    }
  });

  it("C51 the system prompt is the definition's in every request, and the summarizer's is the instruction alone", async () => {
    const run = await ran(lab, agents.prompts, TASK);
    expect(payloads(run.events, "context.compacted").length).toBeGreaterThan(0);
    const { requests } = await sound(lab, run.id, prompts, { system: oddSystem });
    for (const { messages } of requests) expect(JSON.stringify(messages)).not.toContain("You are one prompt.");
    for (const { system: sent, messages } of prompts.summaries(run.id)) {
      expect(sent).toBe(DEFAULT_SUMMARIZER_INSTRUCTION);
      expect(JSON.stringify(messages)).not.toContain("You are one prompt.");
    }
    expect((payloads(run.events, "context.compacted")[0].head as Head).summary).not.toBe("");
  });
});
