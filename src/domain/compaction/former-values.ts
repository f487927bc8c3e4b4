/** Which of what was said was replaced later, in the same words ("desk 7: 555-02") or in others ("not under the old number: desk 7 has 555-02"). */
import { changesSomething, formerOf, namesIn, subjectOf } from "./statements.ts";

export interface Statement {
  readonly names?: ReadonlySet<string>;
  readonly key?: string;
  readonly isChange?: boolean;
}

/** So many of the newest statements about a name are compared with a change: the work must not grow with the square of the record. */
const MAX_COMPARED = 64;

export class Statements<T extends Statement> {
  readonly #byKey = new Map<string, T>();
  readonly #byName = new Map<string, T[]>();

  /** Adds the next one of the record. Gives those before it that tell its former values, each with these. */
  add(statement: T): readonly { readonly older: T; readonly words: readonly string[] }[] {
    const { names, key, isChange } = statement;
    if (names === undefined) return [];
    const sameSubject = key === undefined ? undefined : this.#byKey.get(key);
    const others = isChange === true ? [...names].flatMap((name) => this.#byName.get(name)?.slice(-MAX_COMPARED) ?? []) : [];
    const former = new Set([...(sameSubject === undefined ? [] : [sameSubject]), ...others]);
    if (key !== undefined) this.#byKey.set(key, statement);
    for (const name of names) {
      const about = this.#byName.get(name);
      if (about === undefined) this.#byName.set(name, [statement]);
      else about.push(statement);
    }
    return [...former].map((older) => ({ older, words: formerOf(older.names ?? new Set(), names) })).filter(({ words }) => words.length > 0);
  }
}

export function statementIn(sentence: string): Statement {
  const names = namesIn(sentence);
  const key = subjectOf(sentence);
  return { ...(key === undefined ? {} : { key }), ...(names === undefined ? {} : { names, isChange: changesSomething(sentence, names) }) };
}
