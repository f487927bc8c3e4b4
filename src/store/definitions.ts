/** Definitions and promotions. Definitions are immutable, so what was read once is kept. */
import { createHash } from "node:crypto";
import type pg from "pg";
import { agentDefinition, definitionText, normalizeDefinition, type AgentDefinition } from "../domain/definition.ts";
import type { DefinitionStore, PromotedDefinition } from "../engine/ports.ts";

export function definitionSha(definition: AgentDefinition): string {
  return `sha256:${createHash("sha256").update(definitionText(definition)).digest("hex")}`;
}

type Queryable = Pick<pg.Pool, "query">;

export class PostgresDefinitionStore implements DefinitionStore {
  readonly #db: Queryable;
  readonly #named: (text: string) => string;
  readonly #bySha = new Map<string, AgentDefinition>();

  constructor(db: Queryable, named: (text: string) => string) {
    this.#db = db;
    this.#named = named;
  }

  async get(sha: string): Promise<AgentDefinition | undefined> {
    const known = this.#bySha.get(sha);
    if (known !== undefined) return known;
    const { rows } = await this.#db.query<{ definition: unknown }>(this.#named("select definition from capstan.agent_definitions where sha = $1"), [sha]);
    if (rows[0] === undefined) return undefined;
    const definition = agentDefinition.parse(rows[0].definition);
    this.#bySha.set(sha, definition);
    return definition;
  }

  /** Also of a retired agent: a run that was enqueued before any definition was known goes on. */
  async promoted(name: string): Promise<PromotedDefinition | undefined> {
    const { rows } = await this.#db.query<{ promoted_sha: string; retired: boolean }>(
      this.#named("select promoted_sha, retired_at is not null as retired from capstan.agents where name = $1"),
      [name],
    );
    const [row] = rows;
    const definition = row && (await this.get(row.promoted_sha));
    return row === undefined || definition === undefined ? undefined : { sha: row.promoted_sha, definition, isRetired: row.retired };
  }

  /**
   * Stores a definition; promotes it if its agent has none yet, or if asked to. Gives its sha. Safe to repeat and to race.
   * An agent that was retired stays so: a deploy must not bring back what somebody has taken out of service.
   */
  async register(given: AgentDefinition, { promote = false, actor }: { promote?: boolean; actor?: string } = {}): Promise<string> {
    const definition = normalizeDefinition(given);
    const sha = definitionSha(definition);
    await this.#db.query(
      this.#named(`
        with clock as materialized (select capstan.now() as at), stored as (
          insert into capstan.agent_definitions (sha, name, definition, created_at) select $1, $2, $3::jsonb, at from clock on conflict (sha) do nothing
        ), promoted as (
          insert into capstan.agents as a (name, promoted_sha, updated_at) select $2, $1, at from clock
          on conflict (name) do update set promoted_sha = excluded.promoted_sha, updated_at = excluded.updated_at
            where $4 and a.promoted_sha <> excluded.promoted_sha
          returning name, promoted_sha
        )
        insert into capstan.agent_promotions (name, sha, actor) select name, promoted_sha, $5 from promoted`),
      [sha, definition.name, JSON.stringify(definition), promote, actor ?? null],
    );
    this.#bySha.set(sha, definition);
    return sha;
  }

  async list(): Promise<{ name: string; promotedSha: string; updatedAt: Date; retired: boolean; versions: number }[]> {
    const { rows } = await this.#db.query<{ name: string; promoted_sha: string; updated_at: Date; retired: boolean; versions: number }>(
      this.#named(`select a.name, a.promoted_sha, a.updated_at, a.retired_at is not null as retired,
        (select count(*)::int from capstan.agent_definitions d where d.name = a.name) as versions from capstan.agents a order by a.name`),
    );
    return rows.map((row) => ({ name: row.name, promotedSha: row.promoted_sha, updatedAt: row.updated_at, retired: row.retired, versions: row.versions }));
  }
}
