import type { Command } from "commander";
import { CapstanError } from "../domain/error.ts";
import {
  bloatFacts,
  growthFacts,
  horizonFacts,
  journalGuardFacts,
  listenDelayMs,
  openWorkers,
  parkedRuns,
  promotedModels,
  queueFacts,
  recentDeaths,
  serverFacts,
  stuckRuns,
  unservedSummaries,
  unservedWishes,
} from "../store/doctor-queries.ts";
import { PauseClient } from "../client/pauses.ts";
import { pausedRuns } from "../store/pause-facts.ts";
import { scheduleFacts } from "../store/schedule-facts.ts";
import { VERSION } from "../version.ts";
import { loadAgents, type AgentsModule } from "./agents-module.ts";
import { action, addCommand } from "./command.ts";
import { withDatabase, type Database } from "./database.ts";
import type { Finding, FindingLevel } from "./doctor/finding.ts";
import { judgePauses } from "./doctor/pauses.ts";
import { roleFacts } from "../store/role-facts.ts";
import { judgeRoles } from "./doctor/roles.ts";
import { judgeSchedules } from "./doctor/schedules.ts";
import { judgeBloat, judgeHorizon, judgeJournalGuard, judgeListen, judgeSchema, judgeServer } from "./doctor/server.ts";
import { judgeGrowth, judgeModels, judgeQueue, judgeStuck, judgeSummaries, judgeUnserved, judgeWorkers } from "./doctor/work.ts";
import { exitCodes } from "./exit.ts";
import { printable, type Colors } from "./output.ts";

export function addDoctor(program: Command): void {
  addCommand(program, "doctor", {
    summary: "check server, schema, workers, queue and runs",
    description: "Checks server, schema, workers, queue and runs, and says of each finding what it means and what to do. Changes nothing. Exit 1 when something is an error.",
    examples: ["doctor", "doctor --json | jq '.findings[] | select(.level != \"ok\")'"],
  })
    .option("--quiet", "leave out what is well")
    .option("--agents <module>", "module whose export `models` the workers have (may be repeated)", (path: string, before: string[]) => [...before, path], [] as string[])
    .action(
      action(async (out, { quiet, agents }: { quiet?: boolean; agents: string[] }) =>
        withDatabase(out, async (database) => {
          const { models } = await loadAgents(agents);
          const all = await examine(database, models);
          const findings = quiet === true ? all.filter(({ level }) => level !== "ok") : all;
          const hasErrors = all.some(({ level }) => level === "error");
          if (out.isJson) await out.value({ ok: !hasErrors, version: VERSION, node: process.version, findings });
          else {
            await out.line(`capstan ${VERSION}, node ${process.version}`);
            for (const each of findings) for (const line of lines(each, out.colors)) await out.line(line);
          }
          return hasErrors ? exitCodes.failed : exitCodes.ok;
        }),
      ),
    );
}

const LISTEN_TIMEOUT_MS = 3_000;

async function examine({ pool, named, config, directUrl }: Database, models: AgentsModule["models"]): Promise<Finding[]> {
  const { migrationStatus } = await import("../store/migrate.ts");
  const { schema, workerSchema } = config.names;
  const server = await serverFacts(pool);
  const migrations = await migrationStatus({ connectionString: directUrl, names: config.names });
  const first = [
    ...judgeServer(server),
    judgeSchema(migrations),
    judgeListen(await listenDelayMs(pool, directUrl, { timeoutMs: LISTEN_TIMEOUT_MS }), config.directDatabaseUrl !== undefined),
  ];
  // Without the tables there is nothing more to look at.
  if (migrations.applied < migrations.known) return first;
  const workers = await openWorkers(pool, named);
  const hasWorkers = workers.some((worker) => worker.silent_ms <= worker.lease_ms);
  return [
    ...first,
    ...judgeJournalGuard(await journalGuardFacts(pool, schema), server.user),
    ...judgeRoles(await roleFacts(pool, named, schema)),
    ...judgeWorkers(workers, await recentDeaths(pool, named), VERSION),
    ...judgeUnserved(await unservedWishes(pool, named), await parkedRuns(pool, named, "agent_missing")),
    ...judgeSummaries(await unservedSummaries(pool, named)),
    ...judgePauses(await new PauseClient(pool, named).list(), await pausedRuns(pool, named)),
    ...judgeStuck(await stuckRuns(pool, named), await parkedRuns(pool, named, "crash_loop"), hasWorkers),
    ...judgeQueue(await queueFacts(pool, named), hasWorkers),
    ...judgeSchedules(await scheduleFacts(pool, named), hasWorkers),
    ...judgeGrowth(await growthFacts(pool, named)),
    ...(await examineModels(await promotedModels(pool, named), models)),
    judgeBloat(await bloatFacts(pool, schema, workerSchema)),
    judgeHorizon(await horizonFacts(pool)),
  ];
}

/** Keys and names only: nothing is sent to a vendor. */
async function examineModels(agents: readonly { readonly agent: string; readonly models: readonly string[] }[], own: AgentsModule["models"]): Promise<Finding[]> {
  const { createModelCatalogue } = await import("../providers/catalogue.ts");
  const catalogue = createModelCatalogue({ models: own, env: process.env });
  const problems = agents.flatMap(({ agent, models }) =>
    models.flatMap((model) => {
      try {
        catalogue.resolve(model, "default");
        return [];
      } catch (error) {
        if (!(error instanceof CapstanError)) throw error;
        return [{ agent, model, message: error.message }];
      }
    }),
  );
  return judgeModels(problems, new Set(agents.flatMap(({ models }) => models)).size);
}

function lines({ level, check, found, means, do: advice }: Finding, colors: Colors): string[] {
  const paint: { readonly [L in FindingLevel]: (text: string) => string } = { ok: colors.green, info: colors.cyan, warning: colors.yellow, error: colors.red };
  const head = `${paint[level](level.padEnd(7))}  ${check}: ${printable(found)}`;
  return [head, ...(means === undefined ? [] : [`         means: ${means}`]), ...(advice === undefined ? [] : [`         do: ${printable(advice)}`])];
}
