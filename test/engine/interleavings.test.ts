/**
 * Random interleavings of what jobs, people, time and crashes do to runs, against a small model of what may come of it.
 * 150 sequences, 2,000 with CAPSTAN_CHAOS=full. CAPSTAN_SEED repeats a failure, CAPSTAN_SHRINK=off leaves it as it was drawn.
 */
import fc from "fast-check";
import { afterAll, beforeAll, expect, it } from "vitest";
import { createTestDatabase } from "../support/database.ts";
import { openLane, type Lane } from "./interleaving-bench.ts";
import { play, sequence } from "./interleaving-play.ts";

const database = await createTestDatabase();
const isFull = process.env["CAPSTAN_CHAOS"] === "full";
const SEQUENCES = Number(process.env["CAPSTAN_SEQUENCES"] ?? (isFull ? 2_000 : 150));
const LANES = 4;
const seed = Number(process.env["CAPSTAN_SEED"] ?? Math.floor(Math.random() * 2 ** 31));

const lanes: Lane[] = [];
beforeAll(async () => {
  for (let n = 0; n < LANES; n++) lanes.push(await openLane(database.url));
});
afterAll(() => Promise.all(lanes.map((lane) => lane.close())));

it(`do what the model says, in ${SEQUENCES} sequences`, async () => {
  let played = 0;
  const results = await Promise.allSettled(
    lanes.map((lane, n) =>
      fc.assert(
        fc.asyncProperty(sequence, async (drawn) => {
          await play(lane, drawn);
          played++;
        }),
        { numRuns: Math.ceil(SEQUENCES / LANES), seed: seed + n, endOnFailure: process.env["CAPSTAN_SHRINK"] === "off" },
      ),
    ),
  );
  const failed = results.flatMap((result, n) => (result.status === "rejected" ? [`CAPSTAN_SEED=${seed} (lane ${n}): ${told(result.reason as Error)}`] : []));
  if (failed.length > 0) throw new Error(failed.join("\n\n"));
  expect(played).toBeGreaterThanOrEqual(SEQUENCES);
}, 3_600_000);

/** The counterexample as it was drawn, and what was seen in it. */
function told({ message, cause }: Error): string {
  return `${message}\n${cause instanceof Error ? (cause.stack ?? cause.message).slice(0, 20_000) : ""}`;
}
