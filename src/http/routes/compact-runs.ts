/** Compaction by hand: asked for in a transaction of its own, then waited for, bounded. */
import type { FastifyInstance } from "fastify";
import { z } from "zod";
import { askToCompact, compactionOutcome, type CompactView } from "../../client/compact.ts";
import { compactionReasons } from "../../domain/compaction/types.ts";
import { act } from "../act.ts";
import type { ApiContext } from "../context.ts";
import { RequestError } from "../problems.ts";
import { route } from "../route.ts";
import * as s from "../shapes.ts";

const DEFAULT_WAIT_MS = 30_000;
const MAX_WAIT_MS = 120_000;

const outcome = z
  .looseObject({
    run_id: s.uuid,
    compaction_id: s.uuid.optional(),
    applied: z.enum(["live", "marker", "noop", "pending"]),
    before_tokens: z.number().optional(),
    after_tokens: z.number().optional(),
    scale: z.string().optional(),
    reason: z.enum(compactionReasons).optional(),
    detail: z.looseObject({}).optional(),
  })
  .meta({ id: "Compaction" });

export function registerCompactRuns(app: FastifyInstance, api: ApiContext): void {
  route(app, api, "POST /v1/runs/:run_id/compact", {
    summary: "Replace the older part of what the run's model sees by a summary",
    description:
      "Refused (409 RUN_BUSY) in the middle of a turn, unless `when=boundary`: then it is done when the turn ends, and answered at once (202). Otherwise the outcome is waited for, and when the time is over (202) the compaction goes on. Asked again meanwhile it is the same one. Nothing of the journal is lost.",
    params: s.runParams,
    query: z.strictObject({
      when: z.enum(["now", "boundary"]).default("now"),
      wait_ms: s.queryNumber(0, MAX_WAIT_MS).optional().describe("Default 30000, with `when=boundary` 0"),
    }),
    body: s.noBody,
    answers: {
      200: outcome.describe("`live`: the run goes on with it. `marker`: the run has ended, and what continues it begins so. `noop`: nothing could be cut, for the reason given"),
      202: outcome.describe("`pending`: not known yet"),
    },
    problems: [409, 502],
    async handle({ params, query, access, reply }) {
      const { when, wait_ms: waitMs = when === "now" ? DEFAULT_WAIT_MS : 0 } = query;
      const inboxId = await act(api, access, async (tx, say) => {
        const id = await askToCompact(params.run_id, { db: tx, named: api.named }, { when, actor: access.actor });
        await say({ action: "run.compact", target: params.run_id, detail: { when } });
        return id;
      });
      const gone = new AbortController();
      reply.raw.once("close", () => gone.abort());
      const view = await compactionOutcome(params.run_id, api, { inboxId, timeoutMs: waitMs, signal: AbortSignal.any([gone.signal, api.stopping]) });
      if (view.applied === "failed") throw failed(view);
      void reply.code(view.applied === "pending" ? 202 : 200);
      return view;
    },
  });
}

function failed({ run_id: runId, compaction_id: compactionId, reason, detail }: CompactView): RequestError {
  return new RequestError("COMPACTION_FAILED", `the summary of run ${runId} could not be made (${reason ?? "unknown reason"}); nothing was changed`, {
    details: { run_id: runId, ...s.defined({ compaction_id: compactionId, reason, detail }) },
  });
}
