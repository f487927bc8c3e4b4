/** Following runs whose workers are processes that die in the middle of an answer. */
import { describe, expect, it, onTestFinished } from "vitest";
import { createClient } from "../../src/client/client.ts";
import { faultScripts } from "../chaos/fault-agents.ts";
import { faultBench } from "../chaos/fault-bench.ts";
import { until } from "../engine/harness.ts";
import { createTestDatabase } from "../support/database.ts";
import { deltasOf, expectInOrder, follower } from "./follower.ts";

const database = await createTestDatabase();
const bench = faultBench(database.url);
const texts = (faultScripts["streams"] ?? []).map(({ text }) => text);

describe("a run whose worker is killed in the middle of an answer", () => {
  it("is followed on: the next attempt's text is whole, events have no gap and no double", async () => {
    const client = createClient({ connectionString: database.url });
    onTestFinished(() => client.close());
    const runId = await bench.enqueue("streams", { pool: "streams" });
    const reader = follower(client.run(runId));
    await reader.untilEvent("run.created");
    const first = await bench.child("streams");
    await until("some of the first answer", () => deltasOf(reader.items).length > 3);
    first.kill("SIGKILL");
    await first.ended;
    expect(reader.items.some((item) => item.type === "event" && item.event.type === "model.responded")).toBe(false);
    const second = await bench.child("streams");
    await reader.ended;
    await second.stop();
    expectInOrder(reader.items);
    const of = (turn: number, attempt: number): string =>
      deltasOf(reader.items)
        .filter((delta) => delta.turn === turn && delta.attempt === attempt)
        .map(({ text }) => text)
        .join("");
    expect(texts[0]?.includes(of(1, 1))).toBe(true);
    expect(of(1, 1)).not.toBe(texts[0]);
    // The second process heard of the follower as soon as it listened, which was before it could take the run over.
    expect(of(1, 2)).toBe(texts[0]);
    expect(of(2, 1)).toBe(texts[1]);
    expect(await bench.breaches(runId)).toEqual([]);
  });

  it("a worker that is stopped with grace sends what it still does", async () => {
    const client = createClient({ connectionString: database.url });
    onTestFinished(() => client.close());
    const runId = await bench.enqueue("streams", { pool: "graceful" });
    const reader = follower(client.run(runId));
    await reader.untilEvent("run.created");
    const first = await bench.child("graceful");
    await until("some of the first answer", () => deltasOf(reader.items).length > 3);
    await first.stop();
    await reader.untilEvent("model.responded");
    expectInOrder(reader.items);
    // Its first words may have come before the worker had heard of the follower; the last ones, said while it stopped, are there.
    expect(texts[0]?.endsWith(reader.text())).toBe(true);
    await client.run(runId).cancel();
    await reader.ended;
  });
});
