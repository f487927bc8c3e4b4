import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { dueTicks, MAX_TICKS_PER_ROUND, nextTick, ON_TIME_MS, parseScheduleTimes, type ScheduleTimes } from "../../src/domain/schedule.ts";

const at = (iso: string): Date => new Date(iso);
const newYear = at("2026-01-01T00:00:00Z");
const berlin = (cron: string): ScheduleTimes => ({ cron, timezone: "Europe/Berlin" });
const newYork = (cron: string): ScheduleTimes => ({ cron, timezone: "America/New_York" });

function ticksFrom(times: ScheduleTimes, after: string, count: number): string[] {
  const found: string[] = [];
  for (let tick = nextTick(times, at(after)); tick !== undefined && found.length < count; tick = nextTick(times, tick)) found.push(tick.toISOString().slice(0, 16));
  return found;
}

describe("a line that is wrong", () => {
  const wrong: readonly (readonly [line: unknown, message: string])[] = [
    ["60 * * * *", 'minute "60" is wrong: use 0-59'],
    ["* 24 * * *", 'hour "24" is wrong: use 0-23'],
    ["* * 0 * *", 'day of month "0" is wrong: use 1-31'],
    ["* * 32 * *", 'day of month "32" is wrong'],
    ["* * * 13 *", 'month "13" is wrong: use 1-12 or JAN-DEC'],
    ["* * * * 8", 'day of week "8" is wrong: use 0-7 or SUN-SAT'],
    ["* * * * FRIDAY", 'day of week "FRIDAY" is wrong'],
    ["* * * SUN *", 'month "SUN" is wrong'],
    ["* 22-2 * * *", 'hour "22-2" is wrong: the range 22-2 runs backwards'],
    ["*/0 * * * *", 'minute "*/0" is wrong: a step must be at least 1'],
    ["5/10 * * * *", 'minute "5/10" is wrong: a step stands behind * or a range'],
    ["/10 * * * *", 'minute "/10" is wrong: a step stands behind * or a range'],
    ["1,,2 * * * *", 'minute "1,,2" is wrong: a list has an empty place'],
    ["1.5 * * * *", 'minute "1.5" is wrong'],
    ["-1 * * * *", 'minute "-1" is wrong'],
    ["9:30 * * * *", 'minute "9:30" is wrong'],
    ["* * * *", "has 4 fields: give five"],
    ["0 */5 * * * *", "has 6 fields: give five, minute hour day-of-month month day-of-week; seconds are not possible"],
    ["0 0 1 1 * 2027 *", "has 7 fields"],
    ["2026-05-01T09:00:00Z", "has 1 field: give five"],
    ["@reboot", "@reboot is not known: use @hourly"],
    ["every day", "has 2 fields"],
    ["0 0 30 2 *", '"0 0 30 2 *" names a day that never comes'],
    ["0 0 31 4,6,9,11 *", "names a day that never comes"],
    ["", "is missing: give five fields"],
    [undefined, "is missing"],
    [5, "is missing"],
  ];
  it.each(wrong)("%j is refused, and the message says where and why", (line, message) => {
    const parsed = parseScheduleTimes(line, "UTC", newYear);
    expect(parsed).toMatchObject({ ok: false, problem: { field: "cron" } });
    expect(parsed.ok ? "" : parsed.problem.message).toContain(message);
  });

  it.each([["Mars/Olympus"], ["+02:00"], ["UTC+2"], [""], [undefined], [2]])("time zone %j is refused", (zone) => {
    const parsed = parseScheduleTimes("0 0 * * *", zone, newYear);
    expect(parsed).toMatchObject({ ok: false, problem: { field: "timezone", message: expect.stringContaining("IANA name such as UTC") as string } });
  });
});

it.each([
  ["*/15 * * * *", "2026-01-01T00:15"],
  ["@daily", "2026-01-02T00:00"],
  ["0 9 * * MON-FRI", "2026-01-01T09:00"],
  ["0 9 * * 7", "2026-01-04T09:00"],
  ["0 0 L * *", "2026-01-31T00:00"],
  ["30 8 * jan fri#2", "2026-01-09T08:30"],
  ["0 0 29 2 *", "2028-02-29T00:00"],
])("reads %s", (line, first) => {
  const parsed = parseScheduleTimes(line, "UTC", newYear);
  expect(parsed.ok ? parsed.next.toISOString().slice(0, 16) : parsed.problem).toBe(first);
});

it("keeps a line with single spaces, so that it compares equal", () => {
  expect(parseScheduleTimes("  0   9\t* *  1 ", "Asia/Tokyo", newYear)).toMatchObject({ ok: true, times: { cron: "0 9 * * 1", timezone: "Asia/Tokyo" } });
});

it("keeps the time on the wall through the year", () => {
  expect(ticksFrom(berlin("0 9 1 1,7 *"), "2026-01-01T00:00:00Z", 2)).toEqual(["2026-01-01T08:00", "2026-07-01T07:00"]);
});

describe("an hour that a clock change leaves out", () => {
  // Berlin: 29 March 2026, 02:00 CET becomes 03:00 CEST at 01:00Z. New York: 8 March, 02:00 EST becomes 03:00 EDT at 07:00Z.
  it("a set time in it runs once, at the moment after the change", () => {
    expect(ticksFrom(berlin("30 2 * * *"), "2026-03-28T00:00:00Z", 3)).toEqual(["2026-03-28T01:30", "2026-03-29T01:00", "2026-03-30T00:30"]);
    expect(ticksFrom(newYork("30 2 * * *"), "2026-03-07T00:00:00Z", 3)).toEqual(["2026-03-07T07:30", "2026-03-08T07:00", "2026-03-09T06:30"]);
  });

  it("several set times in it meet there and run once", () => {
    expect(ticksFrom(berlin("0,30 2,3 * * *"), "2026-03-28T23:00:00Z", 3)).toEqual(["2026-03-29T01:00", "2026-03-29T01:30", "2026-03-30T00:00"]);
  });

  it("a line that repeats goes on in even steps", () => {
    expect(ticksFrom(berlin("*/30 * * * *"), "2026-03-29T00:00:00Z", 3)).toEqual(["2026-03-29T00:30", "2026-03-29T01:00", "2026-03-29T01:30"]);
    expect(ticksFrom(newYork("0 * * * *"), "2026-03-08T06:00:00Z", 2)).toEqual(["2026-03-08T07:00", "2026-03-08T08:00"]);
  });

  it("a line that repeats within that hour alone has nothing to run on that day", () => {
    expect(ticksFrom(berlin("*/30 2 * * *"), "2026-03-28T12:00:00Z", 1)).toEqual(["2026-03-30T00:00"]);
  });
});

describe("an hour that comes twice", () => {
  // Berlin: 25 October 2026, 03:00 CEST becomes 02:00 CET at 01:00Z. New York: 1 November, 02:00 EDT becomes 01:00 EST at 06:00Z.
  it("a set time in it runs once, the first time", () => {
    expect(ticksFrom(berlin("30 2 * * *"), "2026-10-24T12:00:00Z", 2)).toEqual(["2026-10-25T00:30", "2026-10-26T01:30"]);
    expect(ticksFrom(newYork("30 1 * * *"), "2026-10-31T12:00:00Z", 2)).toEqual(["2026-11-01T05:30", "2026-11-02T06:30"]);
    expect(ticksFrom(berlin("0,30 2 * * *"), "2026-10-24T12:00:00Z", 3)).toEqual(["2026-10-25T00:00", "2026-10-25T00:30", "2026-10-26T01:00"]);
  });

  it("asked for between the two passes it does not run again", () => {
    expect(ticksFrom(berlin("30 2 * * *"), "2026-10-25T01:10:00Z", 1)).toEqual(["2026-10-26T01:30"]);
  });

  it("a line that repeats runs through both", () => {
    expect(ticksFrom(berlin("0 * * * *"), "2026-10-24T23:30:00Z", 4)).toEqual(["2026-10-25T00:00", "2026-10-25T01:00", "2026-10-25T02:00", "2026-10-25T03:00"]);
    expect(ticksFrom(newYork("*/30 1 * * *"), "2026-11-01T04:00:00Z", 5)).toEqual([
      "2026-11-01T05:00",
      "2026-11-01T05:30",
      "2026-11-01T06:00",
      "2026-11-01T06:30",
      "2026-11-02T06:00",
    ]);
  });
});

describe("ticks that are due", () => {
  const hourly = { cron: "0 * * * *", timezone: "UTC" };
  const due = (policy: "none" | "last" | "all", nextAt: string, now: string) => {
    const { ticks, next } = dueTicks(hourly, policy, at(nextAt), at(now));
    return { ticks: ticks.map((tick) => tick.toISOString().slice(0, 16)), next: next?.toISOString().slice(0, 16) };
  };

  it.each(["none", "last", "all"] as const)("with %s, one that is on time is started", (policy) => {
    expect(due(policy, "2026-01-01T05:00:00Z", "2026-01-01T05:00:00Z")).toEqual({ ticks: ["2026-01-01T05:00"], next: "2026-01-01T06:00" });
    expect(due(policy, "2026-01-01T05:00:00Z", "2026-01-01T05:00:59.999Z")).toEqual({ ticks: ["2026-01-01T05:00"], next: "2026-01-01T06:00" });
    expect(due(policy, "2026-01-01T05:00:00Z", "2026-01-01T04:59:59.999Z")).toEqual({ ticks: [], next: "2026-01-01T05:00" });
  });

  it("after an outage each policy starts what it says", () => {
    const nextAt = "2026-01-01T05:00:00Z";
    const now = "2026-01-01T08:20:00Z";
    expect(due("none", nextAt, now)).toEqual({ ticks: [], next: "2026-01-01T09:00" });
    expect(due("last", nextAt, now)).toEqual({ ticks: ["2026-01-01T08:00"], next: "2026-01-01T09:00" });
    expect(due("all", nextAt, now)).toEqual({ ticks: ["2026-01-01T05:00", "2026-01-01T06:00", "2026-01-01T07:00", "2026-01-01T08:00"], next: "2026-01-01T09:00" });
    // Asked in the very moment of a tick.
    expect(due("last", nextAt, "2026-01-01T08:00:00Z")).toEqual({ ticks: ["2026-01-01T08:00"], next: "2026-01-01T09:00" });
    expect(due("none", nextAt, "2026-01-01T08:00:00Z")).toEqual({ ticks: ["2026-01-01T08:00"], next: "2026-01-01T09:00" });
    // The newest is on time though others were missed.
    expect(due("none", nextAt, "2026-01-01T08:00:30Z")).toEqual({ ticks: ["2026-01-01T08:00"], next: "2026-01-01T09:00" });
  });

  it("rounds that follow each other catch up all of a long outage, in order and without a gap", () => {
    const from = at("2026-01-01T00:00:00Z");
    const now = at("2026-01-15T00:30:00Z");
    const rounds: number[] = [];
    let nextAt: Date | undefined = from;
    let expected = from.getTime();
    while (nextAt !== undefined && nextAt <= now) {
      const { ticks, next } = dueTicks(hourly, "all", nextAt, now);
      rounds.push(ticks.length);
      for (const tick of ticks) {
        expect(tick.getTime()).toBe(expected);
        expected += 3_600_000;
      }
      nextAt = next;
    }
    expect(rounds).toEqual([MAX_TICKS_PER_ROUND, MAX_TICKS_PER_ROUND, MAX_TICKS_PER_ROUND, 14 * 24 + 1 - 3 * MAX_TICKS_PER_ROUND]);
  });

  it("an instant that somebody wrote by hand is a tick like any other", () => {
    expect(due("last", "2026-01-01T05:17:00Z", "2026-01-01T05:17:30Z")).toEqual({ ticks: ["2026-01-01T05:17"], next: "2026-01-01T06:00" });
  });
});

const lines = ["* * * * *", "*/7 * * * *", "15 * * * *", "30 2 * * *", "0,30 1,2 * * *", "*/20 2 * * *", "0 0 L * *", "45 1 * * SUN", "@hourly"];
const zones = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"];
/** Around the changes of 2026, when ticks are hardest to count. */
const instants = fc
  .constantFrom("2026-03-08T06:00:00Z", "2026-03-29T00:00:00Z", "2026-04-04T14:00:00Z", "2026-10-03T14:00:00Z", "2026-10-25T00:00:00Z", "2026-11-01T05:00:00Z")
  .chain((change) => fc.integer({ min: -4 * 3_600, max: 4 * 3_600 }).map((s) => new Date(at(change).getTime() + s * 1_000)));

it("the next tick is later, whole minutes, and there is none between (found by asking from each minute)", () => {
  fc.assert(
    fc.property(fc.constantFrom(...lines), fc.constantFrom(...zones), instants, (cron, timezone, after) => {
      const times = { cron, timezone };
      const next = nextTick(times, after) as Date;
      expect(next.getTime()).toBeGreaterThan(after.getTime());
      expect(next.getTime() % 60_000).toBe(0);
      const until = Math.min(next.getTime() - 1, after.getTime() + 3 * 3_600_000);
      for (let ms = after.getTime(); ms <= until; ms += 600_000) expect(nextTick(times, new Date(ms))).toEqual(next);
    }),
    { numRuns: 150 },
  );
});

it("the last tick is found backwards where counting forwards finds it", () => {
  fc.assert(
    fc.property(fc.constantFrom(...lines), fc.constantFrom(...zones), instants, fc.integer({ min: 0, max: 5 * 3_600 }), (cron, timezone, from, seconds) => {
      const times = { cron, timezone };
      const nextAt = nextTick(times, from) as Date;
      const now = new Date(Math.max(nextAt.getTime(), from.getTime() + seconds * 1_000));
      let newest = nextAt;
      for (let tick = nextTick(times, newest); tick !== undefined && tick <= now; tick = nextTick(times, tick)) newest = tick;
      expect(dueTicks(times, "last", nextAt, now)).toEqual({ ticks: [newest], next: nextTick(times, now) });
      expect(dueTicks(times, "none", nextAt, now).ticks).toEqual(now.getTime() - newest.getTime() < ON_TIME_MS ? [newest] : []);
    }),
    { numRuns: 150 },
  );
});
