/**
 * When a schedule is due: cron lines in a time zone, and what becomes of ticks that were missed. Pure: every instant is an
 * argument. Reading a line is the library's part; what a changed clock hour means is decided here, by `fixedTimeRule`:
 *
 * - A line with set times (no `*` and no step in minute and hour): a time that a clock change leaves out runs once, at
 *   the moment after the change; a time that comes twice runs once, the first time.
 * - A line that repeats (`*` or a step in minute or hour): follows the time that passes. It runs through both passes of a
 *   doubled hour, which are different moments, and has nothing to run in an hour that does not exist.
 */
import { Cron } from "croner";

export const catchUpPolicies = ["none", "last", "all"] as const;
/** Ticks that were missed: none of them, the last one, or all. */
export type CatchUp = (typeof catchUpPolicies)[number];

export interface ScheduleTimes {
  /** Five fields, or one of the `@` names. */
  readonly cron: string;
  /** An IANA name. */
  readonly timezone: string;
}

export interface ScheduleProblem {
  readonly field: string;
  readonly message: string;
}

export type ScheduleTimesResult = { readonly ok: true; readonly times: ScheduleTimes; readonly next: Date } | { readonly ok: false; readonly problem: ScheduleProblem };

/** Ticks that one round starts at most; the rest follow in the next. One commit holds them all, and other work waits for it. */
export const MAX_TICKS_PER_ROUND = 100;
/** With `none`, a tick counts as missed when it is this late. Shorter than this, a restart of the only worker would lose ticks; lines tick once a minute at most, so no two are within it. */
export const ON_TIME_MS = 60_000;

const shorthand = /^@(?:hourly|daily|midnight|weekly|monthly|yearly|annually)$/i;

const fields = [
  { name: "minute", takes: "0-59" },
  { name: "hour", takes: "0-23" },
  { name: "day of month", takes: "1-31, L for the last day" },
  { name: "month", takes: "1-12 or JAN-DEC" },
  { name: "day of week", takes: "0-7 or SUN-SAT (0 and 7 are Sunday), 5#2 for the second Friday" },
] as const;

/** Checks a line and its zone, and gives both as they are kept (single spaces) with the first tick after `now`. */
export function parseScheduleTimes(cron: unknown, timezone: unknown, now: Date): ScheduleTimesResult {
  const zoneProblem = problemOfZone(timezone);
  if (zoneProblem !== undefined) return refused("timezone", zoneProblem);
  const line = typeof cron === "string" ? cron.trim().replaceAll(/\s+/g, " ") : undefined;
  if (line === undefined || line === "") return refused("cron", "is missing: give five fields, minute hour day-of-month month day-of-week, such as 0 9 * * MON-FRI");
  const lineProblem = problemOfLine(line);
  if (lineProblem !== undefined) return refused("cron", lineProblem);
  const times = { cron: line, timezone: timezone as string };
  const next = nextTick(times, now);
  return next === undefined ? refused("cron", `${JSON.stringify(line)} names a day that never comes`) : { ok: true, times, next };
}

/** The first tick after this instant; undefined when none comes any more. Throws on times that were never checked. */
export function nextTick(times: ScheduleTimes, after: Date): Date | undefined {
  return cronOf(times).nextRun(after) ?? undefined;
}

export interface DueTicks {
  /** To start now, oldest first; may be empty. */
  readonly ticks: readonly Date[];
  /** The tick after them. It may be due already, when there were too many for one round. */
  readonly next: Date | undefined;
}

/** What is due at `now` of a schedule whose oldest tick without a run is `nextAt`. */
export function dueTicks(times: ScheduleTimes, catchUp: CatchUp, nextAt: Date, now: Date): DueTicks {
  const cron = cronOf(times);
  if (nextAt.getTime() > now.getTime()) return { ticks: [], next: nextAt };
  if (catchUp === "all") {
    const ticks = [nextAt];
    let next = cron.nextRun(nextAt) ?? undefined;
    while (next !== undefined && next.getTime() <= now.getTime() && ticks.length < MAX_TICKS_PER_ROUND) {
      ticks.push(next);
      next = cron.nextRun(next) ?? undefined;
    }
    return { ticks, next };
  }
  // Searched backwards from now: a line of every minute that nobody served for a year has half a million ticks.
  const [found] = cron.previousRuns(1, new Date(now.getTime() + 1));
  const last = found !== undefined && found.getTime() > nextAt.getTime() ? found : nextAt;
  const isOnTime = now.getTime() - last.getTime() < ON_TIME_MS;
  return { ticks: catchUp === "last" || isOnTime ? [last] : [], next: cron.nextRun(now) ?? undefined };
}

function cronOf({ cron, timezone }: ScheduleTimes): Cron {
  return new Cron(cron, { mode: "5-part", timezone, fixedTimeRule: "no-wildcard" });
}

function refused(field: string, message: string): ScheduleTimesResult {
  return { ok: false, problem: { field, message } };
}

function problemOfZone(timezone: unknown): string | undefined {
  const advice = "give an IANA name such as UTC, Europe/Berlin or America/New_York";
  if (typeof timezone !== "string" || timezone === "") return `is missing: ${advice}`;
  // Some versions of Node take offsets and some do not; all workers have to agree.
  if (/^[+-]/.test(timezone)) return `${timezone} is an offset: ${advice} (Etc/GMT-2 is two hours ahead of UTC all year)`;
  return isZone(timezone) ? undefined : `${JSON.stringify(timezone)} is not known: ${advice}`;
}

function isZone(timezone: string): boolean {
  try {
    return new Intl.DateTimeFormat("en", { timeZone: timezone }).resolvedOptions().timeZone !== "";
  } catch {
    return false;
  }
}

function problemOfLine(line: string): string | undefined {
  if (line.startsWith("@")) return shorthand.test(line) ? undefined : `${line} is not known: use @hourly, @daily, @weekly, @monthly, @yearly or five fields`;
  const parts = line.split(" ");
  if (parts.length !== fields.length) {
    const advice = parts.length === 6 ? "; seconds are not possible" : "";
    return `${JSON.stringify(line)} has ${parts.length} field${parts.length === 1 ? "" : "s"}: give five, minute hour day-of-month month day-of-week${advice}`;
  }
  for (const [i, { name, takes }] of fields.entries()) {
    const part = parts[i] as string;
    const alone = fields.map((_, j) => (j === i ? part : "*")).join(" ");
    if (!isRead(alone)) return `${name} ${JSON.stringify(part)} is wrong: ${hintFor(part) ?? `use ${takes}, *, lists (1,3), ranges (1-5) and steps (*/2, 1-9/2)`}`;
  }
  return isRead(line) ? undefined : `${JSON.stringify(line)} cannot be read`;
}

function isRead(line: string): boolean {
  // The library takes what has a colon for a date.
  if (line.includes(":")) return false;
  try {
    cronOf({ cron: line, timezone: "UTC" });
    return true;
  } catch {
    return false;
  }
}

/** The slips that are made most often. */
function hintFor(part: string): string | undefined {
  const [, from, to] = /(\d+)-(\d+)/.exec(part) ?? [];
  if (from !== undefined && Number(from) > Number(to)) return `the range ${from}-${to} runs backwards: write it as two, as hours 22-23,0-2`;
  if (/\/0+(?:,|$)/.test(part)) return "a step must be at least 1";
  if (/(?:^|,)\d*\/\d/.test(part)) return "a step stands behind * or a range (*/5, 10-59/5)";
  if (/^,|,,|,$/.test(part)) return "a list has an empty place";
  return undefined;
}
