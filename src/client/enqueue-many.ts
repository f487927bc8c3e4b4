/** Many runs in one statement: all of them, or none. */
import type pg from "pg";
import type { Redactor } from "../domain/redact/redactor.ts";
import { definitionSha } from "../store/definitions.ts";
import { checkedInput, type TypedAgent } from "./agent-contract.ts";
import { enqueueTogether, orderOf, type EnqueueArguments } from "./enqueue-group.ts";
import { DefinitionPins, enqueueRun, type EnqueueAgent, type EnqueueOptions } from "./enqueue.ts";
import { ArgumentError, fromPostgres } from "./errors.ts";
import { queryTx, type Tx } from "./transaction.ts";

export interface EnqueueItem {
  readonly agent: TypedAgent | string;
  readonly input: unknown;
  readonly options?: Omit<EnqueueOptions, "tx">;
}

/** As many as one statement's arguments hold without growing past what a server should be given at once. */
export const MAX_ENQUEUE_MANY = 1_000;

export function checkCount(count: number): void {
  if (count > MAX_ENQUEUE_MANY)
    throw new ArgumentError(`enqueueMany takes up to ${MAX_ENQUEUE_MANY} runs, not ${count}: enqueue them in several parts, in one transaction if all must be there or none`);
}

/** A contract's runs are enqueued by name, once their input was checked. */
export function targetOf(agent: TypedAgent | string, input: unknown): readonly [agent: EnqueueAgent | string, input: unknown] {
  if (typeof agent === "string") return [agent, input];
  const { definition } = agent;
  return definition === undefined ? [agent.name, checkedInput(agent, input)] : [{ ...agent, definition }, input];
}

/** Gives the runs' ids in the order of the items. */
export async function enqueueMany(
  db: pg.Pool,
  named: (text: string) => string,
  items: readonly EnqueueItem[],
  { tx, pins = new DefinitionPins(definitionSha), redactor }: { readonly tx?: Tx | undefined; readonly pins?: DefinitionPins; readonly redactor?: Redactor | undefined } = {},
): Promise<string[]> {
  checkCount(items.length);
  if (items.length === 0) return [];
  const sent = Promise.withResolvers<readonly string[]>();
  sent.promise.catch(() => {});
  const all: { readonly at: number; readonly args: EnqueueArguments }[] = [];
  // What the caller's transaction stores may be rolled back: then it is not known to be there.
  const known = tx === undefined ? pins : new DefinitionPins(definitionSha);
  try {
    for (const [at, { agent, input, options = {} }] of items.entries()) {
      const [target, checked] = targetOf(agent, input);
      const prepared = Promise.withResolvers<void>();
      const collect = (args: EnqueueArguments): Promise<string> => {
        all.push({ at, args });
        prepared.resolve();
        return sent.promise.then((ids) => ids[at] as string);
      };
      // One after another: what is checked and kept for them goes through one connection, if it is the caller's.
      await Promise.race([prepared.promise, enqueueRun(tx ?? db, named, target, checked, options, known, { add: collect }, redactor)]);
    }
    const ordered = all.toSorted((a, b) => (orderOf(a.args) < orderOf(b.args) ? -1 : 1));
    const { text, values } = enqueueTogether(ordered.map(({ args }) => args));
    const rows = await queryTx<{ id: string }>(tx ?? db, named(text), values);
    const ids: string[] = [];
    for (const [i, { id }] of rows.entries()) ids[(ordered[i] as { at: number }).at] = id;
    sent.resolve(ids);
    return ids;
  } catch (error) {
    sent.reject(error instanceof Error ? error : new Error(String(error)));
    throw fromPostgres(error);
  }
}
