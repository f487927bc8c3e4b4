/**
 * Named points between the lines of a turn at which a test kills the process. In production each costs one comparison.
 * `CAPSTAN_FAILPOINT=name` or `name:3` (the third hit) in the environment of a worker arms one. test/chaos kills a
 * worker at each of them; a new name here is covered by itself.
 */
export const turnFailpoints = [
  "job.received",
  "run.loaded",
  "request.before_append",
  "append.before_send",
  "append.unacknowledged",
  "request.committed",
  "model.returned",
  "response.committed",
  "tool.before_execute",
  "tool.executed",
  "results.before_append",
  "results.committed",
  "end.before_append",
  "end.committed",
  "growth.before_warning",
  "job.before_completion",
  "relay.before_dispatch",
  "relay.dispatched",
] as const;

/** Between the lines of a compaction: in the worker of turns, and in that of summaries. */
export const compactionFailpoints = [
  "compaction.before_append",
  "compaction.committed",
  "summarize.dispatched",
  "summarize.claimed",
  "summarize.returned",
  "summarize.before_finish",
  "summarize.finished",
  "marker.before_append",
  "marker.committed",
] as const;

/** Where calls wait for the outside, and where a turn is stopped. */
export const lifeFailpoints = ["wait.before_append", "wait.committed", "answer.before_append", "answer.committed", "stop.before_append", "stop.committed"] as const;

/** Between a webhook's request and the note that it was made. */
export const webhookFailpoints = ["webhook.sent"] as const;

const failpoints = [...turnFailpoints, ...compactionFailpoints, ...lifeFailpoints, ...webhookFailpoints];
export type Failpoint = (typeof failpoints)[number];

const armed = readArmed(process.env["CAPSTAN_FAILPOINT"]);
let hits = 0;

/** Dies by SIGKILL when this point is armed and its turn has come: nothing is flushed, closed or caught. */
export function hitFailpoint(point: Failpoint): void {
  if (armed === undefined || armed.point !== point) return;
  hits++;
  if (hits === armed.hit) process.kill(process.pid, "SIGKILL");
}

function readArmed(setting: string | undefined): { point: Failpoint; hit: number } | undefined {
  if (setting === undefined || setting === "") return undefined;
  const [name, hit = "1"] = setting.split(":");
  const point = failpoints.find((p) => p === name);
  if (point === undefined) throw new RangeError(`CAPSTAN_FAILPOINT ${JSON.stringify(name)} is not one of ${failpoints.join(", ")}`);
  return { point, hit: Number(hit) };
}
