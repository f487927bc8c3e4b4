/** Agent state growth where it concerns Postgres; T numbers are the statements of the specification that each test is for. */
import { afterAll, describe, expect, it, vi } from "vitest";
import { agent } from "../../src/agents/agent.ts";
import { DEFAULT_STATE_GROWTH_WARN_BYTES } from "../../src/domain/growth.ts";
import type { Message } from "../../src/domain/transcript/message.ts";
import * as messages from "../../src/domain/transcript/message.ts";
import type { WarnSink } from "../../src/engine/ports.ts";
import { scriptedModel } from "../../src/testing/scripted-model.ts";
import { openLab, type Lab, type Settled } from "../engine/harness.ts";
import { createTestDatabase } from "../support/database.ts";
import { calls, doing } from "../bad-input/cases.ts";
import type { CanonicalCall } from "../../src/domain/call.ts";

/** Counts how often a message is made into text. */
const counter = vi.hoisted(() => ({ texts: 0 }));
vi.mock("../../src/domain/transcript/message.ts", async (load) => {
  const real = await load<typeof messages>();
  return {
    ...real,
    messageText(message: Message) {
      counter.texts++;
      return real.messageText(message);
    },
  };
});

const [database, other] = [await createTestDatabase(), await createTestDatabase()];

interface Grown extends Settled {
  readonly lab: Lab;
  readonly warnings: { readonly text: string; readonly detail: Record<string, unknown> }[];
  readonly calls: readonly CanonicalCall[];
  /** Messages made into text up to each request. */
  readonly texts: readonly number[];
}

const opened: Lab[] = [];
afterAll(async () => {
  for (const lab of opened) await lab.capstan.close();
});

/** One run with a tool result of `bytes` in each of `turns` turns. */
async function grow(
  url: string,
  turns: number,
  bytes: number,
  { name = "grower", sink, warn, sticky }: { name?: string; sink?: WarnSink; warn?: number | false; sticky?: boolean } = {},
): Promise<Grown> {
  const warnings: Grown["warnings"] = [];
  const texts: number[] = [];
  // Given, since an estimate would make all messages into text.
  const usage = { input: 10, output: 5 };
  const steps = Array.from({ length: turns }, () => () => {
    texts.push(counter.texts);
    return { ...calls("grow"), usage };
  });
  const model = scriptedModel([...steps, { text: "Full.", usage }], { name: `scripted:${name}`, by: "turn" });
  const grower = agent({
    name,
    model: model.name,
    instructions: "Grow.",
    tools: [doing("grow", (_, { turn }) => `${turn} `.padEnd(bytes, "x"), { maxResultBytes: 1_000_000 })],
    limits: { maxTurns: 500 },
    ...(warn === undefined ? {} : { warnTranscriptBytes: warn }),
  });
  const lab = await openLab(url, {
    agents: [grower],
    models: [model],
    onWarn: sink ?? ((text, detail) => void warnings.push({ text, detail })),
    settings: sticky === true ? { stickyTurns: { turns: 50, ms: 5_000 } } : {},
  });
  opened.push(lab);
  const handle = await lab.capstan.enqueue(grower, "grow");
  const status = await lab.settled(handle.id, 120_000);
  // The next run of this agent must not be taken by this worker, whose model and sink are its own.
  await lab.worker?.stop();
  return { id: handle.id, handle, status, events: await lab.events(handle.id), lab, warnings, calls: model.calls, texts };
}

/** What the journal says, without times and without what names the run. */
async function rowsOf({ lab, id }: Grown): Promise<string[]> {
  const { rows } = await lab.db.query<{ line: string }>(
    `select concat_ws(' ', seq, type, version, turn, attempt, step_key, view_epoch, origin, size - coalesce(length(payload ->> 'duration_ms'), 0), (payload::jsonb - 'duration_ms' - 'definition_sha')::text) as line
     from capstan.events where run_id = $1 order by seq`,
    [id],
  );
  return rows.map((row) => row.line);
}

describe("a run that grows past 16 MiB without compaction", () => {
  it("warns first, then is logged as critical; nothing that is stored comes near a limit", async () => {
    const run = await grow(database.url, 20, 900_000, { name: "huge" });
    expect(run.status).toMatchObject({ state: "completed", output: "Full." });
    expect(run.warnings).toHaveLength(1);
    expect(run.warnings[0]?.detail).toMatchObject({ code: "CAPSTAN_STATE_GROWTH", run_id: run.id, turn: 1, threshold_bytes: 262_144 });
    const critical = run.lab.log.filter((line) => line.fields["code"] === "STATE_GROWTH_CRITICAL");
    expect(critical).toHaveLength(1);
    expect(critical[0]?.fields["transcriptBytes"]).toBeGreaterThan(16 * 1024 * 1024);
    expect(critical[0]?.fields["turn"]).toBe(19);
    const { rows } = await run.lab.db.query("select growth_level, transcript_bytes > 16777216 as critical from capstan.runs where id = $1", [run.id]);
    expect(rows).toEqual([{ growth_level: 2, critical: true }]);

    const columns = await run.lab.db.query<{ query: string }>(
      `select format('select %L as place, coalesce(max(octet_length(%I::text)), 0) as bytes from %s', c.relname || '.' || a.attname, a.attname, c.oid::regclass) as query
       from pg_attribute a join pg_class c on c.oid = a.attrelid
       where c.relnamespace in ('capstan'::regnamespace, 'graphile_worker'::regnamespace) and c.relkind in ('r', 'p') and a.atttypid in ('jsonb'::regtype, 'json'::regtype) and not a.attisdropped`,
    );
    expect(columns.rows.length).toBeGreaterThan(10);
    const sizes = await run.lab.db.query<{ place: string; bytes: number }>(columns.rows.map((row) => row.query).join(" union all "));
    expect(sizes.rows.filter((row) => row.bytes > 1_048_576)).toEqual([]);
    await run.lab.intact(run.id);
  }, 180_000);
});

it("T2: one warning in a run, however long it goes on", async () => {
  const run = await grow(database.url, 12, 40_000, { name: "once" });
  expect(run.warnings).toHaveLength(1);
  expect(run.warnings[0]?.detail["turn"]).toBe(7);
});

it("the counter in Postgres is the UTF-8 length of the canonical messages, and crosses strictly above 262,144 (T13)", async () => {
  expect(DEFAULT_STATE_GROWTH_WARN_BYTES).toBe(262_144);
  const run = await grow(database.url, 3, 10_000, { name: "counted", warn: false });
  const last = run.calls.at(-1) as CanonicalCall;
  const answer: Message = { role: "assistant", content: [{ type: "text", text: "Full." }] };
  const bytes = [...last.messages, answer].reduce((sum, message) => sum + Buffer.byteLength(messages.messageText(message)), 0);
  const { rows } = await run.lab.db.query("select transcript_bytes::int as bytes from capstan.runs where id = $1", [run.id]);
  expect(rows).toEqual([{ bytes }]);
  expect(run.warnings).toEqual([]);
});

it("T9: journal rows and requests are the same with the warning on, thrown, rejected and off", async () => {
  const on = await grow(database.url, 8, 40_000);
  expect(on.warnings).toHaveLength(1);
  const rows = await rowsOf(on);
  const throwing = () => {
    throw new Error("the sink is broken");
  };
  for (const changed of [{ sink: throwing }, { sink: () => Promise.reject(new Error("later")) }, { warn: false as const }]) {
    const run = await grow(database.url, 8, 40_000, changed);
    expect(run.status).toMatchObject({ state: "completed", output: on.status.output });
    expect(await rowsOf(run)).toEqual(rows);
    expect(run.calls).toEqual(on.calls);
    await run.lab.intact(run.id);
  }
});

it("T11: a turn makes its new messages into text and no others, at turn 5 as at turn 60", async () => {
  const run = await grow(database.url, 62, 500, { name: "steady" });
  const perTurn = run.texts.slice(1).map((count, i) => count - (run.texts[i] as number));
  expect(new Set(perTurn)).toEqual(new Set([2]));
});

it("T12: the same journal crosses at the same turn on another worker, another database, one job a turn or many, whatever the clock says", async () => {
  const runs = [await grow(database.url, 9, 37_000), await grow(other.url, 9, 37_000, { sticky: true })];
  const turns = runs.map((run) => run.warnings.map((warning) => warning.detail["turn"]));
  expect(turns).toEqual([[8], [8]]);
  expect(runs[0]?.warnings[0]?.detail["transcript_bytes"]).toBe(runs[1]?.warnings[0]?.detail["transcript_bytes"]);
});
