/**
 * Definitions as their owners handle them: look, fork, promote, compare, retire. A fork is stored and nothing more until
 * somebody promotes it; runs keep the definition they were pinned to, whatever is promoted or retired meanwhile.
 */
import type pg from "pg";
import { normalizeDefinition, type AgentDefinition } from "../domain/definition.ts";
import { diffDefinitions, type DefinitionChange } from "../domain/definition-diff.ts";
import { applyOverlay, type DefinitionOverlay } from "../domain/overlay.ts";
import { listAgents, type AgentSummary } from "../store/agent-list.ts";
import { definitionSha } from "../store/definitions.ts";
import { DefinitionInvalidError } from "./agent-errors.ts";
import { fromPostgres } from "./errors.ts";
import { Definitions, type StoredDefinition } from "./find-definition.ts";

export interface ActorOptions {
  /** Who does it, for the history. */
  readonly actor?: string;
}

export interface ForkedDefinition {
  readonly sha: string;
  readonly definition: AgentDefinition;
  /** False when a definition with this content was there already, the one that was forked included. */
  readonly created: boolean;
}

export interface HistoryEntry {
  readonly at: Date;
  readonly what: "defined" | "promoted" | "retired" | "unretired";
  /** Of the definition; null for an agent's retirement. */
  readonly sha: string | null;
  readonly actor: string | null;
}

export interface DefinitionCheck {
  readonly sha: string;
  readonly name: string;
  /** Of what is stored now. */
  readonly computed: string;
  readonly matches: boolean;
}

/** A sha may be given by its first 8 hex digits or more, with or without `sha256:`. */
export interface Agents {
  list(): Promise<AgentSummary[]>;
  /** A name stands for its promoted definition. With `agent` only a sha of that one is meant. */
  get(nameOrSha: string, options?: { readonly agent?: string }): Promise<StoredDefinition>;
  /** Throws DefinitionInvalidError with each field and its range. */
  fork(nameOrSha: string, overlay: DefinitionOverlay, options?: ActorOptions & { readonly promote?: boolean }): Promise<ForkedDefinition>;
  /** `changed` is false when it was the promoted one already. An agent that is retired stays so. */
  promote(name: string, sha: string, options?: ActorOptions): Promise<{ readonly sha: string; readonly changed: boolean }>;
  /** Newest first. */
  history(name: string, options?: { readonly limit?: number }): Promise<HistoryEntry[]>;
  diff(before: string, after: string): Promise<DefinitionChange[]>;
  /** Whether what is stored under a sha still has it. */
  verify(sha: string): Promise<DefinitionCheck>;
  /** All definitions, or one agent's, oldest first. */
  verifyAll(name?: string): Promise<DefinitionCheck[]>;
  /** From now on no run is started by this name; those that are there go on. False when it was retired already. */
  retire(name: string, options?: ActorOptions): Promise<boolean>;
  unretire(name: string, options?: ActorOptions): Promise<boolean>;
}

/**
 * The history is written only when something changes: a promotion that is repeated leaves one line. Its time is taken
 * behind the agent's row lock, so that the newest line is the one that counts; `clock` is read before.
 */
const PROMOTED = `clock as materialized (select capstan.now() as at), promoted as (
    insert into capstan.agents as a (name, promoted_sha, updated_at) select $2, $1, at from clock where $3
    on conflict (name) do update set promoted_sha = excluded.promoted_sha, updated_at = excluded.updated_at where a.promoted_sha <> excluded.promoted_sha
    returning name, promoted_sha
  ), told as (
    insert into capstan.agent_promotions (name, sha, actor) select name, promoted_sha, $4 from promoted returning sha
  )`;

const PROMOTE = `with ${PROMOTED} select exists (select from told) as done`;

const FORK = `with ${PROMOTED}, stored as (
    insert into capstan.agent_definitions (sha, name, definition, created_at) select $1, $2, $5::jsonb, at from clock on conflict (sha) do nothing returning sha
  )
  select exists (select from stored) as done, exists (select from told) as promoted`;

/** Agents belong to no tenant: the log has them under none. */
const RETIRE = `with changed as (
    update capstan.agents set retired_at = case when $2 then capstan.now() end, updated_at = capstan.now() where name = $1 and (retired_at is null) = $2 returning name
  ), told as (
    insert into capstan.audit_log (at, tenant, actor, action, target) select capstan.now(), '*', $3, $4, name from changed returning id
  )
  select exists (select from told) as done`;

const HISTORY = `select * from (
    select d.created_at as at, 'defined' as what, d.sha, null as actor, 0 as rank, 0::bigint as id from capstan.agent_definitions d where d.name = $1
    union all
    select p.at, 'promoted', p.sha, p.actor, 1, p.id from capstan.agent_promotions p where p.name = $1
    union all
    select l.at, case l.action when 'agent.retire' then 'retired' else 'unretired' end, null, l.actor, 2, l.id from capstan.audit_log l
      where l.tenant = '*' and l.action in ('agent.retire', 'agent.unretire') and l.target = $1
  ) entries order by at desc, rank desc, id desc limit $2`;

/** Unnamed actors of the log, whose column must have one. */
const SOMEBODY = "client";

export function createAgents(db: Pick<pg.Pool, "query">, named: (text: string) => string): Agents {
  const definitions = new Definitions(db, named);
  const ask = async <Row extends pg.QueryResultRow>(text: string, values: readonly unknown[]): Promise<Row[]> => (await db.query<Row>(named(text), [...values])).rows;
  const retire = async (name: string, retired: boolean, actor = SOMEBODY): Promise<boolean> => {
    if ((await definitions.promoted(name)) === undefined) throw await definitions.unknownAgent(name);
    const [row] = await ask<{ done: boolean }>(RETIRE, [name, retired, actor, retired ? "agent.retire" : "agent.unretire"]);
    return row?.done === true;
  };
  const agents: Agents = {
    list: () => listAgents(db, named),
    get: (nameOrSha, { agent } = {}) => (agent === undefined ? definitions.find(nameOrSha) : ofAgent(agent, nameOrSha)),
    async fork(nameOrSha, overlay, { promote = false, actor } = {}) {
      const base = await definitions.find(nameOrSha);
      const forked = applyOverlay(normalizeDefinition(base.definition), overlay);
      if (!forked.ok) throw new DefinitionInvalidError(base.name, forked.issues);
      const { definition } = forked;
      const sha = definitionSha(definition);
      const [row] = await ask<{ done: boolean }>(FORK, [sha, base.name, promote, actor ?? null, JSON.stringify(definition)]);
      return { sha, definition, created: row?.done === true };
    },
    async promote(name, given, { actor } = {}) {
      const { sha } = await ofAgent(name, given);
      const [row] = await ask<{ done: boolean }>(PROMOTE, [sha, name, true, actor ?? null]);
      return { sha, changed: row?.done === true };
    },
    async history(name, { limit = 100 } = {}) {
      const rows = await ask<HistoryEntry>(HISTORY, [name, limit]);
      if (rows.length === 0) throw await definitions.unknownAgent(name);
      return rows.map(({ at, what, sha, actor }) => ({ at, what, sha, actor }));
    },
    async diff(before, after) {
      const [old, now] = [await definitions.find(before), await definitions.find(after)];
      return diffDefinitions(old.definition, now.definition);
    },
    verify: async (sha) => checked(await definitions.bySha(sha)),
    async verifyAll(name) {
      const stored = await definitions.all(name);
      if (name !== undefined && stored.length === 0) throw await definitions.unknownAgent(name);
      return stored.map(checked);
    },
    retire: (name, { actor } = {}) => retire(name, true, actor),
    unretire: (name, { actor } = {}) => retire(name, false, actor),
  };
  /** Of an agent that nobody has defined the name is what is wrong, not the sha. */
  const ofAgent = async (name: string, given: string): Promise<StoredDefinition> => {
    const [any] = await ask("select 1 from capstan.agent_definitions where name = $1 limit 1", [name]);
    if (any === undefined) throw await definitions.unknownAgent(name);
    return await definitions.bySha(given, name);
  };
  return withNamedErrors(agents);
}

function checked({ sha, name, definition }: StoredDefinition): DefinitionCheck {
  const computed = definitionSha(definition);
  return { sha, name, computed, matches: computed === sha && definition.name === name };
}

/** What Postgres says, under the names that the other calls of a client give it. */
function withNamedErrors(agents: Agents): Agents {
  const wrapped = Object.entries(agents).map(([name, call]: [string, (...args: never[]) => Promise<unknown>]) => [
    name,
    async (...args: never[]): Promise<unknown> => {
      try {
        return await call(...args);
      } catch (error) {
        throw fromPostgres(error);
      }
    },
  ]);
  return Object.fromEntries(wrapped) as Agents;
}
