import type { Command } from "commander";
import { QuotasClient, type QuotaUse, type QuotaView } from "../client/quotas.ts";
import type { QuotaLimitSpec } from "../domain/quota.ts";
import { actorName } from "./actor.ts";
import { action, addCommand, addGroup } from "./command.ts";
import { withDatabase } from "./database.ts";
import { exitCodes, usageError } from "./exit.ts";
import { duration, usd } from "./format.ts";
import { printable } from "./output.ts";
import { tableLines, type Column } from "./table.ts";

interface ScopeFlags {
  readonly tenant?: string;
  readonly agent?: string;
  readonly model?: string;
  readonly kind?: string;
}

const MEASURES = "calls/minute, calls/day, tokens/minute, tokens/day, cost/day, cost/month (any of calls, tokens, cost with minute, day or month), concurrent, queued";

const limitColumns: Column<QuotaView>[] = [
  { title: "OF", value: ({ scope, value }) => ownerText(scope, value) },
  { title: "KIND", value: ({ kind }) => kind },
  { title: "MEASURE", value: ({ unit, window }) => measureText(unit, window) },
  { title: "LIMIT", align: "right", value: ({ amount, unit }) => amountText(amount, unit) },
  { title: "USED NOW", align: "right", value: ({ used, unit, scope, value }) => `${amountText(used, unit)}${value === "*" && scope !== "overall" ? " (most)" : ""}` },
];

const useColumns: Column<QuotaUse>[] = [
  { title: "OF", value: ({ bucket }) => ownerText(...partsOf(bucket).owner) },
  { title: "KIND", value: ({ bucket }) => partsOf(bucket).kind },
  { title: "MEASURE", value: ({ bucket }) => measureText(partsOf(bucket).unit, partsOf(bucket).window) },
  { title: "USED NOW", align: "right", value: ({ bucket, used }) => amountText(used, partsOf(bucket).unit) },
  { title: "LIMIT", align: "right", value: ({ bucket, limit }) => (limit === undefined ? "in code" : amountText(limit, partsOf(bucket).unit)) },
  { title: "AGAIN IN", align: "right", value: ({ resets_at: at }) => (at === undefined ? "" : duration(new Date(at).getTime() - Date.now())) },
];

export function addQuotaCommands(program: Command): void {
  const quotas = addGroup(program, "quotas", "what tenants, agents and models may use");
  addCommand(quotas, "list", {
    summary: "list the limits of the database and what is used of them",
    examples: ["quotas list", "quotas list --json | jq '.quotas[] | select(.used > .amount * 0.9)'"],
  }).action(
    action(async (out) =>
      withDatabase(out, async ({ pool, named }) => {
        const found = await new QuotasClient(pool, named).list();
        if (out.isJson) await out.value({ quotas: found });
        else if (found.length === 0) out.note("no limits in the database: capstan quotas set makes one (workers may have others in their code)");
        else for (const line of tableLines(limitColumns, found, out.colors.bold)) await out.line(line);
        return exitCodes.ok;
      }),
    ),
  );

  addCommand(quotas, "show", {
    summary: "show what is used now, one by one",
    description:
      "Shows every bucket that something has drawn from: of limits for each tenant, agent or model one for each of them; also those of limits that stand in workers' code.",
    examples: ["quotas show", "quotas show --tenant acme"],
  })
    .option("--tenant <name>", "of tenants, only this one")
    .action(
      action(async (out, { tenant }: { tenant?: string }) =>
        withDatabase(out, async ({ pool, named }) => {
          const found = await new QuotasClient(pool, named).use(tenant === undefined ? {} : { tenant });
          if (out.isJson) await out.value({ buckets: found });
          else if (found.length === 0) out.note("nothing is used of any limit");
          else for (const line of tableLines(useColumns, found, out.colors.bold)) await out.line(line);
          return exitCodes.ok;
        }),
      ),
    );

  scoped(
    addCommand(quotas, "set", {
      summary: "set a limit",
      description: `Sets a limit; the workers know of it at their next sweep, enqueues at once. Measures: ${MEASURES}. An amount of cost is in dollars. Without a scope it is a limit of everything together.`,
      examples: [
        "quotas set tokens/minute 200000 --tenant acme",
        "quotas set cost/day 50 --tenant '*'              # each tenant's, unless it has one of its own",
        "quotas set concurrent 20                        # calls of models at once, in all",
        "quotas set queued 1000 --tenant '*'              # runs that have not begun",
        "quotas set calls/minute 30 --agent mailer --kind tool",
      ],
    })
      .argument("<measure>", "what is counted, and over which time")
      .argument("<amount>", "the most there may be"),
  ).action(
    action(async (out, measure: string, amount: string, flags: ScopeFlags) =>
      withDatabase(out, async ({ pool, named }) => {
        const spec = specOf(measure, flags);
        const limit = { ...spec, amount: amountOf(amount, spec.unit) };
        const changed = await new QuotasClient(pool, named).set(limit, { actor: actorName() });
        if (out.isJson) await out.value({ ...limit, changed });
        else await out.line(`${ownerText(limit.scope, limit.value ?? "*")}  ${limit.kind} ${measure}: ${amountText(limit.amount, limit.unit)}${changed ? "" : " (as it was)"}`);
        return exitCodes.ok;
      }),
    ),
  );

  scoped(
    addCommand(quotas, "remove", {
      summary: "take a limit away",
      description: "Takes a limit of the database away. One that stands in the workers' code for the same is in force again.",
      examples: ["quotas remove tokens/minute --tenant acme"],
    }).argument("<measure>", "as it was set"),
  ).action(
    action(async (out, measure: string, flags: ScopeFlags) =>
      withDatabase(out, async ({ pool, named }) => {
        const spec = specOf(measure, flags);
        const changed = await new QuotasClient(pool, named).remove(spec, { actor: actorName() });
        if (out.isJson) await out.value({ ...spec, changed });
        else await out.line(`${ownerText(spec.scope, spec.value ?? "*")}  ${spec.kind} ${measure}: ${changed ? "removed" : "there was none"}`);
        return exitCodes.ok;
      }),
    ),
  );
}

function scoped(command: Command): Command {
  return command
    .option("--tenant <name>", "of this tenant, or '*' for each")
    .option("--agent <name>", "of this agent, or '*' for each")
    .option("--model <name>", "of this model, or '*' for each")
    .option("--kind <kind>", "calls for what: turn, summary or tool (default: turn; queued is of runs)");
}

function specOf(measure: string, { tenant, agent, model, kind }: ScopeFlags): Omit<QuotaLimitSpec, "amount"> {
  const scopes = (Object.entries({ tenant, agent, model }) as ["tenant" | "agent" | "model", string | undefined][]).filter(([, name]) => name !== undefined);
  if (scopes.length > 1) throw usageError("--tenant, --agent and --model exclude each other: a limit is of one of them");
  const [scope, value] = scopes[0] ?? ["overall", "*"];
  const [, unit, window] = /^(?:(calls|tokens|cost)\/(minute|day|month)|concurrent|queued)$/.exec(measure) ?? [];
  if (unit === undefined && measure !== "concurrent" && measure !== "queued") throw usageError(`${measure} is no measure: ${MEASURES}`);
  if (measure === "queued" && kind !== undefined) throw usageError("--kind does not go with queued, which is of runs");
  if (kind !== undefined && !["turn", "summary", "tool"].includes(kind)) throw usageError(`--kind ${kind}: turn, summary or tool`);
  return {
    scope,
    value: value ?? "*",
    kind: measure === "queued" ? "run" : ((kind ?? "turn") as QuotaLimitSpec["kind"]),
    unit: unit === undefined ? (measure as "concurrent" | "queued") : unit === "cost" ? "cost_usd_micros" : (unit as "calls" | "tokens"),
    ...(window === undefined ? {} : { window: window as "minute" | "day" | "month" }),
  };
}

/** Dollars for cost, whole numbers for all else. */
function amountOf(text: string, unit: QuotaLimitSpec["unit"]): number {
  const amount = unit === "cost_usd_micros" ? Math.round(Number(text.replace(/^\$/, "")) * 1_000_000) : Number(text);
  if (text.trim() === "" || !Number.isSafeInteger(amount) || amount < 0) {
    throw usageError(`amount ${text}: must be ${unit === "cost_usd_micros" ? "an amount of dollars" : "a whole number"} of at least 0`);
  }
  return amount;
}

function amountText(amount: number, unit: string): string {
  return unit === "cost_usd_micros" ? usd(amount) : amount.toLocaleString("en-US");
}

/** `tokens/minute`, `concurrent`: as `set` takes it. */
export function measureText(unit: string, window: string): string {
  return `${unit === "cost_usd_micros" ? "cost" : unit}${window === "none" ? "" : `/${window}`}`;
}

function ownerText(scope: string, value: string): string {
  return scope === "overall" ? "everything" : value === "*" ? `each ${scope}` : `${scope} ${printable(value)}`;
}

function partsOf(bucket: string): { readonly kind: string; readonly unit: string; readonly window: string; readonly owner: readonly [string, string] } {
  const [kind = "", unit = "", window = "", scope = "", ...value] = bucket.split("/");
  return { kind, unit, window, owner: [scope, value.join("/")] };
}

/** A quota in words, from its bucket: `turn tokens/minute of tenant acme`. */
export function bucketText(bucket: string): string {
  const { kind, unit, window, owner } = partsOf(bucket);
  return `${kind} ${measureText(unit, window)} of ${ownerText(...owner)}`;
}
