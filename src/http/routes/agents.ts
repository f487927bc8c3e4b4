/** Agents' definitions: look, fork, promote, compare, retire. They belong to no tenant. */
import type { FastifyInstance } from "fastify";
import { z } from "zod";
import { createAgents } from "../../client/agents.ts";
import { listAgents } from "../../store/agent-list.ts";
import { act } from "../act.ts";
import type { ApiContext } from "../context.ts";
import { route } from "../route.ts";
import * as s from "../shapes.ts";

/** A name, or the sha of a definition or its beginning. */
const nameOrSha = z
  .string()
  .min(1)
  .max(80)
  .regex(/^[A-Za-z0-9][A-Za-z0-9_.:-]*$/, "must be an agent's name or the sha of a definition");
const agentParams = z.strictObject({ agent: nameOrSha });
const changed = z.object({ changed: z.boolean().describe("False: it was so already") });

const summary = z
  .looseObject({
    name: z.string(),
    promoted_sha: z.string(),
    model: z.string(),
    tools: z.int(),
    versions: z.int(),
    retired: z.boolean(),
    updated_at: z.string(),
    workers: z.int(),
    open_runs: z.int(),
  })
  .meta({ id: "Agent" });
const definition = z
  .looseObject({ sha: z.string(), name: z.string(), definition: z.looseObject({ name: z.string(), model: z.string() }), created_at: z.string(), promoted: z.boolean() })
  .meta({ id: "Definition" });

export function registerAgents(app: FastifyInstance, api: ApiContext): void {
  const { client, named } = api;

  route(app, api, "GET /v1/agents", {
    summary: "List agents",
    answers: { 200: s.list(summary) },
    // What others have to do is not told: runs are counted in the token's tenant.
    handle: async ({ access }) => ({
      items: (await listAgents(api.db, named, { tenant: access.tenant })).map(({ updated_at: updatedAt, ...agent }) => ({ ...agent, updated_at: updatedAt.toISOString() })),
    }),
  });

  route(app, api, "GET /v1/agents/:agent", {
    summary: "Show the promoted definition of an agent, or the one of a sha",
    params: agentParams,
    query: z.strictObject({ agent: s.agentName.optional().describe("Only a sha of this agent is meant") }),
    answers: { 200: definition },
    async handle({ params, query }) {
      const { created_at: createdAt, ...found } = await client.agents.get(params.agent, s.defined(query));
      return { ...found, created_at: createdAt.toISOString() };
    },
  });

  route(app, api, "GET /v1/agents/:agent/history", {
    summary: "What became of an agent's definitions, newest first",
    params: agentParams,
    query: z.strictObject({ limit: s.limit(100) }),
    answers: {
      200: s.list(z.looseObject({ at: z.string(), what: z.enum(["defined", "promoted", "retired", "unretired"]), sha: z.string().nullable(), actor: z.string().nullable() })),
    },
    handle: async ({ params, query }) => ({ items: (await client.agents.history(params.agent, query)).map((entry) => ({ ...entry, at: entry.at.toISOString() })) }),
  });

  route(app, api, "GET /v1/agents/:agent/diff", {
    summary: "What differs between two definitions",
    params: agentParams,
    query: z.strictObject({ to: nameOrSha }),
    answers: { 200: z.object({ changes: z.array(z.looseObject({})) }) },
    handle: async ({ params, query }) => ({ changes: await client.agents.diff(params.agent, query.to) }),
  });

  route(app, api, "POST /v1/agents/:agent/fork", {
    summary: "Store a definition that differs from another one",
    description: "Nothing uses it until somebody promotes it, which `promote` does at once.",
    params: agentParams,
    body: z.strictObject({ overlay: s.overlay, promote: z.boolean().default(false) }),
    answers: { 200: z.object({ sha: z.string(), definition: z.looseObject({}), created: z.boolean().describe("False: there was one with this content") }) },
    async handle({ params, body, access }) {
      return await act(api, access, async (tx, say) => {
        const forked = await createAgents(tx, named).fork(params.agent, body.overlay, { actor: access.actor, promote: body.promote });
        await say({ action: "agent.fork", target: forked.definition.name, detail: { sha: forked.sha, from: params.agent, promoted: body.promote } });
        return forked;
      });
    },
  });

  route(app, api, "POST /v1/agents/:agent/promote", {
    summary: "Make a definition the one that runs started by name get",
    params: agentParams,
    body: z.strictObject({ sha: nameOrSha }),
    answers: { 200: changed.extend({ sha: z.string() }) },
    async handle({ params, body, access }) {
      return await act(api, access, async (tx) => await createAgents(tx, named).promote(params.agent, body.sha, { actor: access.actor }));
    },
  });

  route(app, api, "POST /v1/agents/:agent/retire", {
    summary: "Let no run more be started by this name",
    params: agentParams,
    body: s.noBody,
    answers: { 200: changed },
    handle: async ({ params, access }) => ({ changed: await act(api, access, async (tx) => await createAgents(tx, named).retire(params.agent, { actor: access.actor })) }),
  });

  route(app, api, "POST /v1/agents/:agent/unretire", {
    summary: "Let runs be started by this name again",
    params: agentParams,
    body: s.noBody,
    answers: { 200: changed },
    handle: async ({ params, access }) => ({ changed: await act(api, access, async (tx) => await createAgents(tx, named).unretire(params.agent, { actor: access.actor })) }),
  });
}
