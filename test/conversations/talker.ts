/**
 * A person's client in a process of its own, to be killed: starts a run or takes one up by its id and the last seq that
 * was seen, follows it and says the next thing whenever it waits. What it has said it knows from the run's journal.
 */
import { readFileSync } from "node:fs";
import { createClient } from "../../src/client/client.ts";
import type { RunEvent } from "../../src/client/handle.ts";

export type FromTalker = { readonly run: string } | { readonly seq: number; readonly type: string } | { readonly delta: string } | { readonly over: true };

const tell = (message: FromTalker): Promise<void> => new Promise((resolve) => process.send?.(message, undefined, undefined, () => resolve()));
process.on("disconnect", () => process.exit());

const inputs = JSON.parse(readFileSync(process.env["TALK_INPUTS"] ?? "", "utf8")) as string[];
const after = Number(process.env["TALK_AFTER"] ?? 0);
const client = createClient({ connectionString: process.env["DATABASE_URL"] ?? "", poolMax: 2 });
const run = process.env["TALK_RUN"] === undefined ? await client.enqueue(process.env["TALK_AGENT"] ?? "", inputs[0]) : client.run(process.env["TALK_RUN"]);
await tell({ run: run.id });

let said = 0;
/** What an event says of the conversation. True when it is over. */
async function take({ type, payload }: RunEvent, isNew: boolean): Promise<boolean> {
  if (type === "run.created" || type === "input.applied") said++;
  if (!isNew || type !== "run.parked" || payload["reason"] !== "input") return false;
  if (said === inputs.length) return true;
  // Again after a death: the key says that it is the same.
  await run.send(inputs[said], { dedupeKey: `said ${said}` });
  return false;
}

let last: RunEvent | undefined;
for await (const event of run.events({ follow: false })) {
  if (event.seq > after) break;
  await take(event, false);
  last = event;
}
let isOver = last?.type === "run.parked" && (await take(last, true));
if (!isOver) {
  for await (const item of run.follow({ after })) {
    if (item.type === "delta") {
      await tell({ delta: item.delta.text });
      continue;
    }
    await tell({ seq: item.event.seq, type: item.event.type });
    if ((isOver = await take(item.event, true))) break;
  }
}
await tell({ over: true });
await client.close();
process.disconnect();
