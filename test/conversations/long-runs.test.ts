/**
 * Runs of three times their model's window and more, on real Postgres, against a vendor that refuses what is longer than
 * its window: one whose client dies and comes back, one that moves to another database on the way, and one that starts others.
 */
import { fork } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, describe, expect, it, onTestFinished } from "vitest";
import { contextTool } from "../../src/agents/engine-tools.ts";
import type { RunEvent } from "../../src/client/handle.ts";
import type { CompactionPolicy } from "../../src/domain/compaction/policy.ts";
import { createModelCatalogue } from "../../src/providers/catalogue.ts";
import type { ModelRequest, RecordedConversation } from "../../src/testing/model-server/index.ts";
import { ExportBusyError } from "../../src/transfer/export.ts";
import { collect, openLab, payloads, typesOf, until, type AnyAgent, type Lab } from "../engine/harness.ts";
import { createTestDatabase } from "../support/database.ts";
import {
  answersIn,
  autonomous,
  longConversation,
  longRun,
  openVendor,
  recordedAnswers,
  SUMMARY,
  transcriptTokens,
  WINDOW,
  withCall,
  type LongRun,
  type Vendor,
} from "./long-runs.ts";
import { airline, journaled, recorded } from "./replay.ts";
import type { FromTalker } from "./talker.ts";

const [first, second] = [await createTestDatabase(), await createTestDatabase()];
const folder = mkdtempSync(join(tmpdir(), "capstan-long-"));
afterAll(() => rmSync(folder, { recursive: true }));

const policyOf = (provider: string): CompactionPolicy => ({ enabled: true, autocompact_at_pct: 60, keep_last_n: 2, model: `${provider}:long-summary` });

async function labOn(url: string, vendor: Vendor, agents: readonly AnyAgent[]): Promise<Lab> {
  return await openLab(url, { agents, catalogue: vendor.catalogue, settings: { slots: 12, stickyTurns: { turns: 20, ms: 5_000 } } });
}

/** Throws unless the run is whole, was never refused, and was longer than three windows while no request was longer than one. */
async function wasLong(lab: Lab, vendor: Vendor, runId: string, { windows = 3, compactions = 3 } = {}): Promise<RunEvent[]> {
  const events = await lab.events(runId);
  expect(transcriptTokens(events)).toBeGreaterThan(windows * WINDOW);
  expect(payloads(events, "model.responded").reduce((sum, { usage }) => sum + (usage.input as number), 0)).toBeGreaterThan(windows * WINDOW);
  for (const { usage } of payloads(events, "model.responded")) expect(usage.input).toBeLessThanOrEqual(WINDOW);
  expect(typesOf(events)).not.toContain("model.failed");
  expect(payloads(events, "context.compacted").length).toBeGreaterThanOrEqual(compactions);
  for (const { head } of payloads(events, "context.compacted")) expect(head.summary).toContain(SUMMARY);
  const catalogue = createModelCatalogue(vendor.catalogue);
  const report = await lab.intact(runId, { wire: async (call) => await catalogue.resolve(call.model, "default").wireSha256?.(call) });
  expect(report.wireCompared).toBe(report.requests);
  return events;
}

function nothingRefused(vendor: Vendor): void {
  expect(vendor.refusedForLength()).toBe(0);
  expect(vendor.server.refused).toEqual([]);
}

describe("an interactive run whose client dies and comes back", () => {
  const { conversation } = longConversation(3.2);
  const run = longRun(conversation, { name: "talk", provider: "anthropic", interactive: true, compaction: policyOf("anthropic") });
  const inputsFile = join(folder, "inputs.json");
  const inputs = recorded(conversation).reduce<string[]>((texts, said, i, all) => {
    if (said.role === "user" && all[i - 1]?.role === "user") texts.push(`${texts.pop()}\n\n${said.text}`);
    else if (said.role === "user") texts.push(said.text);
    return texts;
  }, []);

  /** Resolves when the client is gone. It is killed as soon as `kill` says so of what it tells and the last seq that it has told. */
  async function talk({ runId, after, kill }: { readonly runId?: string; readonly after: number; readonly kill?: (message: FromTalker, lastSeq: number) => boolean }) {
    const client = fork(join(import.meta.dirname, "talker.ts"), {
      stdio: ["ignore", "ignore", "inherit", "ipc"],
      execArgv: [],
      env: {
        PATH: process.env["PATH"],
        DATABASE_URL: first.url,
        TALK_AGENT: "talk",
        TALK_INPUTS: inputsFile,
        TALK_AFTER: String(after),
        ...(runId === undefined ? {} : { TALK_RUN: runId }),
      },
    });
    onTestFinished(() => void client.kill("SIGKILL"));
    const told: { run: string; readonly seqs: number[]; isKilled: boolean } = { run: "", seqs: [], isKilled: false };
    client.on("message", (message) => {
      // What is still on its way when it is killed nobody has seen.
      if (told.isKilled) return;
      const one = message as FromTalker;
      if ("run" in one) told.run = one.run;
      if ("seq" in one) told.seqs.push(one.seq);
      if (kill?.(one, told.seqs.at(-1) ?? after) === true) told.isKilled = client.kill("SIGKILL");
    });
    const how = await new Promise<number | string | null>((resolve) => client.once("exit", (code, signal) => resolve(signal ?? code)));
    return { how, run: told.run, seqs: told.seqs };
  }

  it("is talked to from its id alone, and followed without gap or double", async () => {
    writeFileSync(inputsFile, JSON.stringify(inputs));
    await using vendor = await openVendor([run]);
    await using lab = await labOn(first.url, vendor, [run.agent]);
    const begun = await talk({ after: 0, kill: (one, seq) => "delta" in one && seq > 150 });
    expect(begun.how).toBe("SIGKILL");
    // Nobody is there: the turn at hand ends, and the run waits holding nothing.
    await until("the run to rest", async () => {
      const { rowCount } = await lab.db.query("select from capstan.runs where id = $1 and state = 'waiting' and wait_reason = 'input' and worker_id is null", [begun.run]);
      return rowCount === 1;
    });
    const back = await talk({ runId: begun.run, after: begun.seqs.at(-1) as number, kill: (one, seq) => "seq" in one && one.type === "model.requested" && seq > 400 });
    expect(back.how).toBe("SIGKILL");
    // This one comes at once.
    const end = await talk({ runId: begun.run, after: back.seqs.at(-1) as number });
    expect(end.how).toBe(0);
    const events = await wasLong(lab, vendor, begun.run);
    expect([...begun.seqs, ...back.seqs, ...end.seqs]).toEqual(events.map(({ seq }) => seq));
    // Each thing was said once and answered as it was recorded, whoever was there to hear it.
    const said = journaled(events);
    expect(said.flatMap((one) => (one.role === "user" ? [one.text] : []))).toEqual(inputs);
    expect(answersIn(said)).toEqual(recordedAnswers(conversation));
    nothingRefused(vendor);
  }, 180_000);
});

describe("an autonomous run that compacts itself and moves on the way", () => {
  const { conversation: long } = longConversation(3.4);
  const conversation = [20, 60].reduce((made, n) => withCall(made, n, "context", { op: "compact" }), autonomous(long));
  const run = longRun(conversation, { name: "alone", provider: "openai-chat", compaction: policyOf("openai-chat"), engineTools: [contextTool()] });
  const task = recorded(conversation)[0] as { text: string };

  it("goes on elsewhere with the bytes that it would have sent here, and ends", async () => {
    const labs: Lab[] = [];
    // The model is never ahead of a summary: else its place among the requests is a matter of speed, here and there.
    const noSummaryUnderWay = async (): Promise<void> => {
      await until("summaries", async () => {
        const open = await Promise.all(labs.map(async (lab) => (await lab.db.query("select from capstan.compaction_tasks where state in ('requested', 'summarizing')")).rowCount));
        return open.every((count) => count === 0);
      });
    };
    await using vendor = await openVendor([run], { before: noSummaryUnderWay });
    await using here = await labOn(first.url, vendor, [run.agent]);
    await using there = await labOn(second.url, vendor, [run.agent]);
    labs.push(here, there);
    const { id } = await here.capstan.enqueue(run.agent.name, task.text);
    await until("two compactions", async () => typesOf(await here.events(id)).filter((type) => type === "context.compacted").length >= 2, 60_000);
    await here.capstan.run(id).pause();
    const lines = await until("the turn at hand", () => linesAtRest(here, id));
    const moved = await here.events(id);
    const asked = vendor.raw(run.wireModel).length;
    expect(moved.at(-1)?.type).not.toBe("run.completed");

    await there.capstan.importRun(linesOf(lines));
    expect((await there.settled(id, 120_000)).state).toBe("completed");
    const events = await wasLong(there, vendor, id);
    expect(events.slice(0, moved.length)).toEqual(moved);
    expect(payloads(events, "context.compacted").map(({ trigger }) => trigger)).toEqual(expect.arrayContaining(["auto", "self"]));
    expect(answersIn(journaled(events))).toEqual(recordedAnswers(conversation));
    const sentThere = vendor.raw(run.wireModel).slice(asked);
    expect(sentThere.length).toBeGreaterThan(20);

    // The copy that stayed, to compare: in life it would be cancelled.
    await here.capstan.run(id).resume();
    expect((await here.settled(id, 120_000)).state).toBe("completed");
    expect(vendor.raw(run.wireModel).slice(asked + sentThere.length)).toEqual(sentThere);
    await here.intact(id);
    nothingRefused(vendor);
  }, 300_000);
});

describe("a run that starts others", () => {
  const policy = policyOf("openai");
  const SPAWNED_AT = 3;
  let from = 0;
  const made = (name: string, compaction: CompactionPolicy, spawns?: string): LongRun => {
    const taken = longConversation(1.2, from);
    from = taken.next;
    const alone = autonomous(taken.conversation);
    const conversation = spawns === undefined ? alone : withCall(alone, SPAWNED_AT, "agent", { op: "spawn", agent: spawns, input: taskOf(clerks.get(spawns) as LongRun) });
    return longRun(conversation, { name, provider: "openai", compaction, ...(spawns === undefined ? {} : { spawn: { agents: [spawns] } }) });
  };
  const taskOf = ({ conversation }: LongRun): string => (recorded(conversation)[0] as { text: string }).text;
  const clerks = new Map<string, LongRun>();
  // What they say of it themselves fills what their parent leaves open, and nothing else.
  for (const name of ["clerk-a", "clerk-b"]) clerks.set(name, made(name, { keep_last_n: 11, max_tokens: 700 }));
  const desks = ["a", "b"].map((letter) => made(`desk-${letter}`, { autocompact_at_pct: 90, target_percentage: 30 }, `clerk-${letter}`));
  const reader = longRun({ id: "reader", messages: [] }, { name: "reader", provider: "openai" });

  const READ = 80;
  const spawn = (children: readonly { readonly agent: string; readonly input: string }[], n: number): RecordedConversation["messages"] => [
    {
      role: "assistant",
      content: null,
      tool_calls: [{ id: `spawn_${n}`, type: "function", function: { name: "agent", arguments: JSON.stringify({ op: "parallel_spawn", children }) } }],
    },
    { role: "tool", tool_call_id: `spawn_${n}`, content: "" },
  ];
  const parent = longRun(
    {
      id: "head",
      messages: [
        { role: "user", content: "Have the customers served, then have the old records read and say what they have in common." },
        ...spawn(
          desks.map((desk) => ({ agent: desk.agent.name, input: taskOf(desk) })),
          0,
        ),
        ...Array.from({ length: READ / 2 }, (_, n) =>
          spawn(
            [0, 1].map((k) => ({ agent: "reader", input: `Read record ${2 * n + k}.` })),
            n + 1,
          ),
        ).flat(),
        { role: "assistant", content: "They all travel." },
      ],
    },
    { name: "head", provider: "openai", compaction: policy, spawn: { agents: ["desk-a", "desk-b", "reader"] } },
  );
  /** A child of one turn: its answer is the record itself. */
  const record = ({ body, raw }: ModelRequest) => {
    if (body["model"] !== reader.wireModel) return undefined;
    const n = Number(/Read record (\d+)/.exec(raw)?.[1]);
    return { text: JSON.stringify(airline[n]?.messages.slice(1)).slice(0, 1_500) };
  };

  it("has its policy in force in children and their children, and all of them are longer than their window", async () => {
    const all = [parent, reader, ...desks, ...clerks.values()];
    await using vendor = await openVendor(all, { others: record });
    await using lab = await labOn(
      first.url,
      vendor,
      all.map((one) => one.agent),
    );
    const { id } = await lab.capstan.enqueue(parent.agent.name, taskOf(parent));
    expect(await treeEnded(lab, id)).toBe("They all travel.");
    const { rows } = await lab.db.query<{ id: string; agent: string; depth: number; state: string }>(
      "select id, agent, depth, state from capstan.runs where root_run_id = $1 and id <> $1",
      [id],
    );
    expect(rows.filter(({ agent }) => agent === "reader")).toHaveLength(READ);
    expect(new Set(rows.map(({ state }) => state))).toEqual(new Set(["completed"]));
    await wasLong(lab, vendor, id);
    const parents = { enabled: true, autocompact_at_pct: 60, keep_first: true, keep_last_n: 2, target_percentage: 10, model: "openai:long-summary" };
    for (const [depth, others, policyThere] of [
      [1, desks, { ...parents, target_percentage: 30 }],
      [2, [...clerks.values()], { ...parents, target_percentage: 30, max_tokens: 700 }],
    ] as const) {
      for (const one of others) {
        const row = rows.find(({ agent }) => agent === one.agent.name);
        expect(row?.depth).toBe(depth);
        const events = await wasLong(lab, vendor, row?.id ?? "", { windows: 1, compactions: 1 });
        for (const marker of payloads(events, "context.compacted")) expect(marker.policy).toEqual(policyThere);
        expect(answersIn(journaled(events))).toEqual(recordedAnswers(one.conversation));
      }
    }
    nothingRefused(vendor);
  }, 420_000);
});

it("without a policy the vendor refuses the same conversation at its window", async () => {
  const { conversation } = longConversation(1.5);
  const run = longRun(autonomous(conversation), { name: "unwatched", provider: "anthropic" });
  await using vendor = await openVendor([run]);
  await using lab = await labOn(first.url, vendor, [run.agent]);
  const settled = await lab.run(run.agent, (recorded(conversation)[0] as { text: string }).text);
  expect(settled.status).toMatchObject({ state: "waiting", wait_reason: "context_exhausted" });
  expect(vendor.refusedForLength()).toBe(1);
});

/** The root's output. One of the tree that waits for nobody who will come says at once which and for what. */
async function treeEnded(lab: Lab, id: string): Promise<unknown> {
  await until(
    "the tree to end",
    async () => {
      const { rows } = await lab.db.query<{ agent: string; turn: number; state: string; wait_reason: string | null }>(
        "select agent, turn, state, wait_reason from capstan.runs where (id = $1 or root_run_id = $1) and state <> 'completed'",
        [id],
      );
      const stuck = rows.filter(({ state, wait_reason: reason }) => state === "failed" || (state === "waiting" && !["children", "compaction", "retry"].includes(reason ?? "")));
      if (stuck.length > 0) throw new Error(`stuck: ${JSON.stringify(stuck)}`);
      return rows.length === 0;
    },
    200_000,
  );
  return await lab.capstan.run(id).result({ timeoutMs: 1_000 });
}

async function linesAtRest(lab: Lab, id: string): Promise<string[] | undefined> {
  try {
    return await collect(lab.capstan.exportRun(id));
  } catch (error) {
    if (error instanceof ExportBusyError) return undefined;
    throw error;
  }
}

async function* linesOf(lines: readonly string[]): AsyncGenerator<string> {
  yield* lines;
}
