import type { Command } from "commander";
import { ScheduleClient, type ScheduleDetail, type ScheduleView } from "../client/schedules.ts";
import { nextTick, type CatchUp } from "../domain/schedule.ts";
import { action, addCommand, addGroup } from "./command.ts";
import { withDatabase } from "./database.ts";
import { exitCodes } from "./exit.ts";
import { age, parseCount } from "./format.ts";
import { readInput, type InputForm } from "./input.ts";
import { printable, type Output } from "./output.ts";
import { readSettings, withSettings, type SettingFlags } from "./run-settings.ts";
import { factLines, tableLines, type Column } from "./table.ts";

/** How many coming ticks `show` names. */
const COMING = 5;

const columns: Column<ScheduleView>[] = [
  { title: "SCHEDULE", value: ({ tenant, name }) => (tenant === "default" ? name : `${tenant}/${name}`) },
  { title: "AGENT", value: ({ agent }) => agent },
  { title: "CRON", value: ({ cron }) => cron },
  { title: "NEXT (UTC)", value: ({ paused, next_at: at }) => (paused ? "paused" : at === undefined ? "" : wallTime(at, "UTC")) },
  { title: "IN ITS ZONE", value: ({ next_at: at, timezone }) => (at === undefined || timezone === "UTC" ? timezone : `${wallTime(at, timezone)} ${timezone}`) },
  { title: "LAST TICK", value: ({ last_tick_at: at }) => (at === undefined ? "" : `${age(at)} ago`) },
  { title: "ERROR", value: ({ last_error: error }) => (error === undefined ? "" : error.code) },
];

export function addScheduleCommands(program: Command): void {
  const schedules = addGroup(program, "schedules", "runs that are started by the clock");
  addCommand(schedules, "list", {
    summary: "list schedules with their next ticks",
    examples: ["schedules list", "schedules list --tenant acme --json | jq -r '.schedules[].name'"],
  })
    .option("--tenant <name>", "only this tenant's")
    .action(
      action(async (out, { tenant }: { tenant?: string }) =>
        withSchedules(out, async (client) => {
          const found = await client.list(tenant === undefined ? {} : { tenant });
          if (out.isJson) await out.value({ schedules: found });
          else if (found.length === 0) out.note("no schedules yet: capstan schedules create makes one");
          else for (const line of tableLines(columns, found, out.colors.bold)) await out.line(line);
          return exitCodes.ok;
        }),
      ),
    );

  named(
    addCommand(schedules, "show", { summary: "show a schedule and when it comes next", examples: ["schedules show nightly", "schedules show nightly --json | jq .next_ticks"] }),
  ).action(action(async (out, name: string, { tenant }: TenantFlag) => withSchedules(out, async (client) => await show(out, await client.get(name, ref(tenant))))));

  withSettings(
    named(
      addCommand(schedules, "create", {
        summary: "make a schedule, or change one",
        description:
          "Makes a schedule: at every tick of the cron line one run of the agent, by its promoted definition. The line has five fields, minute hour day-of-month month day-of-week, or is @hourly, @daily, @weekly, @monthly or @yearly. The input is given as to enqueue.",
        examples: [
          `schedules create nightly "0 3 * * *" auditor '{"folder": "src"}' --timezone Europe/Berlin`,
          "schedules create reminder '*/15 9-17 * * MON-FRI' clerk --catch-up none",
          "schedules create nightly @daily auditor @task.json --replace",
        ],
      }),
    ),
  )
    .argument("<cron>", "the line, in quotes")
    .argument("<agent>", "the agent's name")
    .argument("[input]", "text, JSON, - or @file: the input of every run")
    .option("--text", "the input is text, even if it looks like JSON")
    .option("--as-json", "the input is JSON; anything else is refused")
    .option("--timezone <zone>", "an IANA name (default: UTC)")
    .option("--catch-up <policy>", "ticks that were missed: none, last or all (default: last)")
    .option("--replace", "bring one of that name to these settings")
    .option("--priority <n>", "-1000 to 1000, lower runs sooner", parseCount("--priority", { min: -1000, max: 1000 }))
    .option("--interactive", "the runs wait for input after an answer instead of ending")
    .option("--pool <name>", "the worker pool that is to run them (default: turn)")
    .action(
      action(async (out, name: string, cron: string, agent: string, given: string | undefined, flags: CreateFlags) => {
        const { tenant, replace, timezone, priority, interactive, pool, catchUp } = flags;
        const settings = readSettings(flags);
        const kept = Object.fromEntries(Object.entries({ tenant, replace, timezone, priority, interactive, pool, catchUp }).filter(([, value]) => value !== undefined));
        const input = await readInput(given, flags);
        return await withSchedules(out, async (client) => await show(out, await client.create(name, { ...kept, ...settings, cron, agent, input, actor: "cli" })));
      }),
    );

  named(
    addCommand(schedules, "pause", {
      summary: "stop a schedule's ticks until it is resumed",
      description: "Stops a schedule's ticks until it is resumed. Runs that it has started go on; ticks that fall into the pause are not caught up.",
      examples: ["schedules pause nightly"],
    }),
  ).action(
    action(async (out, name: string, { tenant }: TenantFlag) =>
      withSchedules(out, async (client) => await told(out, name, "paused", (await client.pause(name, { ...ref(tenant), actor: "cli" })) ? "paused" : "was paused already")),
    ),
  );

  named(addCommand(schedules, "resume", { summary: "let a paused schedule go on with its next tick", examples: ["schedules resume nightly"] })).action(
    action(async (out, name: string, { tenant }: TenantFlag) =>
      withSchedules(out, async (client) => await told(out, name, "resumed", (await client.resume(name, { ...ref(tenant), actor: "cli" })) ? "resumed" : "was not paused")),
    ),
  );

  named(addCommand(schedules, "delete", { summary: "remove a schedule; its runs stay", examples: ["schedules delete nightly"] })).action(
    action(async (out, name: string, { tenant }: TenantFlag) =>
      withSchedules(out, async (client) => {
        await client.delete(name, ref(tenant));
        return await told(out, name, "deleted", "deleted");
      }),
    ),
  );

  named(
    addCommand(schedules, "run", {
      summary: "start one run of a schedule now",
      description: "Starts one run of a schedule now, also of a paused one, and prints its id. Its next tick stays where it is.",
      examples: ["schedules run nightly", "schedules run nightly --json | jq -r .run_id | xargs capstan runs follow"],
    }),
  )
    .option("--idempotency-key <key>", "met again it gives the run that exists")
    .action(
      action(async (out, name: string, { tenant, idempotencyKey }: TenantFlag & { idempotencyKey?: string }) =>
        withSchedules(out, async (client) => {
          const runId = await client.runNow(name, { ...ref(tenant), actor: "cli", ...(idempotencyKey === undefined ? {} : { idempotencyKey }) });
          if (out.isJson) await out.value({ run_id: runId });
          else await out.line(runId);
          return exitCodes.ok;
        }),
      ),
    );
}

interface TenantFlag {
  readonly tenant?: string;
}

interface CreateFlags extends InputForm, TenantFlag, SettingFlags {
  readonly timezone?: string;
  /** Checked with everything else that a schedule is made of. */
  readonly catchUp?: CatchUp;
  readonly replace?: boolean;
  readonly priority?: number;
  readonly interactive?: boolean;
  readonly pool?: string;
}

const ref = (tenant: string | undefined): TenantFlag => (tenant === undefined ? {} : { tenant });

function named(command: Command): Command {
  return command.argument("<name>", "the schedule's name").option("--tenant <name>", "whose schedule it is (default: default)");
}

async function withSchedules(out: Output, work: (client: ScheduleClient) => Promise<number>): Promise<number> {
  return await withDatabase(out, async ({ pool, named: withNames }) => await work(new ScheduleClient(pool, withNames)));
}

async function told(out: Output, name: string, what: string, outcome: string): Promise<number> {
  if (out.isJson) await out.value({ name, [what]: outcome === what });
  else await out.line(`${name}  ${outcome}`);
  return exitCodes.ok;
}

async function show(out: Output, schedule: ScheduleDetail): Promise<number> {
  const coming = comingTicks(schedule);
  if (out.isJson) {
    await out.value({ ...schedule, next_ticks: coming.map((tick) => tick.toISOString()) });
    return exitCodes.ok;
  }
  const { name, tenant, agent, cron, timezone, catch_up: catchUp, paused, last_tick_at: lastTick, last_run_id: lastRun, last_error: error, options, input } = schedule;
  const facts = factLines(
    [
      ["schedule", name],
      ["tenant", tenant],
      ["agent", agent],
      ["cron", `${cron} (${timezone})`],
      ["catches up", catchUp],
      ["next", paused ? "paused" : coming.map((tick) => `${wallTime(tick, "UTC")} UTC${timezone === "UTC" ? "" : `, ${wallTime(tick, timezone)} there`}`)[0]],
      ["last tick", lastTick === undefined ? undefined : `${wallTime(lastTick, "UTC")} UTC`],
      ["last run", lastRun],
      ["error", error === undefined ? undefined : printable(`${error.at} ${error.code}: ${error.message}`)],
      ["options", options === undefined ? undefined : printable(JSON.stringify(options))],
      ["input", printable(JSON.stringify(input))],
    ],
    out.colors.dim,
  );
  for (const line of facts) await out.line(line);
  const others = coming.slice(1).map((tick) => `then  ${wallTime(tick, "UTC")} UTC${timezone === "UTC" ? "" : `, ${wallTime(tick, timezone)} there`}`);
  if (others.length > 0) await out.line(`\n${others.join("\n")}`);
  return exitCodes.ok;
}

function comingTicks({ next_at: nextAt, cron, timezone }: ScheduleView): Date[] {
  const ticks: Date[] = [];
  for (let tick = nextAt === undefined ? undefined : new Date(nextAt); tick !== undefined && ticks.length < COMING; tick = nextTick({ cron, timezone }, tick)) ticks.push(tick);
  return ticks;
}

/** What a clock there shows: `2026-03-29 03:00`. A zone that this machine does not know is shown as UTC. */
function wallTime(at: Date | string, timezone: string): string {
  try {
    return new Intl.DateTimeFormat("sv-SE", { timeZone: timezone, dateStyle: "short", timeStyle: "short" }).format(new Date(at));
  } catch {
    return `${new Date(at).toISOString().slice(0, 16).replace("T", " ")} UTC`;
  }
}
