/**
 * Input that comes while a worker dies in the last turn: answered or carried over, never lost, applied exactly once. By
 * default some of the places at which a worker may die; CAPSTAN_CHAOS=full takes each of them, for both kinds of run.
 */
import { expect, it } from "vitest";
import { turnFailpoints, type Failpoint } from "../../src/engine/failpoints.ts";
import { createTestDatabase } from "../support/database.ts";
import { ended, isFull, lifeBench, waitsFor } from "./life-bench.ts";

const database = await createTestDatabase();
const bench = lifeBench(database.url);
const { db } = bench;

/** At the second hit of a point the worker is in the run's last turn: the first belongs to the turn before. */
const hits: Readonly<Partial<Record<Failpoint, number>>> = {
  "tool.before_execute": 1,
  "tool.executed": 1,
  "results.before_append": 1,
  "results.committed": 1,
  "response.committed": 1,
  "end.before_append": 1,
  "end.committed": 1,
  "append.before_send": 4,
  "append.unacknowledged": 4,
};
const points = turnFailpoints.filter((point) => point !== "growth.before_warning");
const chosen: readonly Failpoint[] = isFull ? points : ["append.unacknowledged", "model.returned", "end.before_append", "end.committed"];

const send = (runId: string, text: string, dedupeKey: string | null = null): Promise<unknown> =>
  db.query("select capstan.send(run_id => $1, payload => to_jsonb($2::text), dedupe_key => $3)", [runId, text, dedupeKey]);
const textOf = (content: unknown): string => (content as { text: string }[])[0]?.text ?? "";

it("is neither lost nor applied twice, wherever in the last turn its worker dies", { timeout: 1_800_000 }, async () => {
  const cells = chosen.flatMap((point) => ["talk", "steered"].map((agent) => ({ point, agent }))).filter((_, n) => isFull || n % 4 === 0 || n % 4 === 3 || n > 5);
  const waiting = cells.entries();
  const problems: string[] = [];
  let killed = 0;
  const lane = async (): Promise<void> => {
    for (const [id, { point, agent }] of waiting) {
      const label = `${agent} at ${point}`;
      try {
        const pool = `inputs-${id}`;
        const runId = await bench.enqueue(agent, { pool });
        const starting = bench.child(pool, { agents: [agent], failpoint: `${point}:${hits[point] ?? 2}` });
        const gone = starting.then((child) => child.ended);
        // One goes to it before it dies, as soon as its turn has begun; or when it is gone, if it was quicker.
        const begun = bench.until(runId, `the first turn (${label})`, ({ turn }) => turn >= 1);
        begun.catch(() => {});
        const before = Promise.race([gone, begun]).then(() => send(runId, "before"));
        before.catch(() => {});
        const victim = await starting;
        await Promise.race([victim.ended, bench.until(runId, `the run rests (${label})`, (facts) => ended(facts) || (waitsFor("input")(facts) && facts.turn >= 3))]);
        const accepted: string[] = [];
        const keep = async (text: string, sent: Promise<unknown>): Promise<void> => {
          try {
            await sent;
            accepted.push(text);
          } catch (error) {
            // A run that has ended says so: it is the sender's to start a new one.
            expect(error).toMatchObject({ code: "KC003" });
          }
        };
        await keep("before", before);
        await keep("meanwhile", send(runId, "meanwhile"));
        if (!victim.isAlive()) killed++;
        const heir = await bench.worker(pool);
        await bench.until(runId, `the run comes to rest (${label})`, (facts) => ended(facts) || waitsFor("input")(facts));
        await Promise.all([heir.stop(), victim.stop()]);
        const events = await bench.events(runId);
        const applied = (await bench.of(runId, "input.applied")).map(({ payload }) => textOf(payload.content));
        expect(applied.toSorted(), label).toEqual(accepted.toSorted());
        // And answered: a model was asked, and has said something, behind the last of them.
        const lastInput = events.findLastIndex(({ type }) => type === "input.applied");
        if (lastInput >= 0) expect(events.slice(lastInput).map(({ type }) => type)).toEqual(expect.arrayContaining(["model.requested", "model.responded"]));
        await bench.intact([runId]);
      } catch (error) {
        problems.push(`${label}: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}`);
      }
    }
  };
  await Promise.all([lane(), lane()]);
  expect(problems).toEqual([]);
  console.log(`inputs: killed at ${killed} of ${cells.length} places`);
  // Some places lie behind the end of a run that was quick; most must have been met.
  expect(killed).toBeGreaterThanOrEqual(Math.ceil(cells.length * 0.7));
});

it("of 100 inputs in the same moment 16 are taken and the others refused by name; the same key counts once", { timeout: 120_000 }, async () => {
  const pool = "hundred";
  const runId = await bench.enqueue("listens", { pool });
  const first = await bench.worker(pool);
  await bench.until(runId, "the run takes input", waitsFor("input"));
  await first.stop();
  // Three senders repeat one key among the others.
  const texts = Array.from({ length: 100 }, (_, n) => (n % 10 === 0 ? "the same" : `input ${n}`));
  const sent = await Promise.allSettled(texts.map((text) => send(runId, text, text)));
  const accepted = new Set<string>();
  for (const [n, outcome] of sent.entries()) {
    if (outcome.status === "fulfilled") accepted.add(texts[n] as string);
    else expect(outcome.reason).toMatchObject({ code: "KC004" });
  }
  expect(accepted.size).toBe(16);
  // Nobody reads yet: exactly these stand in the inbox, in one order.
  const { rows } = await db.query<{ payload: string }>("select payload from capstan.inbox where run_id = $1 and applied_seq is null order by id", [runId]);
  expect(new Set(rows.map(({ payload }) => payload))).toEqual(accepted);
  expect(rows).toHaveLength(16);
  const second = await bench.worker(pool);
  await bench.until(runId, "the run has taken them", (facts) => waitsFor("input")(facts) && facts.turn >= 2);
  expect((await bench.of(runId, "input.applied")).map(({ payload }) => textOf(payload.content))).toEqual(rows.map(({ payload }) => payload));
  // While it reads: whoever is refused tries again, and nothing is lost or doubled.
  const more = Array.from({ length: 60 }, (_, n) => `more ${n % 30}`);
  await Promise.all(
    more.map(async (text) => {
      for (;;) {
        try {
          return await send(runId, text, text);
        } catch (error) {
          expect(error).toMatchObject({ code: "KC004" });
          await new Promise((resolve) => setTimeout(resolve, 20));
        }
      }
    }),
  );
  await bench.until(runId, "the run has taken these too", waitsFor("input"));
  const applied = (await bench.of(runId, "input.applied")).map(({ payload }) => textOf(payload.content));
  expect(applied.slice(16).toSorted()).toEqual([...new Set(more)].toSorted());
  await bench.intact([runId]);
  await second.stop();
});
