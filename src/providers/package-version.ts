import { createRequire } from "node:module";

const require = createRequire(import.meta.url);

/** `name@version` of an installed package, read without loading its code. */
export function packageVersion(name: string): string {
  const { version } = require(`${name}/package.json`) as { version: string };
  return `${name}@${version}`;
}
