/**
 * Signatures of webhooks, made and checked: HMAC-SHA256 over id, timestamp and body, in the headers that the Standard
 * Webhooks specification names (webhook-id, webhook-timestamp, webhook-signature; version 1, 2026-11).
 */
import { createHmac, randomBytes, timingSafeEqual } from "node:crypto";
import { CapstanError } from "../domain/error.ts";

const PREFIX = "whsec_";
const SECRET_BYTES = 32;
/** A repeated request is refused after this, and a clock that is wrong by less is forgiven. */
const TOLERANCE_S = 5 * 60;

export class WebhookSignatureError extends CapstanError {
  override readonly name = "WebhookSignatureError";
  readonly code = "WEBHOOK_SIGNATURE";
}

export function newWebhookSecret(): string {
  return `${PREFIX}${randomBytes(SECRET_BYTES).toString("base64")}`;
}

/** @param secrets the newest first: while one is being replaced a request is signed by both. */
export function signWebhook(secrets: readonly string[], { id, timestamp, body }: { readonly id: string; readonly timestamp: number; readonly body: string }): string {
  return secrets.map((secret) => `v1,${digest(secret, id, String(timestamp), body).toString("base64")}`).join(" ");
}

export interface VerifyWebhookOptions {
  /** The raw body, as it came: not parsed and written again. */
  readonly body: string | Uint8Array;
  /** The request's headers: an object, or anything with `get`. */
  readonly headers: { readonly [name: string]: string | readonly string[] | undefined } | { get(name: string): string | null };
  /** Of the webhook; several while one is being replaced. */
  readonly secret: string | readonly string[];
  /** Seconds that the request's time may be away from now; default 300. */
  readonly toleranceS?: number;
  /** Default: now. */
  readonly nowMs?: number;
}

export interface VerifiedWebhook {
  /** The same for a request that is repeated: keep it, and pass over one that was seen. */
  readonly id: string;
  readonly at: Date;
  /** `{type, timestamp, data: {run_id, …}}` */
  readonly event: { readonly type: string; readonly timestamp: string; readonly data: { readonly [field: string]: unknown } };
}

/** For receivers. Throws WebhookSignatureError for a request that is not ours, or too old. */
export function verifyWebhook({ body, headers, secret, toleranceS = TOLERANCE_S, nowMs = Date.now() }: VerifyWebhookOptions): VerifiedWebhook {
  const header = (name: string): string => {
    const value = "get" in headers && typeof headers.get === "function" ? headers.get(name) : findHeader(headers as Record<string, string | readonly string[] | undefined>, name);
    if (value === null || value === undefined || value === "") throw new WebhookSignatureError(`the request has no header ${name}`);
    return value;
  };
  const id = header("webhook-id");
  const timestamp = header("webhook-timestamp");
  const signatures = header("webhook-signature").split(" ");
  const seconds = Number(timestamp);
  if (!/^\d{1,12}$/.test(timestamp)) throw new WebhookSignatureError("webhook-timestamp is no number of seconds");
  if (Math.abs(nowMs / 1_000 - seconds) > toleranceS) throw new WebhookSignatureError(`the request is more than ${toleranceS} s away from now: it may be a repeated one`);
  const text = typeof body === "string" ? body : Buffer.from(body).toString("utf8");
  const expected = [secret].flat().map((each) => digest(each, id, timestamp, text));
  const isOurs = signatures.some((signature) => {
    const [version, encoded = ""] = signature.split(",");
    if (version !== "v1") return false;
    const given = Buffer.from(encoded, "base64");
    return expected.some((each) => each.length === given.length && timingSafeEqual(each, given));
  });
  if (!isOurs) throw new WebhookSignatureError("no signature of the request fits the secret and the body");
  return { id, at: new Date(seconds * 1_000), event: JSON.parse(text) as VerifiedWebhook["event"] };
}

function findHeader(headers: Record<string, string | readonly string[] | undefined>, name: string): string | undefined {
  const found = Object.entries(headers).find(([key]) => key.toLowerCase() === name)?.[1];
  return typeof found === "string" ? found : found?.[0];
}

function digest(secret: string, id: string, timestamp: string, body: string): Buffer {
  const key = Buffer.from(secret.startsWith(PREFIX) ? secret.slice(PREFIX.length) : secret, "base64");
  if (key.length < 16) throw new WebhookSignatureError("the secret is none of a webhook: it begins with whsec_ and is shown when the webhook is made");
  return createHmac("sha256", key).update(`${id}.${timestamp}.${body}`).digest();
}
