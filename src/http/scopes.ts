/** What a token must hold for each route: the one place that says it. A route that is not here is not served. */
import type { TokenScope } from "../client/tokens.ts";

/** `public`: without a token. `any`: with a token, whatever its scopes. */
export type RouteAccess = TokenScope | "public" | "any";

export const routeScopes = {
  "GET /healthz": "public",
  "GET /readyz": "public",
  "GET /metrics": "admin",
  "GET /openapi.json": "public",

  "POST /v1/runs": "runs:create",
  "POST /v1/runs/batch": "runs:create",
  "GET /v1/runs": "runs:read",
  "GET /v1/runs/:run_id": "runs:read",
  "GET /v1/runs/:run_id/result": "runs:read",
  "GET /v1/runs/:run_id/events": "runs:read",
  "GET /v1/runs/:run_id/transcript": "runs:read",
  "GET /v1/runs/:run_id/state": "runs:read",
  "GET /v1/runs/:run_id/tree": "runs:read",
  "GET /v1/runs/:run_id/usage": "runs:read",
  "GET /v1/runs/:run_id/waits": "runs:read",
  "POST /v1/runs/:run_id/input": "runs:steer",
  "POST /v1/runs/:run_id/stop": "runs:steer",
  "POST /v1/runs/:run_id/cancel": "runs:steer",
  "POST /v1/runs/:run_id/pause": "runs:steer",
  "POST /v1/runs/:run_id/resume": "runs:steer",
  "POST /v1/runs/:run_id/signals/:name": "runs:steer",
  "POST /v1/runs/:run_id/waits/:wait_id/answer": "runs:steer",
  "POST /v1/runs/:run_id/approvals/:call_id": "approvals:decide",
  // A summary costs as a run does, and changes what the run's model sees: not for those who only steer.
  "POST /v1/runs/:run_id/compact": "runs:create",
  "POST /v1/runs/:run_id/fork": "runs:create",
  "POST /v1/runs/:run_id/retry": "runs:create",

  "GET /v1/approvals": "runs:read",
  "POST /v1/conversations": "runs:create",
  "GET /v1/conversations": "runs:read",
  "GET /v1/conversations/:conversation_id": "runs:read",
  "POST /v1/conversations/:conversation_id/messages": "runs:create",
  "GET /v1/conversations/:conversation_id/runs": "runs:read",
  "GET /v1/conversations/:conversation_id/transcript": "runs:read",

  // Agents belong to no tenant: who may write them writes them for all.
  "GET /v1/agents": "runs:read",
  "GET /v1/agents/:agent": "runs:read",
  "GET /v1/agents/:agent/history": "runs:read",
  "GET /v1/agents/:agent/diff": "runs:read",
  "POST /v1/agents/:agent/fork": "agents:write",
  "POST /v1/agents/:agent/promote": "agents:write",
  "POST /v1/agents/:agent/retire": "agents:write",
  "POST /v1/agents/:agent/unretire": "agents:write",

  "GET /v1/schedules": "runs:read",
  "GET /v1/schedules/:schedule": "runs:read",
  "POST /v1/schedules": "runs:create",
  "DELETE /v1/schedules/:schedule": "runs:create",
  "POST /v1/schedules/:schedule/pause": "runs:create",
  "POST /v1/schedules/:schedule/resume": "runs:create",
  "POST /v1/schedules/:schedule/run": "runs:create",

  "GET /v1/usage": "runs:read",
  "GET /v1/queue": "runs:read",
  "GET /v1/pools": "runs:read",
  "GET /v1/pauses": "runs:read",
  "POST /v1/pauses": "admin",
  "DELETE /v1/pauses": "admin",
  "GET /v1/quotas": "runs:read",
  "PUT /v1/quotas": "admin",
  "DELETE /v1/quotas": "admin",

  "GET /v1/webhooks": "admin",
  "POST /v1/webhooks": "admin",
  "GET /v1/webhooks/:webhook": "admin",
  "DELETE /v1/webhooks/:webhook": "admin",
  "POST /v1/webhooks/:webhook/test": "admin",
  "POST /v1/webhooks/:webhook/enable": "admin",
  "POST /v1/webhooks/:webhook/disable": "admin",
  "POST /v1/webhooks/:webhook/rotate": "admin",
  "GET /v1/webhooks/:webhook/deliveries": "admin",
  "POST /v1/deliveries/:delivery_id/redeliver": "admin",

  "GET /v1/tokens": "admin",
  "POST /v1/tokens": "admin",
  "DELETE /v1/tokens/:token_id": "admin",
  "GET /v1/tokens/current": "any",
  "GET /v1/audit": "admin",
} as const satisfies Readonly<Record<string, RouteAccess>>;

export type RouteName = keyof typeof routeScopes;

export function mayUse(scopes: readonly TokenScope[], access: RouteAccess): boolean {
  return access === "public" || access === "any" || scopes.includes(access) || scopes.includes("admin");
}
