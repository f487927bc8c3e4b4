/** What waits for somebody outside: calls to approve, questions, signals, and calls that are completed elsewhere. */
import type { JsonObject, JsonValue } from "../domain/json.ts";
import { toJsonValue } from "../domain/json.ts";
import type { Redactor } from "../domain/redact/redactor.ts";
import { ArgumentError, fromPostgres, InputInvalidError, WaitUnknownError } from "./errors.ts";
import { redactedJsonInput } from "./redact-input.ts";
import { queryTx, type Tx } from "./transaction.ts";

export interface WaitView {
  readonly id: string;
  readonly run_id: string;
  readonly tenant: string;
  readonly agent: string;
  readonly turn: number;
  readonly call_id: string;
  readonly kind: "approval" | "question" | "signal" | "timer" | "children" | "completion";
  /** The tool, or the signal's name. */
  readonly name: string;
  /** What is asked: `{input}` of an approval, `{question, options?, schema?}`, `{schema?}`. */
  readonly detail: JsonObject;
  readonly requested_at: string;
  readonly expires_at?: string;
  /** Children that have not ended. */
  readonly pending?: number;
  /** Set once somebody has answered. */
  readonly answered_at?: string;
  readonly answered_by?: string;
  readonly answer?: JsonValue;
  /** Set once its run has gone on, with or without an answer. */
  readonly settled_at?: string;
}

export interface WaitFilter {
  readonly tenant?: string;
  readonly runId?: string;
  /** Default: what a person can act on, approvals and questions. */
  readonly kinds?: readonly WaitView["kind"][];
  /** 1 to 1,000; default 100. */
  readonly limit?: number;
  /** Only those after this one, in the order of the list. */
  readonly after?: string;
}

const COLUMNS = `w.id, w.run_id, w.tenant, w.agent, w.turn, w.call_id, w.kind, w.name, w.detail, to_jsonb(w.requested_at) #>> '{}' as requested_at,
  to_jsonb(w.expires_at) #>> '{}' as expires_at, w.pending,
  to_jsonb(w.answered_at) #>> '{}' as answered_at, w.answered_by, w.answer, to_jsonb(w.settled_at) #>> '{}' as settled_at`;

type RawWait = { readonly [F in keyof Required<WaitView>]: Required<WaitView>[F] | null };

export class WaitClient {
  readonly #db: Tx;
  readonly #named: (text: string) => string;
  readonly #redactor: Redactor | undefined;

  constructor(db: Tx, named: (text: string) => string, redactor?: Redactor) {
    this.#db = db;
    this.#named = named;
    this.#redactor = redactor;
  }

  /** What is open, oldest first. */
  async list({ tenant, runId, kinds = ["approval", "question"], limit = 100, after }: WaitFilter = {}): Promise<WaitView[]> {
    if (!Number.isInteger(limit) || limit < 1 || limit > 1_000) throw new ArgumentError("limit must be a whole number from 1 to 1,000");
    const rows = await this.#query<RawWait>(
      `select ${COLUMNS} from capstan.waits w
       where w.settled_at is null and w.answered_at is null and w.kind = any($1::text[]) and ($2::text is null or w.tenant = $2) and ($3::uuid is null or w.run_id = $3)
         and ($4::uuid is null or (w.requested_at, w.id) > (select a.requested_at, a.id from capstan.waits a where a.id = $4))
       order by w.requested_at, w.id limit $5`,
      [[...kinds], tenant ?? null, runId ?? null, after ?? null, limit],
    );
    return rows.map(toView);
  }

  /** Throws WaitUnknownError. */
  async get(id: string, { tx }: { readonly tx?: Tx | undefined } = {}): Promise<WaitView> {
    const [row] = await this.#query<RawWait>(`select ${COLUMNS} from capstan.waits w where w.id = $1::uuid`, [id], tx);
    if (row === undefined) throw new WaitUnknownError(`nothing waits under ${id}`);
    return toView(row);
  }

  /**
   * Lets a call be made; `input` are arguments to use instead of the model's own. Exactly one decision counts: throws
   * WaitDecidedError for a second one, WaitExpiredError, WaitUnknownError, InputInvalidError when `input` does not fit the tool.
   */
  async approve(id: string, { input, reason, actor, tx }: DecisionOptions & { readonly input?: JsonObject } = {}): Promise<void> {
    const shown = input === undefined ? undefined : ((await this.#shown(jsonOf("input", input))) as JsonObject);
    if (shown !== undefined) await this.#checkArguments(id, shown, tx);
    await this.#query(
      "select capstan.decide($1::uuid, 'approve', $2::jsonb, $3, $4)",
      [id, shown === undefined ? null : JSON.stringify(shown), await this.#shownText(reason), actor ?? null],
      tx,
    );
  }

  /** The model reads the reason. */
  async deny(id: string, { reason, actor, tx }: DecisionOptions = {}): Promise<void> {
    await this.#query("select capstan.decide($1::uuid, 'deny', null, $2, $3)", [id, await this.#shownText(reason), actor ?? null], tx);
  }

  /** Throws InputInvalidError when the answer does not fit the schema that was asked for; then nothing was recorded. */
  async answer(id: string, answer: unknown, { actor, tx }: Omit<DecisionOptions, "reason"> = {}): Promise<void> {
    const { detail, name } = await this.get(id, { tx });
    const value = await this.#shown(jsonOf(name, answer));
    await check(name, detail["schema"] as JsonObject | undefined, value);
    await this.#query("select capstan.answer($1::uuid, $2::jsonb, false, $3)", [id, JSON.stringify(value), actor ?? null], tx);
  }

  /** Nobody will answer: the model is told. */
  async decline(id: string, { actor, tx }: Omit<DecisionOptions, "reason"> = {}): Promise<void> {
    await this.#query("select capstan.answer($1::uuid, null, true, $2)", [id, actor ?? null], tx);
  }

  /** The result of a call whose tool handed back `later()`, by its context's `completionToken`; may come before the tool has returned. Throws WaitDecidedError for a second one. */
  async complete(token: string, output: unknown, { actor, tx }: Omit<DecisionOptions, "reason"> = {}): Promise<void> {
    const { runId, waitId } = parseToken(token);
    const value = await this.#shown(jsonOf("completion", output), runId);
    const [row] = await this.#query<{ detail: JsonObject }>("select w.detail from capstan.waits w where w.id = $1::uuid", [waitId], tx);
    await check("completion", row?.detail["schema"] as JsonObject | undefined, value);
    await this.#signal(runId, waitId, { output: value }, { actor, tx });
  }

  /** The call failed: the model reads why. */
  async fail(token: string, message: string, { actor, tx }: Omit<DecisionOptions, "reason"> = {}): Promise<void> {
    const { runId, waitId } = parseToken(token);
    await this.#signal(runId, waitId, { error: await this.#shownText(message) }, { actor, tx });
  }

  /**
   * A signal for a run: taken by the oldest call that waits for it, or kept until one does. The same `dedupeKey` gives the
   * same signal. Throws InputInvalidError when a call waits for it and the payload does not fit.
   */
  async signal(runId: string, name: string, payload: unknown = null, { dedupeKey, actor, tx }: SignalOptions = {}): Promise<string> {
    const value = await this.#shown(jsonOf(name, payload), runId);
    const [row] = await this.#query<{ detail: JsonObject }>(
      "select w.detail from capstan.waits w where w.run_id = $1::uuid and w.kind = 'signal' and w.name = $2 and w.settled_at is null and w.answered_at is null order by w.requested_at, w.call_index limit 1",
      [runId, name],
      tx,
    );
    await check(name, row?.detail["schema"] as JsonObject | undefined, value);
    const rows = await this.#query<{ id: string }>(
      "select capstan.signal($1::uuid, $2, $3::jsonb, $4, $5) as id",
      [runId, name, JSON.stringify(value), dedupeKey ?? null, actor ?? null],
      tx,
    );
    return (rows[0] as { id: string }).id;
  }

  #shown(value: JsonValue, runId?: string): Promise<JsonValue> {
    return redactedJsonInput(value, this.#redactor, { place: "input", ...(runId === undefined ? {} : { runId }) });
  }

  async #shownText(text: string | undefined): Promise<string | null> {
    return text === undefined ? null : ((await this.#shown(text)) as string);
  }

  async #signal(runId: string, waitId: string, payload: JsonObject, { actor, tx }: { readonly actor: string | undefined; readonly tx: Tx | undefined }): Promise<void> {
    const name = `completion:${waitId}`;
    await this.#query("select capstan.signal($1::uuid, $2, $3::jsonb, null, $4)", [runId, name, JSON.stringify(payload), actor ?? null], tx);
  }

  /** Against the pinned definition, whoever has code for it. */
  async #checkArguments(id: string, input: JsonObject, tx: Tx | undefined): Promise<void> {
    const [row] = await this.#query<{ name: string; schema: JsonObject | null }>(
      `select w.name, (select t -> 'input_schema' from jsonb_array_elements(d.definition -> 'tools') t where t ->> 'name' = w.name) as schema
       from capstan.waits w join capstan.runs r on r.id = w.run_id left join capstan.agent_definitions d on d.sha = r.definition_sha where w.id = $1::uuid`,
      [id],
      tx,
    );
    if (row?.schema) await check(row.name, row.schema, jsonOf(row.name, input));
  }

  async #query<Row extends object>(text: string, values: readonly unknown[], tx?: Tx): Promise<Row[]> {
    try {
      return await queryTx<Row & Record<string, unknown>>(tx ?? this.#db, this.#named(text), values);
    } catch (error) {
      throw fromPostgres(error);
    }
  }
}

export interface DecisionOptions {
  readonly reason?: string;
  /** Who decided, for the journal. */
  readonly actor?: string;
  readonly tx?: Tx;
}

export interface SignalOptions {
  readonly dedupeKey?: string;
  readonly actor?: string;
  readonly tx?: Tx;
}

function toView({ pending, ...raw }: RawWait): WaitView {
  // A JSON null as answer comes as null too: `answered_at` says that there was one.
  const { answered_at: answered, answer } = raw;
  const known = Object.fromEntries(Object.entries(raw).filter(([, value]) => value !== null));
  return { ...known, ...(answered === null ? {} : { answer }), ...(raw.kind === "children" ? { pending } : {}) } as WaitView;
}

function parseToken(token: string): { runId: string; waitId: string } {
  const found = /^([0-9a-f-]{36})\.([0-9a-f-]{36})$/.exec(token);
  if (found === null) throw new ArgumentError(`${JSON.stringify(token.slice(0, 100))} is no completion token: give what the tool's context had as completionToken`);
  return { runId: found[1] as string, waitId: found[2] as string };
}

function jsonOf(name: string, value: unknown): JsonValue {
  const json = toJsonValue(value);
  if (!json.ok) throw new InputInvalidError(name, [{ path: json.problem.path, message: json.problem.problem }]);
  return json.value;
}

/** The validator is loaded when a schema is met: most clients never meet one. */
async function check(name: string, schema: JsonObject | undefined, value: JsonValue): Promise<void> {
  if (schema === undefined) return;
  const { checkAgainst } = await import("../domain/json-schema.ts");
  const checked = checkAgainst(schema, value);
  if (!checked.ok) throw new InputInvalidError(name, checked.issues);
}
