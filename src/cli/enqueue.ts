import { Option, type Command } from "commander";
import { DefinitionPins, enqueueRun, type EnqueueOptions } from "../client/enqueue.ts";
import { ResultTimeoutError, RunFailedError } from "../client/errors.ts";
import { toolOutputText } from "../domain/transcript/message.ts";
import { listAgents } from "../store/agent-list.ts";
import { liveWorkersFor } from "../store/run-list.ts";
import { action, addCommand } from "./command.ts";
import { withDatabase, type Database } from "./database.ts";
import { exitCodes, usageError } from "./exit.ts";
import { followRun } from "./follow.ts";
import { parseCount, parseDuration, parseWhen } from "./format.ts";
import { readInput, type InputForm } from "./input.ts";
import { printable, type Output } from "./output.ts";
import { runHandle } from "./run-client.ts";
import { readSettings, withSettings, type SettingFlags } from "./run-settings.ts";

interface EnqueueFlags extends InputForm, SettingFlags {
  readonly tenant?: string;
  readonly idempotencyKey?: string;
  readonly priority?: number;
  readonly runAt?: string;
  readonly deadline?: string;
  readonly interactive?: boolean;
  readonly pool?: string;
  readonly concurrencyKey?: string;
  readonly concurrencyLimit?: number;
  readonly concurrencyScope?: "agent" | "all";
  readonly onConflict?: "queue" | "replace" | "refuse";
  readonly wait?: boolean;
  readonly timeout?: string;
  readonly follow?: boolean;
  readonly deltas?: boolean;
}

export function addEnqueue(program: Command): void {
  const command = addCommand(program, "enqueue", {
    summary: "start a run",
    description:
      'Starts a run of an agent and prints its id. The input is a text or JSON (what begins with {, [ or " and parses is JSON; what begins with { or [ and does not is refused without --text); `-` reads it from standard input, `@file` from a file; without one it is null.',
    examples: [
      `enqueue auditor '{"folder": "src"}' --follow`,
      'enqueue researcher \'{"topic": "tides"}\' --tenant acme --idempotency-key tides-1',
      "enqueue researcher @task.json --wait        # prints the output; exit 5 when the run fails",
      "git diff | capstan enqueue reviewer - --text --follow",
      "enqueue reporter --run-at +10m --deadline +2h",
      "enqueue auditor @task.json --compaction enabled=true --budget hard.tokens=200000 --budget wrap_up=true",
    ],
  })
    .argument("<agent>", "the agent's name")
    .argument("[input]", "text, JSON, - or @file")
    .option("--text", "the input is text, even if it looks like JSON")
    .option("--as-json", "the input is JSON; anything else is refused")
    .option("--tenant <name>", "whose run it is (default: default)")
    .option("--idempotency-key <key>", "met again with the same input it gives the run that exists")
    .option("--priority <n>", "-1000 to 1000, lower runs sooner", parseCount("--priority", { min: -1000, max: 1000 }))
    .option("--run-at <when>", "not before: an ISO 8601 time with a zone, or +10m")
    .option("--deadline <when>", "the run fails when it is not done by then")
    .option("--interactive", "the run waits for input after an answer instead of ending")
    .option("--pool <name>", "the worker pool that is to run it (default: turn)")
    .option("--concurrency-key <key>", "of the tenant's runs with this key one goes at a time")
    .option("--concurrency-limit <n>", "as many go at a time (default: 1)", parseCount("--concurrency-limit", { min: 1, max: 10_000 }))
    .addOption(new Option("--concurrency-scope <scope>", "whose runs count: those of the agent, or of all").choices(["agent", "all"]))
    .addOption(new Option("--on-conflict <what>", "when the key is held: wait in line, replace the run that holds it, or be refused").choices(["queue", "replace", "refuse"]));
  withSettings(command)
    .option("--wait", "wait for the end and print the output")
    .option("--timeout <duration>", "how long --wait waits (30s, 10m); the run goes on")
    .option("--follow", "show the run live until its end")
    .option("--deltas", "with --follow: show answers while they come, also when this is no terminal")
    .action(
      action(async (out, agent: string, given: string | undefined, flags: EnqueueFlags) => {
        if (flags.wait === true && flags.follow === true) throw usageError("--wait and --follow exclude each other: --follow waits too");
        if (flags.deltas === true && flags.follow !== true) throw usageError("--deltas belongs to --follow");
        if (flags.timeout !== undefined && flags.wait !== true) throw usageError("--timeout belongs to --wait");
        const timeoutMs = flags.timeout === undefined ? undefined : parseDuration("--timeout", flags.timeout);
        const options = enqueueOptions(flags);
        const input = await readInput(given, flags);
        return await withDatabase(out, async (database) => {
          const runId = await enqueueRun(database.pool, database.named, agent, input, options, new DefinitionPins(() => ""));
          if ((await liveWorkersFor(database.pool, database.named, agent, options.pool ?? "turn")) === 0) {
            out.note(`no worker with agent ${agent} is running: the run waits until one starts (capstan up, or capstan worker)${await otherAgents(database, agent)}`);
          }
          if (flags.follow === true) {
            out.note(`run ${runId}`);
            return await followRun(out, database, runId, { deltas: flags.deltas });
          }
          if (flags.wait === true) {
            out.note(`run ${runId}`);
            return await waitForEnd(out, database, runId, timeoutMs);
          }
          if (out.isJson) await out.value({ run_id: runId });
          else await out.line(runId);
          return exitCodes.ok;
        });
      }),
    );
}

/** An agent that the database has never seen is accepted, since a worker may bring it; more often its name is misspelt. */
async function otherAgents({ pool, named }: Database, agent: string): Promise<string> {
  const known = (await listAgents(pool, named)).map(({ name }) => name);
  if (known.includes(agent)) return "";
  return known.length === 0 ? "; the database knows no agents yet" : `; the database knows ${known.join(", ")}`;
}

function enqueueOptions(flags: EnqueueFlags): EnqueueOptions {
  return {
    ...(flags.tenant === undefined ? {} : { tenant: flags.tenant }),
    ...(flags.idempotencyKey === undefined ? {} : { idempotencyKey: flags.idempotencyKey }),
    ...(flags.priority === undefined ? {} : { priority: flags.priority }),
    ...(flags.runAt === undefined ? {} : { runAt: parseWhen("--run-at", flags.runAt) }),
    ...(flags.deadline === undefined ? {} : { deadline: parseWhen("--deadline", flags.deadline) }),
    ...(flags.interactive === undefined ? {} : { interactive: flags.interactive }),
    ...(flags.pool === undefined ? {} : { pool: flags.pool }),
    ...concurrencyOf(flags),
    ...readSettings(flags),
    actor: "cli",
  };
}

function concurrencyOf({ concurrencyKey: key, concurrencyLimit: limit, concurrencyScope: scope, onConflict }: EnqueueFlags): Pick<EnqueueOptions, "concurrency"> {
  if (key === undefined) {
    if (limit !== undefined || scope !== undefined || onConflict !== undefined)
      throw usageError("--concurrency-limit, --concurrency-scope and --on-conflict belong to --concurrency-key");
    return {};
  }
  return { concurrency: { key, ...(limit === undefined ? {} : { limit }), ...(scope === undefined ? {} : { scope }), ...(onConflict === undefined ? {} : { onConflict }) } };
}

async function waitForEnd(out: Output, database: Database, runId: string, timeoutMs: number | undefined): Promise<number> {
  try {
    const output = await runHandle(database, runId).result({ signal: database.signal, ...(timeoutMs === undefined ? {} : { timeoutMs }) });
    if (out.isJson) await out.value({ run_id: runId, state: "completed", output });
    else await out.line(printable(toolOutputText(output)));
    return exitCodes.ok;
  } catch (error) {
    if (error instanceof ResultTimeoutError) {
      const { state, wait_reason } = await runHandle(database, runId).status();
      out.note(`run ${runId} is ${state}${wait_reason === undefined ? "" : ` (${wait_reason})`}`);
      throw error;
    }
    if (!(error instanceof RunFailedError)) throw error;
    if (out.isJson) await out.value({ run_id: runId, state: error.details["state"], error: { code: error.code, message: error.message } });
    out.note(`${error.code}: ${printable(error.message)}`);
    return exitCodes.runFailed;
  }
}
