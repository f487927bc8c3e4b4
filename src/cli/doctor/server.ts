/** The server and its schema: is what Capstan promises possible here? Pure: facts in, findings out. */
import type { BloatFact, HorizonFact, JournalGuardFacts, ServerFacts } from "../../store/doctor-queries.ts";
import { duration } from "../format.ts";
import { finding, ok, plural, type Finding } from "./finding.ts";

const OLDEST_SUPPORTED = 150_000;
/** Deadlines and `--run-at` are given by clients' clocks; beyond this they are visibly off. */
const SKEW_MS = 2_000;

export function judgeServer(facts: ServerFacts): Finding[] {
  const findings: Finding[] = [
    facts.version_num < OLDEST_SUPPORTED
      ? finding("error", "postgres_version", `Postgres ${facts.version}`, "Capstan needs 15 or newer", "upgrade the server")
      : ok("postgres_version", `Postgres ${facts.version}`),
  ];
  const lossy = [facts.fsync === "off" ? "fsync = off" : "", facts.full_page_writes === "off" ? "full_page_writes = off" : ""].filter((text) => text !== "");
  findings.push(
    lossy.length > 0
      ? finding(
          "error",
          "durability",
          lossy.join(", "),
          "a crash of the machine can destroy the database: committed events, or all of it",
          `set ${lossy.map((text) => text.replace("off", "on")).join(" and ")} on the server and restart it`,
        )
      : ok("durability", "fsync and full_page_writes are on"),
  );
  findings.push(
    facts.synchronous_commit === "off"
      ? finding(
          "warning",
          "synchronous_commit",
          "synchronous_commit = off",
          "the last moments before a crash of the server may be lost, acknowledged events among them: a model call may be made again",
          "set synchronous_commit = on for the roles that workers and enqueuers use",
        )
      : ok("synchronous_commit", `synchronous_commit = ${facts.synchronous_commit}`),
  );
  if (facts.in_recovery || facts.read_only) {
    findings.push(
      finding(
        "error",
        "writable",
        facts.in_recovery ? "this server is a standby" : "transactions are read-only",
        "nothing can be enqueued or worked on here",
        "point DATABASE_URL at the primary",
      ),
    );
  }
  findings.push(
    Math.abs(facts.clock_skew_ms) > SKEW_MS + facts.round_trip_ms
      ? finding(
          "warning",
          "clock",
          `the server's clock is ${duration(Math.abs(facts.clock_skew_ms))} ${facts.clock_skew_ms > 0 ? "ahead of" : "behind"} this machine's`,
          "leases and timers use the server's clock alone; times given by clients (run at, deadline) mean something else there",
          "synchronise the clocks (NTP) of both machines",
        )
      : ok("clock", `within ${duration(Math.max(1, Math.abs(facts.clock_skew_ms)))} of this machine's`),
  );
  const free = facts.max_connections - facts.connections;
  findings.push(
    free < Math.max(5, facts.max_connections * 0.1)
      ? finding(
          "warning",
          "connections",
          `${facts.connections} of ${facts.max_connections} connections are used`,
          "workers that start or reconnect may be refused",
          "raise max_connections, lower CAPSTAN_POOL_MAX, or put a pooler in between",
        )
      : ok("connections", `${facts.connections} of ${facts.max_connections}`),
  );
  return findings;
}

export function judgeSchema({ applied, known }: { readonly applied: number; readonly known: number }): Finding {
  if (applied < known) return finding("error", "schema", `${applied} of ${known} migrations are applied`, "this version's workers refuse to start", "run: capstan migrate");
  if (applied > known)
    return finding(
      "warning",
      "schema",
      `${applied} migrations, of which this version knows ${known}`,
      "the database belongs to a newer version",
      "run that version's commands, and replace old workers soon",
    );
  return ok("schema", `current (${known} migrations)`);
}

/** Triggers guard against mistakes; a role without the privilege guards against everything but the owner. */
export function judgeJournalGuard(facts: JournalGuardFacts | undefined, user: string): Finding[] {
  if (facts === undefined) return [];
  const findings: Finding[] = [];
  if (facts.triggers_on < 2) {
    findings.push(
      finding(
        "error",
        "journal_triggers",
        "a trigger that keeps the journal append-only is missing or disabled",
        "events can be changed or removed by a slip",
        "find out who disabled it, then: alter table events enable trigger all; capstan verify --all tells whether something was changed",
      ),
    );
  }
  if (!facts.may_rewrite) findings.push(ok("journal_guard", `append-only by privilege: ${user} can neither change nor remove events`));
  else if (facts.owner_role_exists && facts.app_role_exists) {
    findings.push(
      finding(
        "info",
        "journal_guard",
        `${user} may change events; only the triggers refuse`,
        "fine for migrations and this check, not for a service",
        `let workers and services log in as a member of the role that ends in _app`,
      ),
    );
  } else {
    findings.push(
      finding(
        "warning",
        "journal_guard",
        "one role does all: the journal is append-only by triggers alone",
        "whoever has this login can switch the triggers off",
        "let a user who may create roles run capstan migrate once",
      ),
    );
  }
  return findings;
}

const BLOAT_MIN_DEAD = 20_000;
const BLOAT_RATIO = 4;

export function judgeBloat(tables: readonly BloatFact[]): Finding {
  const bloated = tables.filter(({ live, dead }) => dead > BLOAT_MIN_DEAD && dead > BLOAT_RATIO * Math.max(live, 1));
  if (bloated.length === 0) return ok("bloat", tables.map(({ table_name, dead }) => `${table_name} ${dead} dead`).join(", ") || "no statistics yet");
  const texts = bloated.map(
    ({ table_name, live, dead, last_vacuum }) => `${table_name}: ${dead} dead rows beside ${live} live, last vacuum ${last_vacuum?.toISOString() ?? "never"}`,
  );
  return finding(
    "warning",
    "bloat",
    texts.join("; "),
    "dispatch and claims get slower and slower",
    "see what holds vacuum back (check old_transactions), then vacuum these tables",
  );
}

const OLD_TRANSACTION_MS = 5 * 60_000;
const OLD_XMIN = 5_000_000;

export function judgeHorizon(holders: readonly HorizonFact[]): Finding {
  const old = holders.filter(({ xmin_age, open_ms }) => xmin_age > OLD_XMIN || (open_ms ?? 0) > OLD_TRANSACTION_MS);
  if (old.length === 0) return ok("old_transactions", holders[0] === undefined ? "none" : `oldest xmin is ${plural(holders[0].xmin_age, "transaction")} back`);
  const texts = old.map(({ source, xmin_age, open_ms }) => `${source}: ${xmin_age} transactions back${open_ms === null ? "" : `, open for ${duration(open_ms)}`}`);
  return finding(
    "warning",
    "old_transactions",
    texts.join("; "),
    "vacuum cannot remove what died since: the queue's tables grow",
    "end the transaction (pg_terminate_backend), drop the unused slot, or roll the prepared transaction back",
  );
}

export function judgeListen(delayMs: number | undefined, isDirectSet: boolean): Finding {
  if (delayMs !== undefined) return ok("listen", `a notification takes ${duration(Math.max(1, delayMs))}`);
  return finding(
    "warning",
    "listen",
    "a notification did not arrive",
    "runs start by polling, up to half a second later; live followers lag",
    isDirectSet ? "CAPSTAN_DIRECT_DATABASE_URL must lead past the pooler" : "set CAPSTAN_DIRECT_DATABASE_URL to an address that does not go through a pooler in transaction mode",
  );
}
