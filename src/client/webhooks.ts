/** Webhooks of a tenant: where completion is told to the outside, and what became of it (docs/webhooks.md). */
import type { JsonObject } from "../domain/json.ts";
import { recordAudit } from "./audit.ts";
import { ArgumentError, fromPostgres, WebhookExistsError, WebhookUnknownError } from "./errors.ts";
import { queryTx, type Tx } from "./transaction.ts";
import { newWebhookSecret } from "./webhook-signature.ts";

export const webhookEvents = ["run.completed", "run.failed", "run.cancelled", "run.waiting"] as const;
export type WebhookEvent = (typeof webhookEvents)[number];

export interface CreateWebhookOptions {
  /** 1 to 100 characters, one of that name per tenant. */
  readonly name: string;
  /** https, and an address that is not private unless the operator allows it. */
  readonly url: string;
  /** Default: all. */
  readonly events?: readonly WebhookEvent[];
  /** Only runs of this agent. */
  readonly agent?: string;
  /** Bodies hold the run's output or error too; default false. */
  readonly content?: boolean;
  readonly tenant?: string;
  readonly actor?: string;
}

export interface WebhookRef {
  /** Default `default`. */
  readonly tenant?: string;
  readonly actor?: string;
}

export interface WebhookView {
  readonly id: string;
  readonly tenant: string;
  readonly name: string;
  readonly url: string;
  readonly events: readonly WebhookEvent[];
  readonly agent?: string;
  readonly content: boolean;
  readonly created_at: string;
  readonly actor?: string;
  readonly disabled_at?: string;
  readonly disabled_reason?: string;
  /** Deliveries that were given up since the last that arrived. */
  readonly failures: number;
  /** Until then requests are signed with the former secret too. */
  readonly previous_secret_until?: string;
}

export type CreatedWebhook = WebhookView & {
  /** For `verifyWebhook`. Shown this once. */
  readonly secret: string;
};

export interface DeliveryView {
  /** Header `webhook-id` of its requests. */
  readonly id: string;
  readonly webhook: string;
  readonly run_id?: string;
  readonly event: string;
  readonly state: "waiting" | "delivered" | "gave_up";
  readonly at: string;
  readonly attempts: number;
  readonly next_at?: string;
  readonly delivered_at?: string;
  readonly gave_up_at?: string;
  /** Of the last try. */
  readonly status_code?: number;
  readonly error?: string;
}

export interface DeliveryFilter {
  readonly tenant?: string;
  readonly webhook?: string;
  readonly runId?: string;
  readonly state?: DeliveryView["state"];
  /** Deliveries older than this one. */
  readonly before?: string;
  /** 1 to 1,000; default 100. */
  readonly limit?: number;
}

/** Judges an address; see the outgoing guard. Without one only its form is checked here, and the sender refuses. */
export type WebhookGuard = (url: URL) => Promise<unknown>;

const NO_RUN = "00000000-0000-0000-0000-000000000000";
const TIME = (column: string): string => `to_jsonb(${column}) #>> '{}'`;
const VIEW = `jsonb_strip_nulls(jsonb_build_object('id', w.id, 'tenant', w.tenant, 'name', w.name, 'url', w.url, 'events', w.events, 'agent', w.agent, 'content', w.content,
  'created_at', w.created_at, 'actor', w.actor, 'disabled_at', w.disabled_at, 'disabled_reason', w.disabled_reason, 'failures', w.failures,
  'previous_secret_until', case when w.previous_until > capstan.now() then w.previous_until end)) as view`;
const STATE = "case when d.next_at is not null then 'waiting' when d.delivered_at is not null then 'delivered' else 'gave_up' end";
const DELIVERY = `d.id, w.name as webhook, nullif(d.run_id, '${NO_RUN}') as run_id, d.event, ${STATE} as state, ${TIME("d.at")} as at, d.attempts, ${TIME("d.next_at")} as next_at,
  ${TIME("d.delivered_at")} as delivered_at, ${TIME("d.gave_up_at")} as gave_up_at, d.status_code, d.error`;
/** How long a former secret signs beside the new one. */
const OVERLAP_MS = 24 * 3_600_000;

type RawDelivery = { readonly [F in keyof Required<DeliveryView>]: Required<DeliveryView>[F] | null };

export class WebhooksClient {
  readonly #db: Tx;
  readonly #named: (text: string) => string;
  readonly #guard: WebhookGuard | undefined;

  constructor(db: Tx, named: (text: string) => string, guard?: WebhookGuard) {
    this.#db = db;
    this.#named = named;
    this.#guard = guard;
  }

  /** Throws ArgumentError, WebhookExistsError, and what the guard throws (OUTGOING_REFUSED). */
  async create({ name, url, events = webhookEvents, agent, content = false, tenant = "default", actor }: CreateWebhookOptions): Promise<CreatedWebhook> {
    if (typeof name !== "string" || name.length < 1 || name.length > 100) throw new ArgumentError("name must have 1 to 100 characters");
    const strange = events.filter((event) => !webhookEvents.includes(event));
    if (strange.length > 0 || events.length === 0) throw new ArgumentError(`events: ${strange.join(", ") || "none"}; there are ${webhookEvents.join(", ")}`);
    const address = await this.#checked(url);
    const secret = newWebhookSecret();
    const [row] = await this.#query<{ view: WebhookView }>(
      `insert into capstan.webhooks as w (id, tenant, name, url, secret, events, agent, content, actor) values (capstan.uuid_v7(), $1, $2, $3, $4, $5::text[], $6, $7, $8)
       on conflict (tenant, name) do nothing returning ${VIEW}`,
      [tenant, name, address, secret, [...new Set(events)], agent ?? null, content, actor ?? null],
    );
    if (row === undefined) throw new WebhookExistsError(`tenant ${tenant} has a webhook ${name} already: delete it, or take another name`);
    await this.#audit(tenant, actor, "webhook.create", name, { host: new URL(address).host });
    return { ...row.view, secret };
  }

  /** By name; all tenants unless one is given. */
  async list({ tenant }: { readonly tenant?: string } = {}): Promise<WebhookView[]> {
    const rows = await this.#query<{ view: WebhookView }>(`select ${VIEW} from capstan.webhooks w where $1::text is null or w.tenant = $1 order by w.tenant, w.name limit 1000`, [
      tenant ?? null,
    ]);
    return rows.map(({ view }) => view);
  }

  /** Throws WebhookUnknownError, as do all that follow. */
  async get(name: string, { tenant = "default" }: WebhookRef = {}): Promise<WebhookView> {
    const [row] = await this.#query<{ view: WebhookView }>(`select ${VIEW} from capstan.webhooks w where w.tenant = $1 and w.name = $2`, [tenant, name]);
    return known(row, name, tenant).view;
  }

  /** Writes a delivery of the event `webhook.test`, also for one that is disabled; gives its id. */
  async test(name: string, { tenant = "default", actor }: WebhookRef = {}): Promise<string> {
    const rows = await this.#query<{ id: string; disabled: boolean }>(
      `insert into capstan.webhook_deliveries (id, webhook_id, tenant, run_id, event, body, at, next_at)
       select capstan.uuid_v7(), w.id, w.tenant, '${NO_RUN}', 'webhook.test',
         jsonb_build_object('type', 'webhook.test', 'timestamp', ${TIME("capstan.now()")}, 'data', jsonb_build_object('tenant', w.tenant, 'webhook', w.name)), capstan.now(), capstan.now()
       from capstan.webhooks w where w.tenant = $1 and w.name = $2 and w.disabled_at is null returning id`,
      [tenant, name],
    );
    if (rows[0] === undefined) {
      await this.get(name, { tenant });
      throw new ArgumentError(`webhook ${name} is disabled; enable it first`);
    }
    await this.#audit(tenant, actor, "webhook.test", name);
    return rows[0].id;
  }

  /** Nothing more is written for it; what waits comes to nothing. False when it was disabled already. */
  disable(name: string, { tenant = "default", actor }: WebhookRef = {}): Promise<boolean> {
    return this.#turn(name, tenant, actor, "webhook.disable", "disabled_at = capstan.now(), disabled_reason = null", "w.disabled_at is null");
  }

  /** False when it was not disabled. What was given up meanwhile is sent by `redeliver`. */
  enable(name: string, { tenant = "default", actor }: WebhookRef = {}): Promise<boolean> {
    return this.#turn(name, tenant, actor, "webhook.enable", "disabled_at = null, disabled_reason = null, failures = 0", "w.disabled_at is not null");
  }

  /** A new secret, shown this once; for `overlapMs` (default a day) requests are signed with the former one too. */
  async rotate(name: string, { tenant = "default", actor, overlapMs = OVERLAP_MS }: WebhookRef & { readonly overlapMs?: number } = {}): Promise<CreatedWebhook> {
    if (!Number.isInteger(overlapMs) || overlapMs < 0 || overlapMs > 30 * OVERLAP_MS) throw new ArgumentError("overlapMs must be a whole number from 0 to 2,592,000,000 (30 days)");
    const secret = newWebhookSecret();
    const [row] = await this.#query<{ view: WebhookView }>(
      `update capstan.webhooks w set previous_secret = w.secret, previous_until = capstan.now() + $4::float8 * interval '1 ms', secret = $3 where w.tenant = $1 and w.name = $2 returning ${VIEW}`,
      [tenant, name, secret, overlapMs],
    );
    const { view } = known(row, name, tenant);
    await this.#audit(tenant, actor, "webhook.rotate", name);
    return { ...view, secret };
  }

  /** With what is known of its deliveries. */
  async delete(name: string, { tenant = "default", actor }: WebhookRef = {}): Promise<void> {
    const rows = await this.#query(
      `with gone as (delete from capstan.webhooks w where w.tenant = $1 and w.name = $2 returning w.id),
         deliveries as (delete from capstan.webhook_deliveries d using gone g where d.webhook_id = g.id)
       select id from gone`,
      [tenant, name],
    );
    known(rows[0], name, tenant);
    await this.#audit(tenant, actor, "webhook.delete", name);
  }

  /** Newest first. */
  async deliveries({ tenant, webhook, runId, state, before, limit = 100 }: DeliveryFilter = {}): Promise<DeliveryView[]> {
    if (!Number.isInteger(limit) || limit < 1 || limit > 1_000) throw new ArgumentError("limit must be a whole number from 1 to 1,000");
    if (state !== undefined && !["waiting", "delivered", "gave_up"].includes(state)) throw new ArgumentError(`state ${state} is none: waiting, delivered, gave_up`);
    const rows = await this.#query<RawDelivery>(
      `select ${DELIVERY} from capstan.webhook_deliveries d join capstan.webhooks w on w.id = d.webhook_id
       where ($1::text is null or d.tenant = $1) and ($2::text is null or w.name = $2) and ($3::uuid is null or d.run_id = $3) and ($4::text is null or ${STATE} = $4)
         and ($5::uuid is null or d.id < $5) order by d.id desc limit $6`,
      [tenant ?? null, webhook ?? null, runId ?? null, state ?? null, before ?? null, limit],
    );
    return rows.map((row) => Object.fromEntries(Object.entries(row).filter(([, value]) => value !== null)) as unknown as DeliveryView);
  }

  /** Sent once more, with its id, whatever became of it before. */
  async redeliver(id: string, { tenant = "default", actor }: WebhookRef = {}): Promise<void> {
    const rows = await this.#query(
      `update capstan.webhook_deliveries d set next_at = capstan.now(), attempts = 0, gave_up_at = null, delivered_at = null, status_code = null, error = null
       where d.id = $1::uuid and d.tenant = $2 returning d.id`,
      [id, tenant],
    );
    if (rows.length === 0) throw new WebhookUnknownError(`tenant ${tenant} has no delivery ${id}`);
    await this.#audit(tenant, actor, "webhook.redeliver", id);
  }

  async #turn(name: string, tenant: string, actor: string | undefined, action: string, set: string, where: string): Promise<boolean> {
    const rows = await this.#query(`update capstan.webhooks w set ${set} where w.tenant = $1 and w.name = $2 and ${where} returning w.id`, [tenant, name]);
    if (rows.length === 0) {
      await this.get(name, { tenant });
      return false;
    }
    await this.#audit(tenant, actor, action, name);
    return true;
  }

  async #checked(given: string): Promise<string> {
    let url: URL;
    try {
      url = new URL(given);
    } catch {
      throw new ArgumentError("url is no URL: it begins with https://");
    }
    if (given.length > 2_000) throw new ArgumentError("url has more than 2,000 characters");
    if (url.protocol !== "https:" && url.protocol !== "http:") throw new ArgumentError("url must begin with https://");
    if (url.username !== "" || url.password !== "") throw new ArgumentError("url must not hold a user or password: receivers know our requests by their signature");
    await this.#guard?.(url);
    return url.href;
  }

  async #audit(tenant: string, actor: string | undefined, action: string, target: string, detail?: JsonObject): Promise<void> {
    await recordAudit(this.#db, this.#named, { tenant, actor: actor ?? "client", action, target, detail });
  }

  async #query<Row extends object>(text: string, values: readonly unknown[]): Promise<Row[]> {
    try {
      return await queryTx<Row & Record<string, unknown>>(this.#db, this.#named(text), values);
    } catch (error) {
      throw fromPostgres(error);
    }
  }
}

function known<Row>(row: Row | undefined, name: string, tenant: string): Row {
  if (row === undefined) throw new WebhookUnknownError(`tenant ${tenant} has no webhook ${name}`);
  return row;
}
