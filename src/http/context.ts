/** What every route works with. */
import type pg from "pg";
import type { CapstanClient } from "../client/client.ts";
import type { Log } from "../engine/ports.ts";
import type { WebhookGuard } from "../client/webhooks.ts";
import type { EventStream } from "./stream/route.ts";

export interface ApiContext {
  readonly db: pg.Pool;
  readonly named: (text: string) => string;
  readonly client: CapstanClient;
  readonly stream: EventStream;
  readonly log: Log;
  /** Fires when the API stops: what waits answers with what it knows. */
  readonly stopping: AbortSignal;
  readonly webhookGuard: WebhookGuard | undefined;
}
