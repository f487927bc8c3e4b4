/** Which limits apply to a call, and how much of each it takes. Pure; src/store/quota.ts keeps the counts. */
import { z } from "zod";
import { wholeNumber } from "./ranges.ts";

export const quotaScopes = ["overall", "tenant", "agent", "model"] as const;
const quotaKinds = ["turn", "summary", "tool"] as const;
/** What is limited: calls of models, summaries, tools. */
export type QuotaKind = (typeof quotaKinds)[number];

/**
 * One limit. `value` is a tenant's, agent's or model's name, or `*`: then each of them has a bucket of this size, except
 * those that have a limit of their own. `concurrent` counts calls in flight and has no window. Kind `run` with unit `queued`
 * counts runs that have not begun: it is looked at by the enqueue itself, in the database.
 */
const quotaLimit = z
  .strictObject({
    scope: z.enum(quotaScopes),
    value: z.string().min(1).max(200).default("*"),
    kind: z.enum([...quotaKinds, "run"]),
    unit: z.enum(["calls", "tokens", "cost_usd_micros", "concurrent", "queued"]),
    window: z.enum(["minute", "day", "month", "none"]).optional(),
    amount: wholeNumber(0),
  })
  .refine((limit) => limit.scope !== "overall" || limit.value === "*", { path: ["value"], message: "must be absent for scope overall" })
  .refine((limit) => (limit.unit === "concurrent" || limit.unit === "queued") === ((limit.window ?? "none") === "none"), {
    path: ["window"],
    message: "must be minute, day or month, and absent for the units concurrent and queued",
  })
  .refine((limit) => (limit.kind === "run") === (limit.unit === "queued"), { path: ["unit"], message: "must be queued for kind run, and only for it" })
  .refine((limit) => limit.kind !== "run" || limit.scope !== "model", { path: ["scope"], message: "must be overall, tenant or agent for kind run: a queued run has no model yet" })
  .refine((limit) => limit.kind !== "tool" || limit.scope !== "model", { path: ["scope"], message: "must be overall, tenant or agent for kind tool: tools have no model" });
export type QuotaLimitSpec = z.input<typeof quotaLimit>;
export type QuotaLimit = Omit<z.output<typeof quotaLimit>, "window"> & { readonly window: "minute" | "day" | "month" | "none" };

export interface QuotaSubject {
  readonly kind: QuotaKind;
  readonly tenant: string;
  readonly agent: string;
  readonly model: string | undefined;
}

/** A call's largest possible amounts, or what it took in the end. */
export interface QuotaAmounts {
  readonly calls: number;
  readonly tokens: number;
  readonly costUsdMicros: number;
}

export const noAmounts: QuotaAmounts = { calls: 0, tokens: 0, costUsdMicros: 0 };

/** One bucket that a call draws from. */
export interface QuotaShare {
  readonly bucket: string;
  readonly limit: QuotaLimit;
}

/**
 * The buckets of a call, in one order for everybody. Names put what is bounded first and the free text last, so that
 * they can be read again (`tenantOfBucket`): `turn/tokens/minute/tenant/acme`.
 */
export function sharesOf(limits: readonly QuotaLimit[], subject: QuotaSubject): QuotaShare[] {
  const shares = limits.flatMap((limit): QuotaShare[] => {
    if (limit.kind !== subject.kind) return [];
    const value = limit.scope === "overall" ? "*" : subject[limit.scope];
    if (value === undefined || (limit.value !== "*" && limit.value !== value)) return [];
    const isSuperseded = limit.scope !== "overall" && limit.value === "*" && limits.some((other) => other.value === value && sameMeasure(other, limit));
    return isSuperseded ? [] : [{ bucket: bucketOf(limit, value), limit }];
  });
  return shares.toSorted((a, b) => (a.bucket < b.bucket ? -1 : 1));
}

export function amountOf(unit: QuotaLimit["unit"], amounts: QuotaAmounts): number {
  switch (unit) {
    case "calls":
      return amounts.calls;
    case "tokens":
      return Math.ceil(amounts.tokens);
    case "cost_usd_micros":
      return Math.ceil(amounts.costUsdMicros);
    case "concurrent":
      return 1;
    case "queued":
      return 0;
  }
}

/**
 * What a worker leases at once: a twentieth, so that twenty workers can share a limit and one that dies strands little;
 * larger slices would mean fewer statements and more of a limit lying idle.
 */
export function sliceOf(limit: QuotaLimit): number {
  return Math.max(1, Math.floor(limit.amount / 20));
}

export function bucketOf({ kind, unit, window, scope }: QuotaLimit, value: string): string {
  return `${kind}/${unit}/${window}/${scope}/${value}`;
}

/** The tenant that a bucket belongs to; undefined for buckets of other scopes. */
export function tenantOfBucket(bucket: string): string | undefined {
  const [, , , scope, ...value] = bucket.split("/");
  return scope === "tenant" ? value.join("/") : undefined;
}

/** Limits of the configuration, and those of the database in their place where both speak of the same. */
export function mergeLimits(configured: readonly QuotaLimit[], stored: readonly QuotaLimit[]): QuotaLimit[] {
  return [...configured.filter((limit) => !stored.some((other) => other.value === limit.value && sameMeasure(other, limit))), ...stored];
}

function sameMeasure(a: QuotaLimit, b: QuotaLimit): boolean {
  return a.scope === b.scope && a.kind === b.kind && a.unit === b.unit && a.window === b.window;
}

/** Checks one limit; the path of an issue names its field. */
export function parseLimit(spec: unknown): { readonly ok: true; readonly limit: QuotaLimit } | { readonly ok: false; readonly issues: readonly LimitIssue[] } {
  const parsed = quotaLimit.safeParse(spec);
  if (!parsed.success) return { ok: false, issues: parsed.error.issues.map(({ path, message }) => ({ path: path.join("."), message })) };
  const { window = "none", ...limit } = parsed.data;
  return { ok: true, limit: { ...limit, window } };
}

interface LimitIssue {
  readonly path: string;
  readonly message: string;
}

/** Checks limits of a configuration; the path of an issue names the limit and its field. */
export function parseLimits(specs: readonly unknown[]): { readonly ok: true; readonly limits: QuotaLimit[] } | { readonly ok: false; readonly issues: readonly LimitIssue[] } {
  const limits: QuotaLimit[] = [];
  const issues: LimitIssue[] = [];
  for (const [i, spec] of specs.entries()) {
    const parsed = parseLimit(spec);
    if (!parsed.ok) issues.push(...parsed.issues.map(({ path, message }) => ({ path: ["quotas", i, path].filter((part) => part !== "").join("."), message })));
    // Enqueues of other processes, and of SQL, would not know of it.
    else if (parsed.limit.kind === "run")
      issues.push({ path: `quotas.${i}.kind`, message: "must be turn, summary or tool: limits of queued runs are kept in the database (capstan quotas set)" });
    else limits.push(parsed.limit);
  }
  return issues.length > 0 ? { ok: false, issues } : { ok: true, limits };
}
