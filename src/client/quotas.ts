/** What tenants, agents, models and the whole installation may use: rows that workers and enqueues read (docs/quotas.md). */
import { bucketOf, parseLimit, type QuotaLimit, type QuotaLimitSpec } from "../domain/quota.ts";
import { ArgumentError, fromPostgres } from "./errors.ts";
import { queryTx, type Tx } from "./transaction.ts";

export interface QuotaView {
  readonly scope: QuotaLimit["scope"];
  /** A name, or `*`: each tenant, agent or model has as much. */
  readonly value: string;
  readonly kind: QuotaLimit["kind"];
  readonly unit: QuotaLimit["unit"];
  readonly window: QuotaLimit["window"];
  readonly amount: number;
  readonly updated_at: string;
  /** What is used now; of a limit for each, by whoever uses most. */
  readonly used: number;
}

/** One bucket in use. Buckets of limits that stand in code only are among them, without their amount. */
export interface QuotaUse {
  /** `<kind>/<unit>/<window>/<scope>/<name>`. */
  readonly bucket: string;
  readonly used: number;
  /** The limit in the database that applies to it. */
  readonly limit?: number;
  /** When the window ends. */
  readonly resets_at?: string;
}

export interface QuotaChange {
  readonly actor?: string;
  /** The caller's own transaction. */
  readonly tx?: Tx;
}

const LIST = `select q.scope, q.value, q.kind, q.unit, q."window", q.amount::float8 as amount, to_jsonb(q.updated_at) #>> '{}' as updated_at
  from capstan.quota_limits q order by q.kind, q.unit, q."window", q.scope, q.value`;
const USE = "select u.bucket, u.used::float8 as used, to_jsonb(u.resets_at) #>> '{}' as resets_at from capstan.quota_use() u order by u.bucket";

type Stored = QuotaLimit & { readonly updated_at: string };

export class QuotasClient {
  readonly #db: Tx;
  readonly #named: (text: string) => string;

  constructor(db: Tx, named: (text: string) => string) {
    this.#db = db;
    this.#named = named;
  }

  async list(): Promise<QuotaView[]> {
    const [limits, buckets] = await Promise.all([this.#query<Stored>(LIST, []), this.#buckets()]);
    return limits.map((limit) => ({ ...limit, used: Math.max(0, ...buckets.filter(({ bucket }) => limitOf(bucket, limits) === limit).map(({ used }) => used)) }));
  }

  /** What is used now, bucket by bucket. Only buckets that something has drawn from. */
  async use({ tenant }: { readonly tenant?: string } = {}): Promise<QuotaUse[]> {
    const [limits, buckets] = await Promise.all([this.#query<Stored>(LIST, []), this.#buckets()]);
    return buckets
      .filter(({ bucket }) => tenant === undefined || scopeOf(bucket) !== "tenant" || bucket.endsWith(`/tenant/${tenant}`))
      .map(({ bucket, used, resets_at: resetsAt }) => {
        const limit = limitOf(bucket, limits)?.amount;
        return { bucket, used, ...(limit === undefined ? {} : { limit }), ...(resetsAt === null ? {} : { resets_at: resetsAt }) };
      });
  }

  /**
   * Takes effect at the next enqueue, and on calls at each worker's next sweep (CAPSTAN_SWEEP_MS). False when it was so
   * already. Throws ArgumentError with the field that is wrong.
   */
  async set(spec: QuotaLimitSpec, { actor, tx }: QuotaChange = {}): Promise<boolean> {
    const { scope, value, kind, unit, window, amount } = checked(spec);
    const [row] = await this.#query<{ done: boolean }>(
      "select capstan.set_quota($1, $2, $3, $4, $5, $6::bigint, $7) as done",
      [scope, value, kind, unit, window, amount, actor ?? null],
      tx,
    );
    return row?.done === true;
  }

  /** False when there was no such limit in the database. One that stands in code is in force again. */
  async remove(spec: Omit<QuotaLimitSpec, "amount">, { actor, tx }: QuotaChange = {}): Promise<boolean> {
    const { scope, value, kind, unit, window } = checked({ ...spec, amount: 0 });
    const [row] = await this.#query<{ done: boolean }>("select capstan.remove_quota($1, $2, $3, $4, $5, $6) as done", [scope, value, kind, unit, window, actor ?? null], tx);
    return row?.done === true;
  }

  #buckets(): Promise<{ bucket: string; used: number; resets_at: string | null }[]> {
    return this.#query(USE, []);
  }

  async #query<Row extends object>(text: string, values: readonly unknown[], tx: Tx = this.#db): Promise<Row[]> {
    try {
      return await queryTx<Row & Record<string, unknown>>(tx, this.#named(text), values);
    } catch (error) {
      throw fromPostgres(error);
    }
  }
}

function checked(spec: QuotaLimitSpec): QuotaLimit {
  const parsed = parseLimit(spec);
  if (!parsed.ok) throw new ArgumentError(`quota: ${parsed.issues.map(({ path, message }) => `${path} ${message}`).join("; ")}`);
  return parsed.limit;
}

function scopeOf(bucket: string): string | undefined {
  return bucket.split("/")[3];
}

/** The limit by name, else that for each. */
function limitOf<Limit extends QuotaLimit>(bucket: string, limits: readonly Limit[]): Limit | undefined {
  const [, , , , ...rest] = bucket.split("/");
  const value = rest.join("/");
  const fitting = limits.filter((limit) => bucketOf(limit, value) === bucket);
  return fitting.find((limit) => limit.value === value) ?? fitting.find((limit) => limit.value === "*");
}
