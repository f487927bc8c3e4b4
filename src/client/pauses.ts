/** Standing still as a whole: a tenant, or everything. */
import { fromPostgres } from "./errors.ts";
import { queryTx, type Tx } from "./transaction.ts";

export interface PauseView {
  /** Undefined: everything. */
  readonly tenant?: string;
  readonly at: string;
  readonly reason?: string;
  readonly actor?: string;
}

export interface PauseOptions {
  /** Left out: everything. */
  readonly tenant?: string;
  readonly reason?: string;
  readonly actor?: string;
}

export class PauseClient {
  readonly #db: Tx;
  readonly #named: (text: string) => string;

  constructor(db: Tx, named: (text: string) => string) {
    this.#db = db;
    this.#named = named;
  }

  /** No turn begins until `resume`, also over restarts; turns at hand are finished, new runs stay queued. False when it stood still already. */
  async pause({ tenant, reason, actor }: PauseOptions = {}): Promise<boolean> {
    const [row] = await this.#query<{ done: boolean }>("select capstan.pause_all($1, $2, $3) as done", [tenant ?? null, reason ?? null, actor ?? null]);
    return row?.done === true;
  }

  /** False when it was not paused. A tenant's own pause is not lifted with everything's. */
  async resume({ tenant, actor }: Omit<PauseOptions, "reason"> = {}): Promise<boolean> {
    const [row] = await this.#query<{ done: boolean }>("select capstan.resume_all($1, $2) as done", [tenant ?? null, actor ?? null]);
    return row?.done === true;
  }

  async list(): Promise<PauseView[]> {
    const rows = await this.#query<{ value: string; at: string; reason: string | null; actor: string | null }>(
      "select p.value, to_jsonb(p.at) #>> '{}' as at, p.reason, p.actor from capstan.pauses p order by p.value",
      [],
    );
    return rows.map(({ value, at, reason, actor }) => ({
      ...(value === "*" ? {} : { tenant: value }),
      at,
      ...(reason === null ? {} : { reason }),
      ...(actor === null ? {} : { actor }),
    }));
  }

  async #query<Row extends object>(text: string, values: readonly unknown[]): Promise<Row[]> {
    try {
      return await queryTx<Row & Record<string, unknown>>(this.#db, this.#named(text), values);
    } catch (error) {
      throw fromPostgres(error);
    }
  }
}
