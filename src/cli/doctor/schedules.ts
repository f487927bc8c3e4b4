/** Schedules: do their ticks start runs? Pure: facts in, findings out. */
import type { ScheduleFacts } from "../../store/schedule-facts.ts";
import { finding, ok, plural, type Finding } from "./finding.ts";

export function judgeSchedules({ schedules, paused, overdue, overdue_example: example, failing }: ScheduleFacts, hasWorkers: boolean): Finding[] {
  const findings: Finding[] = failing.map(({ tenant, name, code, message }) =>
    finding(
      "error",
      "failing_schedule",
      `schedule ${tenant}/${name}: ${code}: ${message}`,
      "its last due tick started no run",
      `capstan schedules show ${name} --tenant ${tenant}; make it anew with what is wrong put right (schedules create … --replace)`,
    ),
  );
  if (overdue > 0) {
    findings.push(
      finding(
        hasWorkers ? "error" : "warning",
        "overdue_schedules",
        `${plural(overdue, "schedule")} due for over a minute (${example ?? ""})`,
        "their runs do not start; what becomes of the missed ticks is each schedule's catch-up policy",
        hasWorkers ? "look into the workers' logs for failing rounds of schedules" : "start a worker of any pool but summarize",
      ),
    );
  }
  if (findings.length > 0) return findings;
  return [ok("schedules", schedules === 0 ? "none" : `${schedules}${paused === 0 ? "" : `, ${paused} paused`}`)];
}
