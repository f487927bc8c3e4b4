/** What stands still because somebody wanted it to. Pure: facts in, findings out. */
import type { PauseView } from "../../client/pauses.ts";
import type { PausedRuns } from "../../store/pause-facts.ts";
import { pauseFact, resumeCommand } from "../pause-text.ts";
import { finding, ok, plural, type Finding } from "./finding.ts";

export function judgePauses(pauses: readonly PauseView[], { n, example }: PausedRuns): Finding[] {
  const findings = pauses.map((pause) => finding("warning", "paused", pauseFact(pause), "no turn begins there; new runs stay queued, deadlines go on", resumeCommand(pause)));
  if (n > 0) {
    findings.push(
      finding(
        "info",
        "paused_runs",
        `${plural(n, "run")} paused one by one (${example ?? ""})`,
        "no worker takes them",
        `capstan runs resume ${example ?? "<run id>"}, or cancel what is not wanted any more`,
      ),
    );
  }
  return findings.length > 0 ? findings : [ok("paused", "nothing")];
}
