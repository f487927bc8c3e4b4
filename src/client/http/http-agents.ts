/** Definitions by requests. */
import type { JsonObject } from "../../domain/json.ts";
import type { DefinitionChange } from "../../domain/definition-diff.ts";
import type { AgentSummary } from "../../store/agent-list.ts";
import type { ForkedDefinition, HistoryEntry } from "../agents.ts";
import type { AgentsApi } from "../api.ts";
import type { StoredDefinition } from "../find-definition.ts";
import type { ApiRequests } from "./api-requests.ts";
import { refuseOverHttp } from "./wire.ts";

export function agentsOverHttp(api: ApiRequests): AgentsApi {
  const pathOf = (name: string, rest = ""): string => `/agents/${encodeURIComponent(name)}${rest}`;
  return {
    async list() {
      const { items } = await api.json<{ items: readonly Wire<AgentSummary>[] }>({ method: "GET", path: "/agents" });
      return items.map((summary) => ({ ...summary, updated_at: new Date(summary.updated_at) }));
    },
    get: async (nameOrSha, { agent } = {}) => dated(await api.json<Wire<StoredDefinition>>({ method: "GET", path: pathOf(nameOrSha), query: { agent } })),
    async fork(nameOrSha, overlay, { promote, ...options } = {}) {
      refuseOverHttp("fork", options);
      return await api.json<ForkedDefinition>({
        method: "POST",
        path: pathOf(nameOrSha, "/fork"),
        body: { overlay: overlay as JsonObject, promote: promote === true },
        repeatable: true,
      });
    },
    async promote(name, sha, options = {}) {
      refuseOverHttp("promote", options);
      return await api.json<{ sha: string; changed: boolean }>({ method: "POST", path: pathOf(name, "/promote"), body: { sha }, repeatable: true });
    },
    async history(name, { limit } = {}) {
      const { items } = await api.json<{ items: readonly Wire<HistoryEntry>[] }>({ method: "GET", path: pathOf(name, "/history"), query: { limit } });
      return items.map((entry) => ({ ...entry, at: new Date(entry.at) }));
    },
    async diff(before, after) {
      return (await api.json<{ changes: DefinitionChange[] }>({ method: "GET", path: pathOf(before, "/diff"), query: { to: after } })).changes;
    },
    async retire(name, options = {}) {
      refuseOverHttp("retire", options);
      return (await api.json<{ changed: boolean }>({ method: "POST", path: pathOf(name, "/retire"), body: {}, repeatable: true })).changed;
    },
  };
}

/** Points in time travel as texts. */
type Wire<T> = { readonly [K in keyof T]: T[K] extends Date ? string : T[K] };

function dated(stored: Wire<StoredDefinition>): StoredDefinition {
  return { ...stored, created_at: new Date(stored.created_at) };
}
