/** From what people type (an agent's name, a sha or its beginning) to a stored definition. */
import type pg from "pg";
import type { AgentDefinition } from "../domain/definition.ts";
import { AgentUnknownError, DefinitionAmbiguousError, DefinitionUnknownError } from "./agent-errors.ts";
import { ArgumentError } from "./errors.ts";

export interface StoredDefinition {
  readonly sha: string;
  readonly name: string;
  readonly definition: AgentDefinition;
  readonly created_at: Date;
  /** It is the one that runs enqueued by name get. */
  readonly promoted: boolean;
}

const DEFINITION = `select d.sha, d.name, d.definition, d.created_at, exists (select from capstan.agents a where a.promoted_sha = d.sha and a.name = d.name) as promoted
  from capstan.agent_definitions d`;

type Queryable = Pick<pg.Pool, "query">;

const PREFIX = "sha256:";
const MIN_DIGITS = 8;

export class Definitions {
  readonly #db: Queryable;
  readonly #named: (text: string) => string;

  constructor(db: Queryable, named: (text: string) => string) {
    this.#db = db;
    this.#named = named;
  }

  /** The promoted one of a name, or the one of a sha. Hex digits are a name first, since an agent may be called so. */
  async find(nameOrSha: string): Promise<StoredDefinition> {
    if (!nameOrSha.startsWith(PREFIX)) {
      const promoted = await this.promoted(nameOrSha);
      if (promoted !== undefined) return promoted;
      if (!/^[0-9a-f]{8,64}$/.test(nameOrSha)) throw await this.unknownAgent(nameOrSha);
    }
    return await this.bySha(nameOrSha);
  }

  async promoted(name: string): Promise<StoredDefinition | undefined> {
    const { rows } = await this.#db.query<StoredDefinition>(this.#named(`${DEFINITION} join capstan.agents p on p.promoted_sha = d.sha and p.name = $1`), [name]);
    return rows[0];
  }

  /**
   * @param agent only definitions of this one count: its own beginnings are shorter, and another's are not meant.
   * Throws DefinitionUnknownError, DefinitionAmbiguousError, and ArgumentError for what is no sha.
   */
  async bySha(given: string, agent?: string): Promise<StoredDefinition> {
    const digits = given.startsWith(PREFIX) ? given.slice(PREFIX.length) : given;
    if (!/^[0-9a-f]{8,64}$/.test(digits))
      throw new ArgumentError(`${JSON.stringify(given)} is no sha of a definition: give ${MIN_DIGITS} to 64 of its hex digits, with or without ${PREFIX}`);
    const { rows } = await this.#db.query<StoredDefinition>(
      this.#named(`${DEFINITION} where starts_with(d.sha, $1) and ($2::text is null or d.name = $2) order by d.sha limit 5`),
      [PREFIX + digits, agent ?? null],
    );
    const [found, ...others] = rows;
    if (found === undefined) throw new DefinitionUnknownError(given, agent);
    if (others.length > 0) {
      throw new DefinitionAmbiguousError(
        given,
        rows.map(({ sha }) => sha),
      );
    }
    return found;
  }

  /** Of all agents or of one, oldest first. */
  async all(name?: string): Promise<StoredDefinition[]> {
    const { rows } = await this.#db.query<StoredDefinition>(this.#named(`${DEFINITION} where $1::text is null or d.name = $1 order by d.name, d.created_at, d.sha`), [
      name ?? null,
    ]);
    return rows;
  }

  async unknownAgent(name: string): Promise<AgentUnknownError> {
    const { rows } = await this.#db.query<{ name: string }>(this.#named("select name from capstan.agents order by name limit 20"));
    return new AgentUnknownError(
      name,
      rows.map((row) => row.name),
    );
  }
}
