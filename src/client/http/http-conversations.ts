/** Conversations by requests. */
import { randomUUID } from "node:crypto";
import type { JsonObject, JsonValue } from "../../domain/json.ts";
import type { ConversationApi, ConversationsApi } from "../api.ts";
import type { ConversationTranscript, ConversationView, CreateConversationOptions, ListConversationsOptions, SendOptions } from "../conversations.ts";
import { inputJson } from "../enqueue.ts";
import { RunHandle } from "../handle.ts";
import type { ApiRequests } from "./api-requests.ts";
import type { HttpRuns } from "./http-runs.ts";
import { refuseOverHttp, withoutUndefined } from "./wire.ts";

export function conversationsOverHttp(api: ApiRequests, runs: HttpRuns): ConversationsApi {
  const open = (id: string): ConversationApi => conversationOverHttp(api, runs, id);
  return {
    open,
    async create({ tenant, tx, budget, ...options }: CreateConversationOptions) {
      refuseOverHttp("create", { tenant, tx });
      const body = withoutUndefined({ ...options, budget: budget as JsonObject | undefined });
      return open((await api.json<{ id: string }>({ method: "POST", path: "/conversations", body })).id);
    },
    async list({ tenant, before, ...filter }: ListConversationsOptions = {}) {
      refuseOverHttp("list", { tenant });
      return (await api.json<{ items: ConversationView[] }>({ method: "GET", path: "/conversations", query: { ...filter, cursor: before } })).items;
    },
  };
}

export function conversationOverHttp(api: ApiRequests, runs: HttpRuns, id: string): ConversationApi {
  const path = `/conversations/${encodeURIComponent(id)}`;
  const handle = <Output>(runId: string): RunHandle<Output> => new RunHandle<Output>(runId, runs);
  return {
    id,
    get: () => api.json<ConversationView>({ method: "GET", path }),
    async send<Output = JsonValue>(input: unknown, options: SendOptions = {}) {
      const { idempotencyKey = randomUUID(), agent, compaction, runBudget, interactive, priority, pool, labels, metadata, runAt, deadline, ...others } = options;
      refuseOverHttp("send", { ...others, agent });
      const body = withoutUndefined({
        input: inputJson(id, input),
        compaction: compaction as JsonObject | undefined,
        budget: runBudget as JsonObject | undefined,
        interactive,
        priority,
        pool,
        labels: labels && [...labels],
        metadata,
        run_at: runAt?.toISOString(),
        deadline: deadline?.toISOString(),
      });
      return handle<Output>((await api.json<{ run_id: string }>({ method: "POST", path: `${path}/messages`, body, idempotencyKey })).run_id);
    },
    async runs() {
      return (await api.json<{ items: readonly { run_id: string }[] }>({ method: "GET", path: `${path}/runs` })).items.map(({ run_id: runId }) => handle<JsonValue>(runId));
    },
    transcript: () => api.json<ConversationTranscript>({ method: "GET", path: `${path}/transcript` }),
  };
}
