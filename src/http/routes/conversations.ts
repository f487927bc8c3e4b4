/** Threads of several runs. */
import type { FastifyInstance } from "fastify";
import { z } from "zod";
import { wholeNumber } from "../../domain/ranges.ts";
import { recordAudit } from "../../client/audit.ts";
import { listRuns } from "../../store/run-list.ts";
import { act } from "../act.ts";
import type { ApiContext } from "../context.ts";
import { RequestError } from "../problems.ts";
import { idempotencyKeyOf, traceOf } from "../request-headers.ts";
import { route } from "../route.ts";
import * as runs from "../run-shapes.ts";
import * as s from "../shapes.ts";
import { shownSummary } from "./read-runs.ts";
import { areNew, times } from "./start-runs.ts";

const conversationParams = z.strictObject({ conversation_id: s.uuid });
const conversation = z
  .looseObject({
    id: s.uuid,
    tenant: z.string(),
    agent: z.string(),
    subject: z.string().optional(),
    title: z.string().optional(),
    created_at: z.string(),
    updated_at: z.string(),
    runs: z.int(),
    last_run_id: s.uuid.optional(),
    last_state: runs.runState.optional(),
  })
  .meta({ id: "Conversation" });

export function registerConversations(app: FastifyInstance, api: ApiContext): void {
  const { client, db, named } = api;

  route(app, api, "POST /v1/conversations", {
    summary: "Begin a conversation",
    description: "It starts no run: the first message does.",
    body: z.strictObject({
      agent: s.agentName,
      subject: s.word().optional(),
      title: s.word(500).optional(),
      budget: z
        .strictObject({ max_tokens: wholeNumber(512, 2_147_483_647), summarizer: s.word().optional() })
        .optional()
        .describe("From when on it is carried by a rolling summary"),
      metadata: s.metadata.optional(),
    }),
    answers: { 201: conversation },
    async handle({ body, access, reply }) {
      const subject = access.subject ?? body.subject;
      if (access.subject !== undefined && body.subject !== undefined && body.subject !== access.subject) {
        throw new RequestError("FORBIDDEN", `this token begins conversations of subject ${access.subject} only`);
      }
      const made = await act(api, access, async (tx, say) => {
        const begun = await client.conversations.create(s.defined({ ...body, subject, tenant: access.tenant, tx }) as Parameters<typeof client.conversations.create>[0]);
        await say({ action: "conversation.create", target: begun.id, detail: { agent: body.agent } });
        return begun;
      });
      void reply.code(201).header("location", `/v1/conversations/${made.id}`);
      return await made.get();
    },
  });

  route(app, api, "GET /v1/conversations", {
    summary: "List conversations, newest first",
    query: z.strictObject({ agent: s.agentName.optional(), subject: s.word().optional(), cursor: s.uuid.optional(), limit: s.limit(50, 500) }),
    answers: { 200: s.page(conversation) },
    async handle({ query, access }) {
      const { cursor, limit, ...filter } = query;
      const items = await client.conversations.list(s.defined({ ...filter, tenant: access.tenant, before: cursor, limit }));
      const next = items.length === limit ? items.at(-1)?.id : undefined;
      return { items, ...(next === undefined ? {} : { next_cursor: next }) };
    },
  });

  route(app, api, "GET /v1/conversations/:conversation_id", {
    summary: "Show a conversation",
    params: conversationParams,
    answers: { 200: conversation },
    handle: async ({ params }) => await client.conversation(params.conversation_id).get(),
  });

  route(app, api, "POST /v1/conversations/:conversation_id/messages", {
    summary: "Send the next message",
    description: "Gives the run that answers it: a new one, or the interactive one that waits for it. Refused while the last run is at work. `idempotency-key` is honoured.",
    params: conversationParams,
    body: z.strictObject({ input: s.json, compaction: s.compaction.optional(), budget: s.budget.optional(), interactive: z.boolean().optional(), ...runs.derived }),
    answers: { 200: runs.run.describe("The run that has it"), 201: runs.run },
    problems: [409],
    async handle({ params, body, access, request, reply }) {
      const { input, run_at: runAt, deadline, budget: runBudget, ...rest } = body;
      const options = s.defined({ ...rest, runBudget, ...times({ runAt, deadline }), ...traceOf(request), idempotencyKey: idempotencyKeyOf(request), actor: access.actor });
      const { id, isNew } = await act(api, access, async (tx, say) => {
        const run = await client.conversation(params.conversation_id).send(input, { ...options, tx });
        const made = await areNew(tx, named, [run.id]);
        await say({ action: "conversation.message", target: params.conversation_id, detail: { run_id: run.id } });
        return { id: run.id, isNew: made.has(run.id) };
      });
      void reply.code(isNew ? 201 : 200).header("location", `/v1/runs/${id}`);
      return await client.run(id).status();
    },
  });

  route(app, api, "GET /v1/conversations/:conversation_id/runs", {
    summary: "Runs of a conversation, oldest first",
    params: conversationParams,
    answers: { 200: s.list(runs.runSummary).describe("The newest 500") },
    async handle({ params, access }) {
      const { runs: found } = await listRuns(db, named, { tenant: access.tenant, conversationId: params.conversation_id, limit: 500 });
      return { items: found.toReversed().map(shownSummary) };
    },
  });

  route(app, api, "GET /v1/conversations/:conversation_id/transcript", {
    summary: "The messages that the last run's model sees",
    params: conversationParams,
    answers: { 200: z.object({ conversation_id: s.uuid, run_id: s.uuid.nullable(), messages: z.array(runs.message) }) },
    async handle({ params, access }) {
      const transcript = await client.conversation(params.conversation_id).transcript();
      await recordAudit(db, named, { tenant: access.tenant, actor: access.actor, tokenId: access.tokenId, action: "transcript.read", target: params.conversation_id });
      return transcript;
    },
  });
}
