import type { Command } from "commander";
import { canonicalJson, type JsonObject, type JsonValue } from "../domain/json.ts";
import { toolOutputText } from "../domain/transcript/message.ts";
import { liveWorkersFor, runDetail, type RunDetail } from "../store/run-list.ts";
import type { RunStatusView, WaitsFor } from "../client/handle.ts";
import type { RunStateView } from "../client/lineage.ts";
import { UnknownRunError } from "../client/errors.ts";
import { action, addCommand } from "./command.ts";
import { withDatabase, type Database } from "./database.ts";
import { exitCodes } from "./exit.ts";
import { age, bytes, duration, gauge, parseCount, parseRunId, short, usd } from "./format.ts";
import { showMessages } from "./message-text.ts";
import { printable, type Output } from "./output.ts";
import { bucketText } from "./quotas.ts";
import { runHandle } from "./run-client.ts";
import { pausedFact, waitLines, waitsOfRun, type RunWaits } from "./run-waits.ts";
import { colorState } from "./runs-list.ts";
import { factLines } from "./table.ts";

export function addRunsShow(runs: Command): void {
  addCommand(runs, "show", {
    summary: "show one run: where it stands, what it used, what it waits for",
    description: "Shows one run: where it stands, what it used, what it waits for. With --at as it was right after one of its events, with the messages that a model saw then.",
    examples: ["runs show 0190…", "runs show 0190… --at 12", "runs show 0190… --json | jq .output"],
  })
    .argument("<run id>")
    .option("--at <seq>", "as it was after this event", parseCount("--at", { min: 1, max: 2_147_483_647 }))
    .action(
      action(async (out, given: string, { at }: { at?: number }) => {
        const runId = parseRunId(given);
        return await withDatabase(out, async (database) => {
          if (at !== undefined) {
            const then = await runHandle(database, runId).at(at);
            if (out.isJson) await out.value(then);
            else await showThen(out, then);
            return exitCodes.ok;
          }
          const detail = await runDetail(database.pool, database.named, runId);
          if (detail === undefined) throw new UnknownRunError(`no run ${runId}`);
          const status = await runHandle(database, runId).status();
          const end = {
            compaction: status.compaction,
            ...(status.budget === undefined ? {} : { budget: status.budget }),
            ...(status.waits_for === undefined ? {} : { waits_for: status.waits_for }),
            ...(status.output === undefined ? {} : { output: status.output }),
            ...(status.error === undefined ? {} : { error: status.error }),
          };
          const waiting = await waitsOfRun(database, detail);
          if (out.isJson) await out.value({ ...detail, ...end, waits: waiting.waits, pauses: waiting.pauses, children: waiting.tree?.root.children ?? [] });
          else await show(out, detail, status, { waiting, lacksItsWorker: waiting.pauses.length === 0 && (await lacksWorker(database, detail)) });
          return exitCodes.ok;
        });
      }),
    );
}

async function showThen(out: Output, then: RunStateView): Promise<void> {
  const facts = factLines(
    [
      ["run", then.run_id],
      ["event", `${then.seq} (${then.at})`],
      ["state", then.wait_reason === undefined ? then.state : `awaiting_${then.wait_reason}`],
      ["turn", `${then.turn}, ${PHASES[then.phase]}`],
      ["used", `${short(then.usage.input_tokens)} in, ${short(then.usage.output_tokens)} out`],
    ],
    out.colors.dim,
  );
  for (const line of facts) await out.line(line);
  await out.line("");
  await showMessages(out, then.messages, then.inherited);
  if (then.error !== undefined) await out.line(out.colors.red(`${then.error.code}: ${printable(then.error.message)}`));
}

const PHASES: Readonly<Record<RunStateView["phase"], string>> = {
  boundary: "between turns: it can be forked here",
  answered: "answered: it can be forked here with input",
  requested: "the model was asked and has not answered",
  failed: "the model's call has failed",
  calling: "calls of the model are open",
};

/** A run that could start and that nobody takes. */
async function lacksWorker({ pool, named }: Database, run: RunDetail): Promise<boolean> {
  return run.state === "queued" && !run.paused && !neverDue(run) && (await liveWorkersFor(pool, named, run.agent, run.pool)) === 0;
}

/** A child of a call with more children than may run at once, and a run that waits for its concurrency key: when others have ended. */
function neverDue({ wish_at: at }: RunDetail): boolean {
  return at !== null && at.getUTCFullYear() >= 9_998;
}

function waitsForText(waits: WaitsFor): string {
  const until = waits.until === undefined ? "" : `, until ${new Date(waits.until).toISOString()}`;
  if (waits.kind === "quota") {
    const never = waits.needed === undefined ? "" : ` (one call may need ${waits.needed}, more than the limit of ${waits.limit})`;
    return `quota: ${bucketText(waits.bucket)} is used up${never}${until}`;
  }
  return `concurrency key ${printable(waits.key)}${waits.held_by === undefined ? "" : `, held by ${waits.held_by.join(", ")}`}${until}`;
}

interface Around {
  readonly waiting: RunWaits;
  readonly lacksItsWorker: boolean;
}

async function show(out: Output, run: RunDetail, status: RunStatusView, { waiting, lacksItsWorker }: Around): Promise<void> {
  const { colors } = out;
  const { output, error } = status;
  const facts = factLines(
    [
      ["run", run.id],
      ["state", colorState(colors, run)],
      ["agent", `${printable(run.agent)}${run.definition_sha === null ? " (no definition pinned yet)" : ` ${run.definition_sha.slice(0, 19)}`}`],
      ["tenant", printable(run.tenant)],
      ["started by", run.parent_run_id === null ? undefined : `${run.parent_run_id} (call ${run.parent_call ?? "?"})`],
      ["paused", pausedFact(run, waiting.pauses)],
      ["turn", `${run.turn} (event ${run.last_seq})`],
      ["goes on from", run.base === null ? undefined : `run ${run.base.run_id}, event ${run.base.seq} (${run.origin})`],
      ["conversation", run.conversation_id ?? undefined],
      ["created", `${run.created_at.toISOString()} (${age(run.created_at)} ago)`],
      run.finished_at === null
        ? ["last change", `${age(run.updated_at)} ago`]
        : ["finished", `${run.finished_at.toISOString()} (took ${duration(run.finished_at.getTime() - run.created_at.getTime())})`],
      ["not before", run.run_at?.toISOString()],
      ["deadline", run.deadline?.toISOString()],
      ["goes on at", run.wake_at?.toISOString()],
      ["next job", run.wish_at === null || run.finished_at !== null || neverDue(run) ? undefined : `due ${run.wish_at.toISOString()}`],
      ["held by", run.held_by === null ? undefined : `worker ${run.held_by.worker_id} (${run.held_by.host ?? "?"} pid ${run.held_by.pid ?? "?"})`],
      ["waits for", lacksItsWorker ? `a worker with agent ${printable(run.agent)} in pool ${printable(run.pool)}` : undefined],
      ["waits for", status.waits_for === undefined ? undefined : waitsForText(status.waits_for)],
      ["waits for", neverDue(run) && status.waits_for === undefined ? "an elder sibling to end" : undefined],
      ["waits for", run.park_detail === null || status.waits_for !== undefined || waiting.waits.length > 0 ? undefined : printable(canonicalJson(run.park_detail as JsonValue))],
      ["input waiting", run.inbox_pending === 0 ? undefined : String(run.inbox_pending)],
      ["context", gauge(run.context_tokens, run.context_window).replace(/^ctx /, "")],
      ["used", `${short(run.input_tokens)} in (${short(run.cache_read_tokens)} from cache), ${short(run.output_tokens)} out${costOf(run)}`],
      ["compaction", settingsText(status.compaction as unknown as JsonObject)],
      [
        "budget",
        status.budget === undefined
          ? undefined
          : `${settingsText(status.budget as unknown as JsonObject)}${["", "; a soft limit is reached", "; used up"][status.budget_level ?? 0] ?? ""}`,
      ],
      ["size", `transcript ${bytes(run.transcript_bytes)}, journal ${bytes(run.journal_bytes)}${["", "; grows: see docs/scaling.md", "; critical"][run.growth_level] ?? ""}`],
      ["crashes", run.crash_count === 0 ? undefined : String(run.crash_count)],
      ["key", run.idempotency_key === null ? undefined : printable(run.idempotency_key)],
      ["trace", run.last_span ?? run.traceparent ?? undefined],
    ],
    colors.dim,
  );
  for (const line of [...facts, ...waitLines(waiting, colors)]) await out.line(line);
  if (error !== undefined) await out.line(`\n${colors.red(`${error.code}: ${printable(error.message)}`)}`);
  if (output !== undefined) await out.line(`\n${printable(toolOutputText(output))}`);
}

/** A model without a known price adds nothing to the sum: zero for tokens that were used is no price, not a gift. */
function costOf({ cost_usd_micros: cost, input_tokens: input, output_tokens: output }: RunDetail): string {
  if (cost > 0) return `, ${usd(cost)}`;
  return input + output > 0 ? ", no price" : "";
}

/** `enabled true, keep_last_n 4`; a group by its fields, as `hard.tokens 1000`. */
function settingsText(settings: JsonObject, prefix = ""): string {
  return Object.entries(settings)
    .map(([field, value]) => (typeof value === "object" && value !== null ? settingsText(value as JsonObject, `${field}.`) : printable(`${prefix}${field} ${String(value)}`)))
    .join(", ");
}
