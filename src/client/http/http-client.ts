/** The client of a service that reaches an API, and no database. */
import type { CapstanApi } from "../api.ts";
import type { TypedAgent } from "../agent-contract.ts";
import type { EnqueueOptions } from "../enqueue.ts";
import { RunHandle } from "../handle.ts";
import { ApiRequests, type ApiOptions } from "./api-requests.ts";
import { agentsOverHttp } from "./http-agents.ts";
import { conversationOverHttp, conversationsOverHttp } from "./http-conversations.ts";
import { enqueueManyOverHttp, enqueueOverHttp } from "./http-enqueue.ts";
import { HttpRuns } from "./http-runs.ts";
import { schedulesOverHttp } from "./http-schedules.ts";
import { refuseOverHttp } from "./wire.ts";

export function createHttpClient(options: ApiOptions): CapstanApi {
  const api = new ApiRequests(options);
  const runs = new HttpRuns(api);
  return {
    async enqueue(agent: TypedAgent | string, input: unknown, enqueueOptions: EnqueueOptions = {}) {
      return new RunHandle<never>(await enqueueOverHttp(api, agent, input, enqueueOptions), runs);
    },
    async enqueueMany(items, { tx } = {}) {
      refuseOverHttp("enqueueMany", { tx });
      return (await enqueueManyOverHttp(api, items)).map((id) => new RunHandle(id, runs));
    },
    run: (id) => new RunHandle(id, runs),
    conversations: conversationsOverHttp(api, runs),
    conversation: (id) => conversationOverHttp(api, runs, id),
    agents: agentsOverHttp(api),
    schedules: schedulesOverHttp(api),
    // Connections are the fetch's own, and close by themselves.
    close: () => Promise.resolve(),
  };
}
