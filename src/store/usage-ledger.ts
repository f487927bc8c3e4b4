import type pg from "pg";
import { untilConnected, type Outage } from "./until-connected.ts";
import type { UsageLedger } from "../engine/ports.ts";

/** Writes usage that no event tells of; all other usage is read from events (view `usage`). */
export class PostgresUsageLedger implements UsageLedger {
  readonly #pool: pg.Pool;
  readonly #named: (text: string) => string;
  readonly #outage: Outage;

  constructor(pool: pg.Pool, named: (text: string) => string, outage: Outage) {
    this.#pool = pool;
    this.#outage = outage;
    this.#named = named;
  }

  async record(entry: Parameters<UsageLedger["record"]>[0]): Promise<void> {
    const { usage } = entry;
    await untilConnected(this.#outage, "recording usage", () =>
      this.#pool.query(
        this.#named(`insert into capstan.usage_ledger (id, at, run_id, tenant, agent, model, kind, turn, attempt, outcome,
          input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, cost_usd_micros, estimated)
        values (capstan.uuid_v7(), capstan.now(), $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)`),
        [
          entry.runId,
          entry.tenant,
          entry.agent,
          entry.model,
          entry.kind,
          entry.turn,
          entry.attempt,
          entry.outcome,
          whole(usage.inputTokens),
          whole(usage.outputTokens),
          whole(usage.cacheReadTokens),
          whole(usage.cacheWriteTokens),
          whole(usage.costUsdMicros),
          entry.estimated,
        ],
      ),
    );
  }
}

/** Models and summarizers of the user's own report what they like; what they say must not cost the call's result. */
function whole(count: number): number {
  return count > 0 ? Math.min(Number.MAX_SAFE_INTEGER, Math.round(count)) : 0;
}
