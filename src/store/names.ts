/**
 * Statements and migrations are written for the schema `capstan`; an installation may name it otherwise. Settings
 * (`capstan_clock.offset`) do not follow: they belong to a session, not to a schema.
 */
export interface SchemaNames {
  readonly schema: string;
  readonly workerSchema: string;
}

export const defaultNames: SchemaNames = { schema: "capstan", workerSchema: "graphile_worker" };

const identifier = /^[a-z_][a-z0-9_]{0,50}$/;

/** Gives a function that puts the installation's schema names into a statement. Throws RangeError on a name that would need quoting. */
export function namedSql(names: SchemaNames): (text: string) => string {
  for (const name of [names.schema, names.workerSchema]) {
    if (!identifier.test(name)) throw new RangeError(`schema name ${JSON.stringify(name)} must match ${identifier}`);
  }
  if (names.schema === "capstan" && names.workerSchema === "graphile_worker") return (text) => text;
  return (text) =>
    text
      .replaceAll(/"capstan"\."/g, `"${names.schema}"."`)
      .replaceAll(/SCHEMA IF NOT EXISTS "capstan"/g, `SCHEMA IF NOT EXISTS "${names.schema}"`)
      .replaceAll(/\bcapstan\./g, `${names.schema}.`)
      .replaceAll(/\bcapstan_(wish|delta|follow)\b/g, `${names.schema}_$1`)
      .replaceAll(/\bgraphile_worker\./g, `${names.workerSchema}.`);
}
