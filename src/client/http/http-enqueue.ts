/** Starts runs by requests. */
import { randomUUID } from "node:crypto";
import type { JsonObject } from "../../domain/json.ts";
import { checkedInput, type TypedAgent } from "../agent-contract.ts";
import { checkCount, type EnqueueItem } from "../enqueue-many.ts";
import { inputJson, type EnqueueOptions } from "../enqueue.ts";
import type { ApiRequests } from "./api-requests.ts";
import { refuseOverHttp, withoutUndefined } from "./wire.ts";

/** A request that is made again because its answer was lost must not start a second run: it has a key, the caller's or one of its own. */
export async function enqueueOverHttp(
  api: ApiRequests,
  agent: TypedAgent | string,
  input: unknown,
  { idempotencyKey = randomUUID(), ...options }: EnqueueOptions,
): Promise<string> {
  const body = runBody(agent, input, options);
  return (await api.json<{ run_id: string }>({ method: "POST", path: "/runs", body, idempotencyKey })).run_id;
}

export async function enqueueManyOverHttp(api: ApiRequests, items: readonly EnqueueItem[]): Promise<string[]> {
  checkCount(items.length);
  if (items.length === 0) return [];
  const runs = items.map(({ agent, input, options: { idempotencyKey = randomUUID(), ...options } = {} }) => ({
    ...runBody(agent, input, options),
    idempotency_key: idempotencyKey,
  }));
  const { items: started } = await api.json<{ items: readonly { run_id: string }[] }>({ method: "POST", path: "/runs/batch", body: { runs }, repeatable: true });
  return started.map(({ run_id: id }) => id);
}

/** An agent in code is named: its runs get the definition that is promoted, since a service over HTTP stores none. */
function runBody(agent: TypedAgent | string, input: unknown, options: EnqueueOptions): JsonObject {
  const { tx, tenant, actor, traceparent, tracestate, ...given } = options;
  refuseOverHttp("enqueue", { tx, tenant, actor, traceparent, tracestate });
  const name = typeof agent === "string" ? agent : agent.name;
  return { agent: name, input: inputJson(name, checkedInput(agent, input)), ...optionsBody(given) };
}

function optionsBody(given: Omit<EnqueueOptions, "tx">): JsonObject {
  const { runAt, deadline, concurrency, labels, definitionSha, compaction, budget, subject, priority, interactive, metadata, pool } = given;
  const { onConflict, ...key } = concurrency ?? {};
  return withoutUndefined({
    subject,
    priority,
    interactive,
    metadata,
    pool,
    labels: labels && [...labels],
    run_at: runAt?.toISOString(),
    deadline: deadline?.toISOString(),
    definition_sha: definitionSha,
    compaction: compaction as JsonObject | undefined,
    budget: budget as JsonObject | undefined,
    concurrency: concurrency && withoutUndefined({ ...key, on_conflict: onConflict }),
  });
}
