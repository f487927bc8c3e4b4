/** What the tests of this folder read: source files and their imports. */
import { readdirSync, readFileSync } from "node:fs";
import { dirname, join, normalize, resolve } from "node:path";

export const root = resolve(import.meta.dirname, "../..");

export interface Import {
  /** As written. */
  readonly specifier: string;
  /** Below src, for a relative import: `store/pool.ts`. */
  readonly path: string | undefined;
  /** Gone after the build. */
  readonly isTypeOnly: boolean;
}

/** Every file with this ending below `folder`, as paths relative to it, sorted. */
export function filesIn(folder: string, ending: string): string[] {
  return readdirSync(folder, { recursive: true, encoding: "utf8" })
    .filter((name) => name.endsWith(ending))
    .map((name) => name.replaceAll("\\", "/"))
    .toSorted();
}

export const sourceFiles = (): string[] => filesIn(join(root, "src"), ".ts");

/** Static imports, re-exports and dynamic imports of one file below src. */
export function importsOf(file: string): Import[] {
  const text = readFileSync(join(root, "src", file), "utf8").replaceAll(/\/\*[\s\S]*?\*\//g, "");
  const found: Import[] = [];
  for (const match of text.matchAll(/^\s*(?:import|export)\s+(type\s+)?((?:[^;"']*?\sfrom\s+)?)["']([^"']+)["']/gm)) {
    const [, type, names = "", specifier = ""] = match;
    // `import { type A, type B } from` has nothing left at run time either.
    const inner = /\{([^}]*)\}/.exec(names)?.[1];
    const allTypes = inner !== undefined && !/^[^{]*\w[^{]*,\s*\{/.test(names) && inner.split(",").every((name) => name.trim() === "" || name.trim().startsWith("type "));
    found.push({ specifier, path: pathOf(file, specifier), isTypeOnly: type !== undefined || allTypes });
  }
  for (const [, specifier = ""] of text.matchAll(/(?<!typeof )\bimport\(\s*["']([^"']+)["']\s*\)/g)) found.push({ specifier, path: pathOf(file, specifier), isTypeOnly: false });
  return found;
}

function pathOf(file: string, specifier: string): string | undefined {
  return specifier.startsWith(".") ? normalize(join(dirname(file), specifier)).replaceAll("\\", "/") : undefined;
}

/** What of src is loaded when this file is, itself included, and which packages. */
export function loadedBy(entry: string): { readonly files: ReadonlySet<string>; readonly packages: ReadonlySet<string> } {
  const files = new Set<string>();
  const packages = new Set<string>();
  const queue = [entry];
  for (let file = queue.pop(); file !== undefined; file = queue.pop()) {
    if (files.has(file)) continue;
    files.add(file);
    for (const { specifier, path, isTypeOnly } of importsOf(file)) {
      if (isTypeOnly) continue;
      if (path === undefined) packages.add(specifier);
      else queue.push(path);
    }
  }
  return { files, packages };
}

export function readRoot(file: string): string {
  return readFileSync(join(root, file), "utf8");
}
