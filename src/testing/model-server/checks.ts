/** Small checks that the protocols share. A broken rule is thrown as the message that the vendor would send. */

export class Refused extends Error {
  override readonly name = "Refused";
  readonly code: string | undefined;
  readonly status: number;
  constructor(message: string, options: { readonly code?: string; readonly status?: number } = {}) {
    super(message);
    this.code = options.code;
    this.status = options.status ?? 400;
  }
}

export type Json = Readonly<Record<string, unknown>>;

export function object(value: unknown, where: string): Json {
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw new Refused(`${where}: Input should be a valid dictionary`);
  return value as Json;
}

export function list(value: unknown, where: string): readonly unknown[] {
  if (!Array.isArray(value)) throw new Refused(`${where}: Input should be a valid list`);
  return value;
}

export function string(value: unknown, where: string): string {
  if (typeof value !== "string") throw new Refused(`${where}: Input should be a valid string`);
  return value;
}

export function text(value: unknown, where: string): string {
  const given = string(value, where);
  if (given === "") throw new Refused(`${where}: String should have at least 1 character`);
  return given;
}

/** Refuses members that the vendor does not know. `say` writes the vendor's message. */
export function onlyKnown(value: Json, known: readonly string[], say: (name: string) => string): void {
  for (const name of Object.keys(value)) if (!known.includes(name)) throw new Refused(say(name));
}

export function unique(names: readonly string[], say: (name: string) => string): void {
  const seen = new Set<string>();
  for (const name of names) {
    if (seen.has(name)) throw new Refused(say(name));
    seen.add(name);
  }
}
