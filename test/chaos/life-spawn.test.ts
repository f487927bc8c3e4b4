/**
 * A parent of 32 children whose worker is killed at every place between two commits: 32 children, each done once, joined
 * once. By default at a chosen handful of places; CAPSTAN_CHAOS=full takes all of them, at several hits.
 */
import { expect, it } from "vitest";
import { lifeFailpoints, turnFailpoints, type Failpoint } from "../../src/engine/failpoints.ts";
import { createTestDatabase } from "../support/database.ts";
import { CHILDREN } from "./life-agents.ts";
import { ended, isFull, lifeBench, waitsFor, type LifeBench } from "./life-bench.ts";

const database = await createTestDatabase();
const bench: LifeBench = lifeBench(database.url);
const { db } = bench;

type Kill = `${Failpoint}:${number}`;

const notOfATurn: ReadonlySet<Failpoint> = new Set(["growth.before_warning", "stop.before_append", "stop.committed"]);
const all = [...turnFailpoints, ...lifeFailpoints].filter((point) => !notOfATurn.has(point));
/** Of the parent alone, since its worker has no other agent; and of children's ends, at hits in the midst of them. */
const parents: readonly Kill[] = isFull
  ? all.map((point): Kill => `${point}:1`).concat(["append.before_send:2", "append.unacknowledged:3", "request.committed:2", "end.committed:2"])
  : ["append.unacknowledged:3", "wait.committed:1", "answer.before_append:1"];
/** A child makes one call of the model and none of a tool. */
const childPoints = turnFailpoints.filter((point) => point !== "growth.before_warning" && !/^(response|tool|results)\./.test(point));
const children: readonly Kill[] = isFull ? childPoints.flatMap((point): Kill[] => [`${point}:1`, `${point}:20`]) : ["end.committed:20"];

async function joinedOnce(parent: string): Promise<void> {
  const events = await bench.events(parent);
  expect(events.at(-1)).toMatchObject({ type: "run.completed", payload: { output: "joined" } });
  expect(events.filter(({ type }) => type === "call.waiting")).toHaveLength(1);
  type Joined = { results: { index: number; run_id: string; ok: boolean; output: string }[] };
  const joins = (await bench.of(parent, "tool.completed")).map(({ payload }) => payload.output as Joined);
  expect(joins).toHaveLength(1);
  const results = joins.flatMap((joined) => joined.results);
  expect(results.map(({ index, ok, output }) => [index, ok, output])).toEqual(Array.from({ length: CHILDREN }, (_, n) => [n, true, "leaf"]));
  const { rows } = await db.query<{ id: string; state: string; ends: number }>(
    `select r.id, r.state, (select count(*)::int from capstan.events e where e.run_id = r.id and e.type in ('run.completed', 'run.failed', 'run.cancelled')) as ends
     from capstan.runs r where r.parent_run_id = $1 order by r.child_index`,
    [parent],
  );
  expect(rows.map(({ id }) => id)).toEqual(results.map(({ run_id: id }) => id));
  expect(new Set(rows.map(({ state, ends }) => `${state} ${ends}`))).toEqual(new Set(["completed 1"]));
  expect(await bench.waits(parent)).toEqual([expect.objectContaining({ kind: "children", answered_at: expect.any(Date), settled_at: expect.any(Date) })]);
  await bench.intact([parent, ...rows.map(({ id }) => id)]);
}

it("32 children are started and joined once, wherever a worker dies", { timeout: 1_800_000 }, async () => {
  const cells = [...parents.map((kill) => ({ kill, agents: ["parent-of-32"], other: ["leaf"] })), ...children.map((kill) => ({ kill, agents: ["leaf"], other: ["parent-of-32"] }))];
  const problems: string[] = [];
  const killed: string[] = [];
  const waiting = cells.entries();
  const lane = async (): Promise<void> => {
    for (const [id, { kill, agents, other }] of waiting) {
      const label = `${kill} of ${agents.join()}`;
      try {
        const pool = `spawn-${id}`;
        const parent = await bench.enqueue("parent-of-32", { pool });
        // The rest is another worker's from the beginning, so that it is the armed one that comes by its point.
        const helper = await bench.worker(pool, { agents: bench.agents(other) });
        const victim = await bench.child(pool, { agents, failpoint: kill });
        const done = bench.until(parent, `the parent ends (${label})`, ended);
        done.catch(() => {});
        await Promise.race([victim.ended, done]);
        const heir = await bench.worker(pool);
        await done;
        await Promise.all([helper.stop(), heir.stop()]);
        if (victim.isAlive()) await victim.stop();
        if ((await victim.ended) === "SIGKILL") killed.push(label);
        await joinedOnce(parent);
      } catch (error) {
        problems.push(`${label}: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}`);
      }
    }
  };
  await Promise.all([lane(), lane()]);
  expect(problems).toEqual([]);
  console.log(`spawn: killed at ${killed.length} of ${cells.length} places`);
  // A later hit may come too late; but every place was met.
  const places = new Set(cells.map(({ kill, agents }) => `${kill.split(":")[0]} of ${agents.join()}`));
  expect([...places].filter((place) => !killed.some((label) => label.replace(/:\d+ /, " ") === place))).toEqual([]);
});

it("a child cancelled while it waits for its elder sibling makes no room for another", { timeout: 60_000 }, async () => {
  const pool = "line";
  const worker = await bench.worker(pool);
  const parent = await bench.enqueue("line-of-3", { pool });
  await bench.until(parent, "the parent waits", waitsFor("children"));
  const [first = "", second = "", third = ""] = (await bench.tree(parent)).filter(({ depth }) => depth === 1).map(({ id }) => id);
  await bench.until(first, "the first child is at work", ({ turn }) => turn === 1);
  await db.query("select capstan.cancel_run($1)", [third]);
  expect((await db.query("select ready from capstan.wishes where run_id = $1", [second])).rows).toEqual([{ ready: false }]);
  await db.query("select capstan.cancel_run($1)", [first]);
  await bench.until(second, "the second child is at work", ({ turn }) => turn === 1);
  await db.query("select capstan.cancel_run($1)", [second]);
  await bench.until(parent, "the parent ends", ended);
  const [joined] = (await bench.of(parent, "tool.completed")).map(({ payload }) => payload.output as { results: { ok: boolean }[] });
  expect(joined?.results.map(({ ok }) => ok)).toEqual([false, false, false]);
  await bench.intact([parent]);
  await worker.stop();
});
