/**
 * Sends what stands in the outbox of webhooks. Every worker looks; whoever has leased a delivery sends it, and nobody waits
 * for it: a slow receiver takes a few sends at a time and no slot of a turn. A worker that dies between sending and noting
 * it leaves the delivery to be sent once more, under the same id.
 */
import type pg from "pg";
import { recordError } from "../domain/error.ts";
import type { JsonObject } from "../domain/json.ts";
import { backoffMs } from "../domain/retry.ts";
import { hitFailpoint } from "../engine/failpoints.ts";
import type { Log } from "../engine/ports.ts";
import { isConnectionError } from "../store/pg-errors.ts";
import { Loop } from "./loop.ts";
import { DELIVERED_SQL, DROP_DELIVERIES_SQL, FAILED_SQL, GAVE_UP_SQL, TAKE_DELIVERIES_SQL, UNTIL_NEXT_DELIVERY_SQL } from "./sql/webhooks.ts";

export interface WebhookRequest {
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
  readonly signal: AbortSignal;
}

export interface WebhooksOptions {
  readonly pool: pg.Pool;
  readonly named: (text: string) => string;
  readonly log: Log;
  /** Gives the status; does not follow, does not read on. Rejects for an address that is refused (code OUTGOING_REFUSED) and for a connection that fails. */
  send(request: WebhookRequest): Promise<number>;
  sign(secrets: readonly string[], signed: { readonly id: string; readonly timestamp: number; readonly body: string }): string;
  readonly random: () => number;
  readonly userAgent: string;
}

/** A delivery that was written a moment ago is seen this late at most. */
const LOOK_EVERY_MS = 1_000;
const MAX_IN_FLIGHT = 16;
/** Far below the lease, so that only a dead sender's delivery is taken by another. */
const TIMEOUT_MS = 15_000;
/** With the pauses below the last try comes about a day after the first. */
const MAX_ATTEMPTS = 20;
const FIRST_PAUSE_MS = 5_000;
const MAX_PAUSE_MS = 4 * 3_600_000;
/** Deliveries in a row that came to nothing, each for a day, until their webhook is disabled. */
const MAX_GAVE_UP = 5;

interface Delivery {
  readonly id: string;
  readonly webhook_id: string;
  readonly tenant: string;
  readonly run_id: string;
  readonly event: string;
  readonly body: JsonObject;
  readonly attempts: number;
  readonly url: string;
  readonly name: string;
  readonly secrets: readonly string[];
}

export class Webhooks {
  readonly #options: WebhooksOptions;
  readonly #loop: Loop;
  readonly #inFlight = new Map<Promise<void>, string>();
  readonly #stopped = new AbortController();

  constructor(options: WebhooksOptions) {
    this.#options = options;
    this.#loop = new Loop({ name: "webhooks", log: options.log, everyMs: LOOK_EVERY_MS, round: () => this.round() });
  }

  start(): void {
    this.#loop.start();
  }

  /** Sends that are under way are broken off, and sent again by another worker after their lease. */
  async stop(): Promise<void> {
    await this.#loop.stop();
    this.#stopped.abort();
    await Promise.all(this.#inFlight.keys());
  }

  /** Takes what is due and begins to send it; gives the milliseconds until the next look. */
  async round(): Promise<number> {
    const { pool, named } = this.#options;
    const next = await pool.query<{ in_ms: number | null }>({ name: "capstan-next-delivery", text: named(UNTIL_NEXT_DELIVERY_SQL) });
    const inMs = next.rows[0]?.in_ms ?? LOOK_EVERY_MS;
    if (inMs > 0) return Math.min(LOOK_EVERY_MS, Math.ceil(inMs));
    if (this.#inFlight.size >= MAX_IN_FLIGHT) return LOOK_EVERY_MS;
    const busy = new Map<string, number>();
    for (const id of this.#inFlight.values()) busy.set(id, (busy.get(id) ?? 0) + 1);
    const { rows } = await pool.query<Delivery>({
      name: "capstan-take-deliveries",
      text: named(TAKE_DELIVERIES_SQL),
      values: [MAX_IN_FLIGHT - this.#inFlight.size, [...busy.keys()], [...busy.values()]],
    });
    for (const delivery of rows) this.#begin(delivery);
    if (rows.length > 0) return 0;
    const { rowCount } = await pool.query(named(DROP_DELIVERIES_SQL));
    // What is left is due and not to be had: its receiver is busy, or another worker has it in hand.
    return (rowCount ?? 0) > 0 ? 0 : LOOK_EVERY_MS;
  }

  /** Resolves when nothing is being sent. */
  async settled(): Promise<void> {
    await Promise.all(this.#inFlight.keys());
  }

  #begin(delivery: Delivery): void {
    const sending = this.#deliver(delivery).finally(() => {
      this.#inFlight.delete(sending);
      this.#loop.poke();
    });
    this.#inFlight.set(sending, delivery.webhook_id);
  }

  async #deliver(delivery: Delivery): Promise<void> {
    const { log } = this.#options;
    const facts = { tenant: delivery.tenant, webhook: delivery.name, deliveryId: delivery.id, runId: delivery.run_id, attempt: delivery.attempts };
    try {
      const outcome = await this.#send(delivery);
      hitFailpoint("webhook.sent");
      if (outcome === "stopped") return;
      await this.#note(delivery, outcome, facts);
    } catch (error) {
      // Not noted: it is sent once more when its lease has ended.
      log[isConnectionError(error) ? "debug" : "error"]({ ...facts, err: error }, "what became of a webhook's delivery could not be noted; it is sent again");
    }
  }

  async #send({ id, url, body, secrets }: Delivery): Promise<Outcome | "stopped"> {
    const { send, sign, userAgent } = this.#options;
    const text = JSON.stringify(body);
    const timestamp = Math.floor(Date.now() / 1_000);
    const signal = AbortSignal.any([this.#stopped.signal, AbortSignal.timeout(TIMEOUT_MS)]);
    try {
      const status = await send({
        url,
        body: text,
        signal,
        headers: {
          "content-type": "application/json",
          "user-agent": userAgent,
          "webhook-id": id,
          "webhook-timestamp": String(timestamp),
          "webhook-signature": sign(secrets, { id, timestamp, body: text }),
        },
      });
      return {
        status,
        problem: status >= 200 && status < 300 ? undefined : `the receiver answered ${status}${status >= 300 && status < 400 ? "; redirects are not followed" : ""}`,
        isGone: status === 410,
      };
    } catch (error) {
      if (this.#stopped.signal.aborted) return "stopped";
      const { message, cause = [] } = recordError(error, "WEBHOOK_FAILED");
      return { status: undefined, problem: signal.aborted ? `the receiver did not answer within ${TIMEOUT_MS} ms` : [message, ...cause].join(": "), isGone: false };
    }
  }

  async #note(delivery: Delivery, { status, problem, isGone }: Outcome, facts: object): Promise<void> {
    const { pool, named, log, random } = this.#options;
    const { id, webhook_id: webhookId, attempts } = delivery;
    if (problem === undefined) {
      await pool.query(named(DELIVERED_SQL), [id, status]);
      log.debug({ ...facts, status }, "webhook delivered");
      return;
    }
    if (attempts < MAX_ATTEMPTS && !isGone) {
      const pauseMs = backoffMs(attempts, random(), { firstMs: FIRST_PAUSE_MS, maxMs: MAX_PAUSE_MS });
      await pool.query(named(FAILED_SQL), [id, attempts, webhookId, pauseMs, status ?? null, problem]);
      log.debug({ ...facts, problem, retryInMs: Math.round(pauseMs) }, "a webhook's delivery failed and is tried again");
      return;
    }
    const { rows } = await pool.query<{ disabled: boolean }>(named(GAVE_UP_SQL), [id, attempts, status ?? null, problem, isGone, MAX_GAVE_UP]);
    log.warn({ ...facts, problem, disabled: rows[0]?.disabled ?? false }, "a webhook's delivery was given up");
  }
}

interface Outcome {
  readonly status: number | undefined;
  readonly problem: string | undefined;
  readonly isGone: boolean;
}
