/** Workers, queue and runs: does the work go on? Pure: facts in, findings out. */
import type { GrowthFact, QueueFacts, RunGroup, StuckGroup, WorkerFact } from "../../store/doctor-queries.ts";
import { duration } from "../format.ts";
import { finding, ok, plural, type Finding } from "./finding.ts";

export function judgeWorkers(workers: readonly WorkerFact[], deaths: readonly { readonly reason: string; readonly n: number }[], version: string): Finding[] {
  const alive = workers.filter((worker) => worker.silent_ms <= worker.lease_ms);
  const silent = workers.filter((worker) => worker.silent_ms > worker.lease_ms);
  const findings: Finding[] = [];
  if (alive.length === 0) findings.push(finding("warning", "workers", "no worker is alive", "nothing is worked on", "start one: capstan up, or capstan worker"));
  else findings.push(ok("workers", alive.map((worker) => `${worker.host} pid ${worker.pid} (${worker.pool}, ${worker.busy}/${worker.slots} busy)`).join(", ")));
  if (silent.length > 0) {
    const texts = silent.map((worker) => `${worker.host} pid ${worker.pid}, silent for ${duration(worker.silent_ms)}`).join("; ");
    findings.push(
      finding(
        "warning",
        "dead_workers",
        `${plural(silent.length, "worker")} died without signing off: ${texts}`,
        "their runs are held until another worker's sweep takes them",
        alive.length === 0 ? "start a worker: it takes them over within seconds" : "nothing; if this stays, look into the logs of the workers that are alive",
      ),
    );
  }
  for (const { reason, n } of deaths) {
    findings.push(
      reason === "blocked"
        ? finding(
            "warning",
            "blocked_workers",
            `${plural(n, "worker")} blocked within the last hour`,
            "a tool kept the event loop busy for longer than a lease: the worker gave its runs up",
            "look for the runs in crash_loop and move that tool's work into a process or thread of its own",
          )
        : finding(
            "info",
            "lost_workers",
            `${plural(n, "worker")} lost within the last hour`,
            "others took their runs over",
            "look for out-of-memory kills or restarts without SIGTERM if this goes on",
          ),
    );
  }
  const strangers = [...new Set(alive.map((worker) => worker.version))].filter((each) => each !== version);
  if (strangers.length > 0)
    findings.push(finding("info", "versions", `workers run ${strangers.join(", ")}, this command is ${version}`, "fine during a deployment", "bring all to one version"));
  return findings;
}

export function judgeSummaries(waiting: readonly RunGroup[]): Finding[] {
  return waiting.map(({ agent, n, oldest_ms, example }) =>
    finding(
      "warning",
      "no_summarizer_for_agent",
      `${plural(n, "compaction")} of agent ${agent}, waiting for up to ${duration(oldest_ms)} (run ${example})`,
      "no worker of pool summarize that is alive has this agent; its runs go on until their window is full, and then wait",
      "start one: capstan worker --pool summarize --agents <module>, or a worker without --no-summarize",
    ),
  );
}

export function judgeUnserved(wishes: readonly RunGroup[], missing: readonly RunGroup[]): Finding[] {
  const findings = wishes.map(({ agent, pool, n, oldest_ms, example }) =>
    finding(
      "warning",
      "no_worker_for_agent",
      `${plural(n, "run")} of agent ${agent} in pool ${pool}, waiting for up to ${duration(oldest_ms)} (${example})`,
      "no worker that is alive has this agent in this pool",
      "start a worker with it: capstan worker --agents <module>",
    ),
  );
  for (const { agent, n, example } of missing) {
    findings.push(
      finding(
        "warning",
        "agent_missing",
        `${plural(n, "run")} of agent ${agent} parked as agent_missing (${example})`,
        "a worker took them and lacked the agent, a tool, or the model's key",
        `capstan runs show ${example} says what is missing; a worker that has it takes them up by itself`,
      ),
    );
  }
  return findings.length > 0 ? findings : [ok("unserved_runs", "every waiting run has a worker")];
}

const stuckTexts: { readonly [K in StuckGroup["kind"]]: readonly [check: string, found: string, means: string] } = {
  orphaned: ["orphaned_runs", "held by a worker that is gone", "no sweep has taken them over"],
  overdue: ["overdue_runs", "past the deadline and not ended", "nobody has looked at them since"],
  asleep: ["overdue_timers", "past the time to go on", "nobody wakes runs up"],
  forgotten: ["forgotten_runs", "ready, and in no queue", "their job was lost and not wished for again"],
};

export function judgeStuck(groups: readonly StuckGroup[], crashLooped: readonly RunGroup[], hasWorkers: boolean): Finding[] {
  const findings = groups.map(({ kind, n, example }) => {
    const [check, found, means] = stuckTexts[kind];
    return finding(
      hasWorkers ? "error" : "warning",
      check,
      `${plural(n, "run")} ${found} (${example})`,
      means,
      hasWorkers ? "a worker's sweep does this within seconds: look into its log for failing rounds" : "start a worker: it takes care of them",
    );
  });
  for (const { agent, n, example } of crashLooped) {
    findings.push(
      finding(
        "warning",
        "crash_loop",
        `${plural(n, "run")} of agent ${agent} parked as crash_loop (${example})`,
        "each try cost a worker its life: out of memory, a blocking tool, a call of process.exit",
        `capstan runs show ${example}; repair the tool, then cancel the run and enqueue it again`,
      ),
    );
  }
  return findings.length > 0 ? findings : [ok("stuck_runs", "none")];
}

const QUEUE_LATE_MS = 30_000;

export function judgeQueue(facts: QueueFacts, hasWorkers: boolean): Finding[] {
  const findings: Finding[] = [];
  if (facts.locked_by_dead > 0) {
    findings.push(
      finding(
        "warning",
        "locked_jobs",
        `${plural(facts.locked_by_dead, "job")} locked by queue pools of workers that are gone`,
        "their runs got new jobs; these rows only take room",
        hasWorkers ? "the next sweep unlocks them" : "start a worker: its sweep unlocks them",
      ),
    );
  }
  if (facts.exhausted > 0)
    findings.push(
      finding(
        "warning",
        "exhausted_jobs",
        `${plural(facts.exhausted, "job")} failed as often as the queue tries`,
        "the search for lost jobs wishes for their runs again",
        "look at last_error in the queue's jobs, then delete these rows",
      ),
    );
  if (hasWorkers && (facts.oldest_waiting_ms ?? 0) > QUEUE_LATE_MS) {
    findings.push(
      finding(
        "warning",
        "queue_age",
        `the oldest of ${plural(facts.waiting, "job")} waits for ${duration(facts.oldest_waiting_ms ?? 0)}`,
        "workers are full, or their queue connection fails",
        "add workers or slots; if they are not busy, look into their logs",
      ),
    );
  }
  return findings.length > 0 ? findings : [ok("queue", `${plural(facts.waiting, "job")} waiting, none locked by the dead`)];
}

export function judgeGrowth(groups: readonly GrowthFact[]): Finding[] {
  return groups.map(({ level, n, example }) =>
    level === 2
      ? finding(
          "warning",
          "growth_critical",
          `${plural(n, "open run")} near the limits of context window or journal (${example})`,
          "the next turns may fail with CONTEXT_OVERFLOW",
          "configure compaction for the agent, or end the run and continue in a new one",
        )
      : finding(
          "info",
          "growth",
          `${plural(n, "open run")} above the growth warning (${example})`,
          "every turn sends the whole transcript",
          "configure compaction for the agent, see docs/scaling.md",
        ),
  );
}

export function judgeModels(problems: readonly { readonly agent: string; readonly model: string; readonly message: string }[], checked: number): Finding[] {
  if (problems.length === 0) return [ok("models", `${plural(checked, "model")} of promoted agents can be resolved here`)];
  return problems.map(({ agent, model, message }) =>
    finding(
      "warning",
      "models",
      `agent ${agent} uses ${model}: ${message}`,
      "a worker with this environment parks its runs as agent_missing",
      "give the workers the key or the server's address; this check sees only its own environment, and models of an agents module only with --agents <module>",
    ),
  );
}
