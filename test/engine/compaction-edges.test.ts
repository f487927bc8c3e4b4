/** Where a compaction meets the end of a run, a run that waits, and numbers that no ledger takes. */
import { afterAll, beforeAll, expect, it } from "vitest";
import { z } from "zod";
import { agent } from "../../src/agents/agent.ts";
import { tool } from "../../src/agents/tool.ts";
import type { SummarizerFunction } from "../../src/compaction/effect.ts";
import { LOST_JOBS_SQL } from "../../src/queue/sql/sweep.ts";
import { createTestDatabase } from "../support/database.ts";
import { driver, look, lookTool, patient, SUMMARY } from "../compaction-cases/support.ts";
import { openLab, payloads, until, type Lab } from "./harness.ts";

const database = await createTestDatabase();
const PAGES = 6;

let release: () => void = () => {};
const released = new Promise<void>((resolve) => (release = resolve));
/** Writes nothing before it is let. */
const held: SummarizerFunction = async () => {
  await released;
  return { summary: SUMMARY };
};
let fractions = 0;
const fractional: SummarizerFunction = async () => {
  fractions++;
  return { summary: SUMMARY, usage: { input: 10.5, output: 3.25, scale: "estimate" } };
};

/** Lets the summary be made, and ends when it lies in the run's inbox. */
const letIt = tool({
  name: "let_it",
  description: "Lets the summary be made.",
  input: z.object({}),
  effect: "read",
  async execute(_, { runId }) {
    release();
    await until("the summary", async () => (await lab.db.query("select from capstan.compaction_tasks where run_id = $1 and state = 'ready'", [runId])).rows.length === 1);
    return "it is there";
  },
});

const submitting = driver("submitting", {
  turn: ({ turn }) =>
    turn <= PAGES
      ? { asks: [look(turn)] }
      : {
          asks: [
            { name: "submit_output", input: { done: true } },
            { name: "let_it", input: {} },
          ],
        },
});
const paging = driver("paging", {
  turn: patient(
    () => lab,
    ({ turn }) => (turn <= PAGES ? { asks: [look(turn)] } : undefined),
  ),
});
const refusing = driver("refusing", { turn: () => ({ fails: "CONTEXT_OVERFLOW" }) });

const submits = agent({
  name: "submits",
  model: "scripted:submitting",
  instructions: "Submit.",
  tools: [lookTool, letIt],
  output: z.object({ done: z.boolean() }),
  compaction: { after_bytes: 9_000, summarizer: "held", keep_last_n: 1 },
  limits: { maxTurns: PAGES + 1 },
});
const counts = agent({
  name: "counts",
  model: "scripted:paging",
  instructions: "Read.",
  tools: [lookTool],
  compaction: { after_bytes: 9_000, summarizer: "fractional", keep_last_n: 1 },
});
const waits = agent({ name: "waits", model: "scripted:refusing", instructions: "Talk.", interactive: true });

let lab: Lab;
beforeAll(async () => {
  lab = await openLab(database.url, { agents: [submits, counts, waits], models: [submitting, paging, refusing], summarizers: { held, fractional } });
});
afterAll(() => lab[Symbol.asyncDispose]());

it("a summary that comes with the accepted output costs no further turn, at the last one neither", async () => {
  const run = await lab.run(submits, "Read, then submit.");
  expect(run.status).toMatchObject({ state: "completed", output: { done: true }, turn: PAGES + 1 });
  expect(submitting.requests(run.id)).toHaveLength(PAGES + 1);
  expect(payloads(run.events, "context.compacted")).toHaveLength(1);
  await lab.intact(run.id);
});

it("a summarizer that counts in fractions is paid once, and its summary is applied", async () => {
  const run = await lab.run(counts, "Read.");
  expect(run.status.state).toBe("completed");
  const applied = payloads(run.events, "context.compacted").length;
  const { rows } = await lab.db.query("select input_tokens::int as input, output_tokens::int as output, outcome from capstan.usage_ledger where run_id = $1", [run.id]);
  expect(applied).toBeGreaterThan(0);
  expect(rows).toHaveLength(fractions);
  expect(rows[0]).toEqual({ input: 11, output: 3, outcome: "ok" });
  await lab.intact(run.id);
});

it("input to a run whose context is exhausted waits with it, and wakes nobody again and again", async () => {
  const run = await lab.run(waits, "Hello.");
  expect(run.status).toMatchObject({ state: "waiting", wait_reason: "context_exhausted" });
  await run.handle.send("Are you there?");
  const wishedFor = async (): Promise<unknown[]> => (await lab.db.query<{ run_id: string }>(LOST_JOBS_SQL, [0])).rows.map(({ run_id: id }) => id);
  // An agent's jobs are looked for while a worker has a slot free: it has twenty.
  expect(await wishedFor()).not.toContain(run.id);
  await run.handle.compact({ when: "boundary" });
  await until("the answer to the request", async () => (await lab.events(run.id)).some(({ type }) => type === "compaction.skipped"));
  expect(await wishedFor()).not.toContain(run.id);
  expect(refusing.requests(run.id)).toHaveLength(1);
});

it("no run can be put into the pool that makes summaries", async () => {
  await expect(lab.capstan.enqueue(waits, "Hello.", { pool: "summarize" })).rejects.toMatchObject({ code: "ARGUMENT_INVALID" });
});
